"""redis-py, unchanged, against the real program, in RESP2 and RESP3."""

import asyncio
import threading

import pytest
import redis
import redis.asyncio

TIMELINE = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def client(port, request):
    with redis.Redis(port=port, protocol=request.param, decode_responses=True) as client:
        yield client


def pairs(answer):
    """What PREFIX answers: a map in RESP3, a flat array in RESP2."""
    if isinstance(answer, dict):
        return answer
    return dict(zip(answer[::2], answer[1::2]))


def test_strings(client):
    assert client.ping()
    assert client.set("a", "1", ex=100) is True
    assert client.get("a") == "1"
    assert client.set("a", "2", nx=True) is None
    assert client.set("a", "2", xx=True, get=True) == "1"
    assert client.incrby("a", 40) == 42
    assert client.incrbyfloat("f", 0.1) == pytest.approx(0.1)
    assert client.append("a", "!") == 3
    assert client.getrange("a", 0, 1) == "42"
    assert client.mset({"b": "x", "c": "y"}) is True
    assert client.mget("b", "nothing", "c") == ["x", None, "y"]
    assert client.getdel("b") == "x"
    assert client.exists("b", "c") == 1
    assert client.type("c") == "string"
    assert client.delete("a", "c") == 2


def test_expiry(client):
    client.set("a", "1")
    assert client.ttl("a") == -1
    assert client.expire("a", 1000) is True
    assert 0 < client.ttl("a") <= 1000
    assert client.persist("a") is True
    assert client.pexpire("a", 1) is True
    deadline = threading.Event()
    for _ in range(1000):
        if client.get("a") is None:
            return
        deadline.wait(0.01)
    pytest.fail("the key stays")


def test_bytes(port):
    everything = bytes(range(256)) * 40
    with redis.Redis(port=port) as client:
        client.set(everything[:256], everything)
        assert client.get(everything[:256]) == everything


def test_scan(client):
    names = {f"key:{number}" for number in range(300)}
    client.mset({name: "x" for name in names})
    assert set(client.scan_iter(match="key:*", count=50)) == names
    assert client.dbsize() == 300
    assert client.flushall() is True
    assert client.dbsize() == 0


def test_pipelines_and_transactions(client):
    with client.pipeline(transaction=False) as pipe:
        for number in range(1000):
            pipe.set(f"k{number}", number)
        pipe.get("k999")
        assert pipe.execute()[-1] == "999"
    with client.pipeline() as pipe:
        pipe.incr("n").incr("n")
        assert pipe.execute() == [1, 2]

    def double(pipe):
        value = int(pipe.get("n"))
        pipe.multi()
        pipe.set("n", value * 2)

    assert client.transaction(double, "n") == [True]
    with client.pipeline() as pipe:
        pipe.watch("n")
        client.set("n", "7")
        pipe.multi()
        pipe.set("n", "8")
        with pytest.raises(redis.WatchError):
            pipe.execute()
    assert client.get("n") == "7"


def test_channels(client):
    with client.pubsub() as listener:
        listener.subscribe("news")
        listener.psubscribe("ne*")
        for _ in range(2):
            assert listener.get_message(timeout=5)["type"] in ("subscribe", "psubscribe")
        assert client.publish("news", "hello") == 2
        kinds = {listener.get_message(timeout=5)["type"] for _ in range(2)}
        assert kinds == {"message", "pmessage"}


def test_refusals(client):
    with pytest.raises(redis.ResponseError, match="wrong number of arguments for 'get' command"):
        client.execute_command("GET")
    with pytest.raises(redis.ResponseError, match="unknown command"):
        client.lpush("list", "x")
    client.set("word", "x")
    with pytest.raises(redis.ResponseError, match="value is not an integer or out of range"):
        client.incr("word")
    assert client.ping(), "the connection survives"


def test_introspection(client):
    assert client.info("server")["redis_version"]
    assert client.config_get("key-bytes-max") == {"key-bytes-max": "1024"}
    assert client.client_setname("me") is True
    assert client.client_getname() == "me"
    assert any(entry["name"] == "me" for entry in client.client_list())
    assert client.command_count() > 80


def test_timelines(client):
    client.execute_command("JOIN.ADD", "timeline", TIMELINE)
    client.mset({"s|ann|bob": 1, "p|bob|0100": "Hi"})
    assert pairs(client.execute_command("PREFIX", "t|ann|")) == {"t|ann|0100|bob": "Hi"}
    client.set("p|bob|0200", "Again")
    assert client.get("t|ann|0200|bob") == "Again"
    newest = client.execute_command("PREFIX", "t|ann|", "REV", "LIMIT", 1)
    assert pairs(newest) == {"t|ann|0200|bob": "Again"}
    client.delete("s|ann|bob")
    assert client.execute_command("PREFIX", "t|ann|", "COUNT") == 0
    with pytest.raises(redis.ResponseError, match="maintained by join 'timeline'"):
        client.set("t|ann|0300|bob", "mine")
    assert client.execute_command("VERIFY", "t|", "t}") == []


def test_many_connections_at_once(port):
    async def count():
        client = redis.asyncio.Redis(port=port, protocol=3)
        await asyncio.gather(*(client.incr("n") for _ in range(80)))
        value = await client.get("n")
        await client.aclose()
        return value

    assert asyncio.run(count()) == b"80"
