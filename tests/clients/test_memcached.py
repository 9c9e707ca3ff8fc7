"""The built server through clients of memcached, unchanged: pymemcache, Django's cache, pylibmc.

Run with `python3 -m pytest tests/clients`; needs `pip install pymemcache django pytest`, takes pylibmc where
it is installed, and a built program (`cargo build -p headwater`, or HEADWATER=path/to/headwater).
"""

import os
import pathlib
import signal
import subprocess
import threading
import time

import pytest
import redis

pymemcache = pytest.importorskip("pymemcache")
from pymemcache import serde  # noqa: E402
from pymemcache.client.base import Client, PooledClient  # noqa: E402
from pymemcache.client.hash import HashClient  # noqa: E402
from pymemcache.exceptions import (  # noqa: E402
    MemcacheClientError,
    MemcacheIllegalInputError,
    MemcacheServerError,
)

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULE = ROOT / "crates" / "bench" / "src" / "functions" / "module.wasm"
PROGRAM = os.environ.get("HEADWATER", str(ROOT / "target" / "debug" / "headwater"))
TIMELINE = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"


@pytest.fixture(scope="module")
def server():
    process = subprocess.Popen(
        [PROGRAM, "serve", "--port", "0", "--memcached-port", "0"]
        + ["--functions", str(MODULE.parent)],
        stdout=subprocess.PIPE,
        text=True,
    )
    items, ready = process.stdout.readline(), process.stdout.readline()
    assert "memcached's protocol on " in items and " ready on " in ready
    process.items = ("127.0.0.1", int(items.rsplit(":", 1)[1]))
    process.port = int(ready.rsplit(":", 1)[1])
    yield process
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0


@pytest.fixture
def client(server):
    with redis.Redis(port=server.port) as resp:
        resp.flushall()
    client = Client(server.items, serde=serde.pickle_serde, timeout=30, no_delay=True)
    yield client
    client.close()


def test_storage(client):
    assert client.set("k", "text", noreply=False) is True
    assert client.get("k") == "text"
    assert client.get("nope", "default") == "default"
    assert client.add("k", 1, noreply=False) is False
    assert client.add("n", 1, noreply=False) is True
    assert client.replace("nope", 1, noreply=False) is False
    assert client.replace("n", 2, noreply=False) is True
    assert client.append("k", "!", noreply=False) is True
    assert client.prepend("k", "¡".encode(), noreply=False) is True
    assert client.get("k") == "¡text!"
    assert client.append("nope", "!", noreply=False) is False
    assert client.delete("k", noreply=False) is True
    assert client.delete("k", noreply=False) is False


def test_values_of_any_type_come_back(client):
    values = {
        "text": "täxt",
        "bytes": bytes(range(256)) * 50,
        "int": 2**70,
        "list": [1, None, {"a": (1.5, True)}],
        "empty": b"",
        "lines": b"\r\nEND\r\nVALUE k 0 1\r\n",
        "k" * 250: b"x",
    }
    assert client.set_many(values, noreply=False) == []
    assert client.get_many([*values, "nope"]) == values
    client.delete_many(values)
    assert client.get_many(values) == {}


def test_noreply_is_the_default_and_keeps_step(client):
    for at in range(1000):
        client.set(f"k{at}", at)
    assert client.get_many([f"k{at}" for at in range(1000)]) == {f"k{at}": at for at in range(1000)}
    client.delete("k0")
    client.incr("k1", 5, noreply=True)
    client.touch("k2", 1000)
    assert client.get("k0") is None and client.get("k1") == 6


def test_versions(client):
    assert client.gets("k") == (None, None)
    client.set("k", "a", noreply=False)
    value, version = client.gets("k")
    assert client.cas("k", "b", version, noreply=False) is True
    assert client.cas("k", "c", version, noreply=False) is False
    assert client.cas("nope", "c", version, noreply=False) is None
    (found,) = client.gets_many(["k", "nope"]).values()
    assert found[0] == "b" and found[1] != version


