"""The built server through redis-py, unchanged: RESP2 and RESP3.

Run with `python3 -m pytest tests/clients`; needs `pip install redis pytest` and a built
program (`cargo build -p headwater`, or HEADWATER=path/to/headwater).
"""

import asyncio
import os
import pathlib
import signal
import subprocess
import threading
import time

import pytest
import redis
import redis.asyncio

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("HEADWATER", str(ROOT / "target" / "debug" / "headwater"))
TIMELINE = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"


@pytest.fixture(
    params=[["--requirepass=secret", "--shards=1"], ["--shards=3"], []],
    ids=["one shard, password", "three shards", "as many as cores"],
)
def server(request):
    flags = request.param
    process = subprocess.Popen(
        [PROGRAM, "serve", "--port", "0", *flags], stdout=subprocess.PIPE, text=True
    )
    ready = process.stdout.readline()
    assert " ready on " in ready
    process.port = int(ready.rsplit(":", 1)[1])
    process.password = "secret" if "--requirepass=secret" in flags else None
    yield process
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def client(server, request):
    with redis.Redis(
        port=server.port,
        password=server.password,
        protocol=request.param,
        decode_responses=True,
        client_name="pytest",
    ) as client:
        yield client


def test_locks(client):
    """redis-py's own Lock, whose scripts are commands here."""
    lock = client.lock("lock|ann", timeout=20)
    other = client.lock("lock|ann", timeout=20, blocking=False)
    assert lock.acquire() and not other.acquire()
    assert lock.locked() and lock.owned() and not other.owned()
    assert lock.extend(30)
    assert 49_000 <= client.pttl("lock|ann") <= 50_000
    assert lock.extend(5, replace_ttl=True)
    assert 4_000 <= client.pttl("lock|ann") <= 5_000
    assert lock.reacquire()
    assert 19_000 <= client.pttl("lock|ann") <= 20_000
    # Somebody else has it: its holder may neither keep it nor give it back.
    client.set("lock|ann", "another", px=60_000)
    for act in (lock.reacquire, lambda: lock.extend(1)):
        with pytest.raises(redis.exceptions.LockNotOwnedError):
            act()
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        lock.release()
    assert client.get("lock|ann") == "another"
    client.delete("lock|ann")
    assert other.acquire()
    other.release()
    assert client.exists("lock|ann") == 0
    assert client.script_exists(client.script_load(lock.LUA_RELEASE_SCRIPT), "0" * 40) == [True, False]
    assert client.eval(lock.LUA_RELEASE_SCRIPT, 1, "lock|ann", "token") == 0
    script = client.register_script("return 1")
    with pytest.raises(redis.exceptions.ResponseError, match="DELIFEQ"):
        script()


def test_locks_of_many_threads(client):
    """No two hold a lock at once, and nobody waits for ever."""
    held, seen = [], []

    def work(number):
        for _ in range(20):
            with client.lock("lock|all", timeout=30, sleep=0.002):
                held.append(number)
                seen.append(len(held))
                held.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert seen == [1] * 80


def test_rate_limits(client):
    answers = [client.execute_command("CL.THROTTLE", "limit|ann", 2, 1, 3600) for _ in range(4)]
    assert [answer[0] for answer in answers] == [0, 0, 0, 1]
    assert answers[0] == [0, 3, 2, -1, 3600]
    assert answers[3][3] in (3599, 3600)


def test_strings(client):
    assert client.set("k", "v") is True
    assert client.get("k") == "v"
    assert client.set("k", "w", nx=True) is None
    assert client.set("k", "w", get=True) == "v"
    assert client.set("k", "x", ex=100, xx=True) is True
    assert 99 <= client.ttl("k") <= 100
    assert client.getex("k", persist=True) == "x"
    assert client.ttl("k") == -1
    assert client.mset({"a": 1, "b": 2}) is True
    assert client.mget("a", "b", "none") == ["1", "2", None]
    assert client.incrby("a", 4) == 5
    assert client.incrbyfloat("a", 0.5) == 5.5
    assert client.append("b", "x") == 2
    assert client.getrange("b", 0, 0) == "2"
    assert client.setrange("b", 1, "yz") == 3
    assert client.strlen("b") == 3
    assert client.exists("a", "b", "none") == 2
    assert client.type("a") == "string"
    assert client.rename("a", "c") is True
    assert client.copy("c", "d") is True
    assert client.getdel("d") == "5.5"
    assert client.delete("c", "b") == 2
    assert client.dbsize() == 1
    assert client.flushall() is True
    with pytest.raises(redis.ResponseError, match="not an integer"):
        client.set("k", "v")
        client.incr("k")


