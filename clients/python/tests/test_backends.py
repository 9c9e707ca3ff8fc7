"""The cache backends of Django and Flask-Caching, with joins over what they cache."""

import pytest
from headwater import Headwater, JoinedError

VOTES = "karma|<author> = count vote|<author>|<voter>"
MEAN = "mean|<item> = avg stars|<item>|<who>"
UNREAD = "unread|<user> = count inbox|<user>|<id> where json(.read) = false"


@pytest.fixture
def clean(server):
    with Headwater(port=server.port) as client:
        for name in reversed(client.join_list()):
            client.join_drop(name)
        client.flushall()
    return server


@pytest.fixture
def django_caches(clean):
    pytest.importorskip("django")
    from django.conf import settings
    from django.core.cache import caches

    location = f"redis://127.0.0.1:{clean.port}"
    if not settings.configured:
        settings.configure()
    caches.settings = {
        "default": {
            "BACKEND": "headwater.django.HeadwaterCache",
            "LOCATION": location,
            "KEY_PREFIX": "shop",
            "JOINS": {"karma": VOTES, "mean": MEAN},
        },
        "json": {
            "BACKEND": "headwater.django.HeadwaterCache",
            "LOCATION": location,
            "JOINS": {"unread": UNREAD},
            "OPTIONS": {"serializer": "headwater.django.JSONSerializer", "protocol": 3},
        },
    }
    for name in ("default", "json"):
        if hasattr(caches._connections, name):
            delattr(caches._connections, name)
    return caches


def test_django(django_caches):
    cache = django_caches["default"]
    cache.set("page", {"title": "A kettle"}, 60)
    assert cache.get("page") == {"title": "A kettle"} and cache.get("none", 7) == 7
    assert cache.headwater.exists("shop:1:page") == 1
    assert cache.add("page", 1) is False and cache.get_or_set("n", 5) == 5 and cache.incr("n", 2) == 7
    cache.set_many({"a": "5", "b": True, "c": None}, timeout=None)
    assert cache.get_many(["a", "b", "c", "d"]) == {"a": "5", "b": True, "c": None}
    assert cache.touch("a", 10) and cache.has_key("a") and cache.delete("a") and not cache.has_key("a")
    # What joins give.
    cache.set_many({"vote|bob|ann": 1, "vote|bob|eve": 1, "vote|liz|ann": 1, "stars|tea|ann": 4, "stars|tea|eve": 3})
    assert cache.get("karma|bob") == 2 and cache.get("mean|tea") == "3.5"
    assert cache.prefix("karma|") == {"karma|bob": 2, "karma|liz": 1} and cache.prefix_count("karma|") == 2
    assert cache.prefix("karma|", rev=True, limit=1) == {"karma|liz": 1}
    cache.delete("vote|liz|ann")
    assert cache.get("karma|liz") is None
    with pytest.raises(JoinedError, match="maintained by join 'karma'"):
        cache.set("karma|bob", 100)
    changes = cache.watch_prefix("karma|")
    assert next(changes)[:2] == ("karma|bob", 2)
    cache.set("vote|bob|tim", 1)
    assert next(changes)[:2] == ("karma|bob", 3)
    changes.close()
    cache.clear()
    assert cache.get("page") is None and cache.headwater.join_list() == {"karma": VOTES, "mean": MEAN}
    cache.join_add("karma", VOTES.replace("count", "sum"))
    assert "sum" in cache.headwater.join_list()["karma"]


def test_django_with_json(django_caches):
    cache = django_caches["json"]
    cache.set("inbox|ann|1", {"read": False, "text": "Grüße"})
    cache.set("inbox|ann|2", {"read": False})
    assert cache.get("unread|ann") == 2 and cache.get("inbox|ann|1")["text"] == "Grüße"
    cache.set("inbox|ann|1", {"read": True})
    assert cache.get("unread|ann") == 1


def test_flask(clean):
    flask, caching = pytest.importorskip("flask"), pytest.importorskip("flask_caching")
    from headwater.flask import JSONSerializer

    app = flask.Flask("shop")
    url = f"redis://127.0.0.1:{clean.port}"
    config = {"CACHE_TYPE": "headwater.flask.HeadwaterCache", "CACHE_REDIS_URL": url, "CACHE_JOINS": {"karma": VOTES}}
    cache = caching.Cache(app, config=config)
    calls = []

    @app.route("/")
    @cache.cached(timeout=60)
    def index():
        calls.append(1)
        return "A kettle"

    asked = app.test_client()
    assert [asked.get("/").text for _ in range(3)] == ["A kettle"] * 3 and len(calls) == 1
    with app.app_context():
        backend = cache.cache
        cache.set_many({"vote|bob|ann": 1, "vote|bob|eve": 1, "plain": {"a": 1}})
        assert cache.get("karma|bob") == 2 and cache.get_many("plain", "none") == [{"a": 1}, None]
        assert backend.headwater.get("flask_cache_plain") and backend.prefix("karma|") == {"karma|bob": 2}
        assert cache.has("plain") and cache.delete("plain") and not cache.has("plain")
        assert cache.add("n", 1) and not cache.add("n", 2) and backend.inc("n") == 2 and backend.dec("n") == 1
        cache.delete_many("vote|bob|ann", "n")
        assert cache.get("karma|bob") == 1 and cache.get("n") is None
        cache.set("gone", 1)
        cache.unlink("gone")
        assert cache.get("gone") is None
        cache.clear()
        assert cache.get("karma|bob") == 1 and not backend.prefix("flask_cache_")
        with pytest.raises(JoinedError):
            cache.set("karma|bob", 9)

    other = flask.Flask("json")
    config = {
        "CACHE_TYPE": "headwater.flask.HeadwaterCache", "CACHE_REDIS_HOST": "127.0.0.1", "CACHE_REDIS_PORT": clean.port,
        "CACHE_KEY_PREFIX": "", "CACHE_SERIALIZER": JSONSerializer, "CACHE_JOINS": {"unread": UNREAD},
    }  # fmt: skip
    cache = caching.Cache(other, config=config)
    with other.app_context():
        cache.set("inbox|ann|1", {"read": False})
        assert cache.get("unread|ann") == 1 and cache.get("inbox|ann|1") == {"read": False}
        cache.clear()
        assert cache.get("unread|ann") is None