def test_counting(client):
    assert client.incr("n", 1) is None
    client.set("n", "18446744073709551615", noreply=False)
    assert client.incr("n", 2) == 1
    assert client.decr("n", 5) == 0
    client.set("n", "text", noreply=False)
    with pytest.raises(MemcacheClientError, match="non-numeric"):
        client.incr("n", 1)


def test_no_increment_is_lost(server, client):
    client.set("n", "0", noreply=False)
    client.set("list", "", noreply=False)

    def work():
        mine = Client(server.items, timeout=30)
        for _ in range(200):
            mine.incr("n", 1)
            while True:
                value, version = mine.gets("list")
                if mine.cas("list", value + b"x", version, noreply=False):
                    break
        mine.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert Client(server.items).get("n") == b"800"
    assert Client(server.items).get("list") == b"x" * 800


def test_expiry(client):
    client.set("k", 1, expire=1, noreply=False)
    client.set("l", 1, expire=1000, noreply=False)
    assert client.touch("l", 1, noreply=False) is True
    assert client.touch("nope", 1, noreply=False) is False
    client.set("m", 1, expire=int(time.time()) - 10, noreply=False)
    assert client.get("m") is None
    client.set("m", 1, expire=int(time.time()) + 1000, noreply=False)
    assert client.raw_command("gat 500 m", end_tokens="END\r\n").startswith(b"VALUE m 2 1\r\n1\r\n")
    deadline = time.monotonic() + 30
    while client.get_many(["k", "l"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert client.get("m") == 1


def test_refusals(client):
    with pytest.raises(MemcacheIllegalInputError):
        client.get("k" * 251)
    with pytest.raises(MemcacheServerError, match="too large"):
        client.set("k", b"x" * (64 * 1024 * 1024 + 1), noreply=False)
    assert client.get("k") is None


def test_whole_server(client):
    assert client.version() == b"1.6.18"
    client.set("k", 1, noreply=False)
    stats = client.stats()
    assert stats[b"curr_items"] == 1 and stats[b"threads"] == 1
    assert client.stats("settings")[b"item_size_max"] == 64 * 1024 * 1024
    assert client.flush_all(noreply=False) is True
    assert client.get("k") is None
    client.quit()


def test_raw_meta_commands(client):
    assert client.raw_command("ms k 2 F5 T100\r\nhi") == b"HD"
    assert client.raw_command("mg k v f", end_tokens="\r\nhi\r\n").startswith(b"VA 2 f5")
    assert client.raw_command("md k q\r\nmn") == b"MN"


def test_pools_and_hashing(server, client):
    pool = PooledClient(server.items, max_pool_size=4, serde=serde.pickle_serde)
    pool.set("k", [1], noreply=False)
    ring = HashClient([server.items], use_pooling=True, serde=serde.pickle_serde)
    assert ring.get_many(["k", "nope"]) == {"k": [1]}
    pool.close()
    ring.close()


def test_derived_keys(server, client):
    with redis.Redis(port=server.port, decode_responses=True) as resp:
        resp.execute_command("JOIN.ADD", "timeline", TIMELINE, "REPLACE")
        client.set("s|ann|bob", b"1", noreply=False)
        client.set("p|bob|0100", b"Hi", noreply=False)
        assert client.get("t|ann|0100|bob") == b"Hi"
        assert resp.get("p|bob|0100") == "Hi"
        with pytest.raises(MemcacheServerError, match="JOINED"):
            client.set("t|ann|0100|bob", b"x", noreply=False)
        client.delete("p|bob|0100", noreply=False)
        assert client.get("t|ann|0100|bob") is None
        resp.execute_command("JOIN.DROP", "timeline")


@pytest.fixture(params=["PyMemcacheCache", "PyLibMCCache"])
def cache(request, server, client):
    pytest.importorskip("django")
    if request.param == "PyLibMCCache":
        pytest.importorskip("pylibmc")
    from django.conf import settings

    if not settings.configured:
        settings.configure()
    from django.core.cache.backends import memcached

    backend = getattr(memcached, request.param)
    return backend("%s:%d" % server.items, {"TIMEOUT": 300, "KEY_PREFIX": "site"})


def test_django_cache(cache):
    assert cache.get("k") is None
    cache.set("k", {"a": [1, 2]})
    assert cache.get("k") == {"a": [1, 2]}
    assert cache.add("k", 1) is False and cache.add("n", 1) is True
    assert cache.incr("n", 41) == 42 and cache.decr("n") == 41
    with pytest.raises(ValueError):
        cache.incr("nope")
    assert cache.touch("k", 100) is True and cache.touch("nope") is False
    assert cache.set_many({"x": "é", "y": b"\0", "z": None}) == []
    assert cache.get_many(["x", "y", "nope"]) == {"x": "é", "y": b"\0"}
    assert cache.get_or_set("made", lambda: "once") == "once"
    cache.set("k", 2, version=2)
    assert cache.get("k", version=2) == 2 and cache.get("k") == {"a": [1, 2]}
    assert "k" in cache and cache.delete("k") is True and "k" not in cache
    cache.set("gone", 1, timeout=0)
    assert cache.get("gone") is None
    cache.set("stays", 1, timeout=None)
    cache.delete_many(["x", "y"])
    assert cache.get("x") is None and cache.get("stays") == 1
    cache.clear()
    assert cache.get("stays") is None
    cache.close()


def test_pylibmc(server, client):
    pylibmc = pytest.importorskip("pylibmc")
    mc = pylibmc.Client(["%s:%d" % server.items], behaviors={"cas": True, "tcp_nodelay": True})
    assert mc.set("k", "text") and mc.get("k") == "text"
    assert mc.set("int", 5) and mc.get("int") == 5 and mc.incr("int") == 6
    assert mc.set_multi({"a": 1, "b": [2], "c": b"3"}) == []
    assert mc.get_multi(["a", "b", "c", "nope"]) == {"a": 1, "b": [2], "c": b"3"}
    value, version = mc.gets("k")
    assert mc.cas("k", "new", version) and mc.get("k") == "new"
    assert not mc.cas("k", "newer", version)
    assert mc.add("k", 1) is False and mc.replace("k", "r") is True
    assert mc.append("k", "!") and mc.prepend("k", "?") and mc.get("k") == "?r!"
    assert mc.touch("k", 100) and mc.delete("k") and not mc.delete("k")
    assert mc.set("long", b"x" * 100_000) and mc.get("long") == b"x" * 100_000
    assert int(mc.get_stats()[0][1]["threads"]) == 1
    assert mc.flush_all() and mc.get("long") is None


def invoke(client, line, param=b"", end=b"END\r\n"):
    line = b"invoke %b %d\r\n%b" % (line, len(param), param)
    return client.raw_command(line, end_tokens=end)


def test_functions(client, server):
    """`register` and `invoke` are no commands of memcached: clients send them as they are."""
    assert client.raw_command("register f module.wasm add") == b"REGISTERED"
    assert invoke(client, b"n f AUR", b"5").splitlines() == [b"VALUE n 0 1", b"5"]
    assert invoke(client, b"n f AUR", b"37").splitlines() == [b"VALUE n 0 2", b"42"]
    with redis.Redis(port=server.port) as resp:
        assert resp.get("n") == b"42"
        assert resp.execute_command("FN.CALL", "f", "n", "UPDATE", "ATOMIC", "1") == b"43"
    # Set and go: nothing is answered, so the answer of what follows it is the next one.
    put = (4).to_bytes(4, "little") + b"sixteen bytes!!!"
    other = Client(server.items, timeout=30)
    other.set("p", "." * 30, noreply=False)
    line = b"invoke p f.put U %d\r\n%b\r\nmn" % (len(put), put)
    assert other.raw_command(line) == b"MN"
    assert other.get("p") == b"....sixteen bytes!!!.........."
    line = b"invoke absent f.put U %d\r\n%b\r\nmn" % (len(put), put)
    assert other.raw_command(line) == b"MN"
    assert other.get("absent") is None
    other.close()
    with pytest.raises(MemcacheServerError, match="NOFUNCTION"):
        invoke(client, b"n nothing R", end=b"\r\n")
    with pytest.raises(MemcacheClientError, match="letters of AUR"):
        invoke(client, b"n f XYZ", end=b"\r\n")