def test_scan_finds_every_key(client):
    with client.pipeline(transaction=False) as pipe:
        for number in range(3000):
            pipe.set(f"key:{number}", number)
        assert all(pipe.execute())
    assert len(set(client.scan_iter(match="key:*", count=100))) == 3000
    assert sorted(client.keys("key:1?")) == sorted(f"key:{n}" for n in range(10, 20))


def test_pipelines_of_any_size(client):
    client.set("big", "x" * 100_000)
    with client.pipeline(transaction=False) as pipe:
        for _ in range(300):
            pipe.get("big")
        assert all(len(value) == 100_000 for value in pipe.execute())


def test_transactions(client, server):
    with client.pipeline() as pipe:
        pipe.watch("k")
        pipe.multi()
        pipe.set("k", 1)
        pipe.incr("k")
        assert pipe.execute() == [True, 2]
        pipe.watch("k")
        with redis.Redis(port=server.port, password=server.password) as other:
            other.set("k", 9)
        pipe.multi()
        pipe.incr("k")
        with pytest.raises(redis.WatchError):
            pipe.execute()
    assert client.transaction(lambda pipe: pipe.multi() or pipe.incr("k"), "k") == [10]


def test_channels(client):
    pubsub = client.pubsub()
    pubsub.subscribe("news")
    pubsub.psubscribe("n*")

    def heard(kind):
        deadline = time.time() + 30
        while time.time() < deadline:
            message = pubsub.get_message(timeout=1)
            if message and message["type"] == kind:
                return message
        raise AssertionError(f"no {kind}")

    heard("psubscribe")
    assert client.publish("news", "rain") == 2
    assert heard("message")["data"] == "rain"
    assert heard("pmessage")["pattern"] == "n*"
    assert client.pubsub_channels() == ["news"]
    assert client.pubsub_numsub("news") == [("news", 1)]
    pubsub.close()


def test_channels_in_a_thread(client):
    got = threading.Event()
    pubsub = client.pubsub()
    pubsub.subscribe(news=lambda message: got.set())
    thread = pubsub.run_in_thread(sleep_time=0.01)
    deadline = time.time() + 30
    while not got.is_set() and time.time() < deadline:
        client.publish("news", "rain")
    thread.stop()
    thread.join()
    assert got.is_set()


def test_introspection(client):
    assert client.ping() is True
    assert client.echo("x") == "x"
    assert client.client_getname() == "pytest"
    assert client.client_id() > 0
    listed = client.client_list()
    assert [one["lib-name"] for one in listed if one["name"] == "pytest"][0].startswith("redis-py")
    assert client.client_info()["name"] == "pytest"
    client.set("k", "v")
    info = client.info()
    assert info["redis_mode"] == "standalone" and info["loading"] == 0
    assert "headwater_version" in info and info["db0"]["keys"] == 1
    assert client.config_get("maxclients") == {"maxclients": "10000"}
    assert client.config_set("timeout", 0) is True
    assert client.config_resetstat() is True
    assert client.command_count() == len(client.command())
    assert client.command()["get"]["arity"] == 2
    assert client.command_getkeys("MSET", "a", "1", "b", "2") == ["a", "b"]
    # Nothing is slow, however busy the machine is; then everything is.
    slower_than = client.config_get("slowlog-log-slower-than")
    client.config_set("slowlog-log-slower-than", -1)
    assert client.slowlog_reset() is True
    assert client.slowlog_get() == [] and client.slowlog_len() == 0
    client.config_set("slowlog-log-slower-than", 0)
    client.set("k", "slow")
    client.config_set("slowlog-log-slower-than", -1)
    assert b"SET k slow" in [slow["command"] for slow in client.slowlog_get()]
    client.config_set("slowlog-log-slower-than", slower_than["slowlog-log-slower-than"])
    assert client.memory_usage("none") is None
    assert isinstance(client.memory_stats(), dict)
    assert len(client.time()) == 2
    assert client.object("encoding", "none") is None


def test_joins(client):
    client.execute_command("TABLE.SET", "t", "BOUNDARY", 1)
    client.execute_command("JOIN.ADD", "timeline", TIMELINE)
    client.mset({"s|ann|bob": 1, "p|bob|0100": "Hi", "p|bob|0200": "Again"})
    got = client.execute_command("PREFIX", "t|ann|", "REV", "LIMIT", 1)
    if isinstance(got, list):
        got = dict(zip(got[::2], got[1::2]))
    assert got == {"t|ann|0200|bob": "Again"}
    with pytest.raises(redis.ResponseError, match="maintained by join 'timeline'"):
        client.set("t|ann|0100|bob", "x")
    assert client.execute_command("VERIFY", "t|", "t}") == []


def test_a_wrong_password_is_an_authentication_error(server):
    with redis.Redis(port=server.port, password="wrong") as client:
        if server.password:
            with pytest.raises(redis.AuthenticationError):
                client.ping()
            with redis.Redis(port=server.port) as nobody:
                with pytest.raises(redis.AuthenticationError):
                    nobody.get("k")


def test_asyncio(server):
    async def story():
        client = redis.asyncio.Redis(port=server.port, password=server.password)
        await asyncio.gather(*(client.incr("n") for _ in range(50)))
        value = await client.get("n")
        await client.aclose()
        return value

    assert asyncio.run(story()) == b"50"


def test_near_cache(server):
    """redis-py's own client-side cache: copies of keys, derived ones too, go when they change."""
    cache = pytest.importorskip("redis.cache")
    proxy = redis.connection.CacheProxyConnection
    lowest, proxy.MIN_ALLOWED_VERSION = proxy.MIN_ALLOWED_VERSION, "7.0.0"
    try:
        options = {"port": server.port, "password": server.password, "protocol": 3}
        with redis.Redis(**options) as writer:
            writer.execute_command("JOIN.ADD", "karma", "karma|<a> = count vote|<a>|<voter>")
            near = redis.Redis(
                **options, decode_responses=True, cache_config=cache.CacheConfig()
            )
            with near:
                writer.set("k", "one")
                assert near.get("k") == near.get("k") == "one"
                before = writer.info("commandstats")["cmdstat_get"]["calls"]
                assert near.get("k") == "one"
                assert writer.info("commandstats")["cmdstat_get"]["calls"] == before
                writer.set("k", "two")
                wait_until(lambda: near.get("k") == "two")
                writer.set("vote|ann|bob", "")
                assert near.get("karma|ann") == "1"
                for votes in range(2, 30):
                    writer.set(f"vote|ann|{votes}", "")
                    wait_until(lambda: near.get("karma|ann") == str(votes))
                writer.flushall()
                wait_until(lambda: near.get("k") is None)
    finally:
        proxy.MIN_ALLOWED_VERSION = lowest


def wait_until(holds):
    """What is told arrives in a moment."""
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end


def openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    """An authority, and what it has signed: a server's certificate and a client's."""
    folder = tmp_path_factory.mktemp("tls")
    made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    openssl(*made, "-subj", "/CN=An authority", "-keyout", folder / "ca.key", "-out", folder / "ca.crt",
            "-addext", "basicConstraints=critical,CA:TRUE")
    for name, host in [("server", "localhost"), ("client", "shop")]:
        openssl(*made, "-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}",
                "-addext", "basicConstraints=critical,CA:FALSE", "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key",
                "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt")
    return folder


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("certificates", ["yes", "no"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_tls(identities, tmp_path, shards, certificates, protocol):
    settings = tmp_path / "headwater.toml"
    settings.write_text(
        f"""
        [listen]
        port = "off"
        shards = {shards}
        [tls]
        tls-port = 0
        tls-cert-file = "{identities}/server.crt"
        tls-key-file = "{identities}/server.key"
        tls-ca-cert-file = "{identities}/ca.crt"
        tls-auth-clients = "{certificates}"
        """
    )
    process = subprocess.Popen(
        [PROGRAM, "serve", "--config", settings], stdout=subprocess.PIPE, text=True
    )
    try:
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        trusts = {"host": "localhost", "port": port, "ssl": True, "ssl_ca_certs": identities / "ca.crt",
                  "protocol": protocol, "socket_timeout": 30}
        own = {"ssl_certfile": identities / "client.crt", "ssl_keyfile": identities / "client.key"}
        with redis.Redis(**trusts, **own) as client:
            long = os.urandom(3_000_000)
            assert client.set("long", long) and client.get("long") == long
            with client.pipeline(transaction=False) as pipe:
                for number in range(5000):
                    pipe.set(f"k{number}", number)
                    pipe.get(f"k{number}")
                assert pipe.execute()[1::2] == [b"%d" % number for number in range(5000)]
            listener = client.pubsub(ignore_subscribe_messages=True)
            listener.subscribe("news")
            assert listener.get_message(timeout=30) is None
            assert client.publish("news", "x" * 100_000) == 1
            heard = None
            while heard is None:
                heard = listener.get_message(timeout=30)
            assert len(heard["data"]) == 100_000
            listener.close()
            if certificates == "yes":
                assert any(line.get("cert") == "shop" for line in client.client_list())
        stranger = redis.Redis(**trusts)
        if certificates == "yes":
            with pytest.raises(redis.ConnectionError):
                stranger.ping()
        else:
            assert stranger.ping()
        with pytest.raises(redis.ConnectionError):
            redis.Redis(**{**trusts, "ssl_ca_certs": None}).ping()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
