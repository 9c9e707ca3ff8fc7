"""Headwater's commands through the client: results, pages, pipelines, typed errors; synchronous and asyncio."""

import asyncio
import inspect
import pathlib
import re

import headwater
import headwater.asyncio
import pytest
import redis
from conftest import ROOT, Server
from headwater.async_commands import AsyncCommands
from headwater.commands import Commands

TIMELINE = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"


@pytest.fixture
def timeline(client):
    assert client.join_add("timeline", TIMELINE) == (TIMELINE, [])
    client.mset({"s|ann|bob": 1, **{f"p|bob|{at:04}": f"post {at}" for at in range(25)}})
    return client


def test_ranges(timeline):
    assert list(timeline.prefix("t|ann|", rev=True, limit=2)) == ["t|ann|0024|bob", "t|ann|0023|bob"]
    assert timeline.range("t|ann|0003", "t|ann|0004") == {"t|ann|0003|bob": "post 3"}
    assert timeline.range_keys("t|ann|0003", "t|ann|0005") == ["t|ann|0003|bob", "t|ann|0004|bob"]
    assert timeline.prefix_values("t|ann|", limit=1) == ["post 0"] and timeline.prefix_count("t|ann|") == 25
    assert timeline.prefix_keys("x|") == [] and timeline.range_count("t|ann|0003", "t|ann|0005") == 2
    assert timeline.range_values("p|bob|", "p|bob|0001") == ["post 0"]
    assert timeline.prefix("t|ann|", limit=1, at=timeline.shard_position()) == {"t|ann|0000|bob": "post 0"}
    assert timeline.range_delete("p|bob|0020", "p|bob}") == 5 and timeline.prefix_count("t|ann|") == 20


def test_pages(timeline):
    everything = list(timeline.prefix("t|ann|").items())
    for page in (1, 7, 25, 1000):
        assert list(timeline.prefix_iter("t|ann|", page=page)) == everything
        assert list(timeline.prefix_iter("t|ann|", page=page, rev=True)) == everything[::-1]
        assert list(timeline.prefix_iter("t|ann|", page=page, limit=9)) == everything[:9]
        assert list(timeline.range_iter("t|ann|0005", "", page=page, rev=True, limit=9)) == everything[:-10:-1]
    assert list(timeline.prefix_iter("nothing|")) == [] == list(timeline.prefix_iter("t|", limit=0))
    with pytest.raises(ValueError, match="at least one pair"):
        next(timeline.prefix_iter("t|", page=0))


def test_joins(timeline):
    assert timeline.join_list() == {"timeline": TIMELINE}
    info = timeline.join_info("timeline")
    assert info["spec"] == TIMELINE and info["warnings"] == [] and info["fills"] == 0
    assert timeline.join_add("bare", "w|user|time = check s|user|poster copy p|poster|time").warnings
    assert timeline.join_key("timeline", {"user": "ann"}) == "t|ann|"
    assert timeline.join_decode("t|ann|0001|bob") == ["t", "ann", "0001", "bob"] and timeline.join_decode("x") is None
    assert "timeline" in timeline.explain("t|ann|0001|bob") and "timeline" in timeline.explain_range("t|", "t}")
    assert timeline.verify("t|", "t}") == []
    timeline.join_drop("timeline")
    assert timeline.prefix("t|ann|") == {}


def test_tables_and_sources(client):
    assert client.table_set("q", boundary=2, evict=False) == []
    assert {"name": "q", "boundary": 2, "keys": 0} in client.table_list() and client.table_info("q")["boundary"] == 2
    assert client.source_list() == []
    with pytest.raises(headwater.HeadwaterError, match="connect-allow"):
        client.source_add("shop", "postgres", "postgres://ann@nowhere.invalid/shop")
    with pytest.raises(headwater.HeadwaterError, match="no source is named 'shop'"):
        client.table_set("q", source="shop", table="posts", key=("poster", "time"), value="JSON (title, cents)", write="through")
    with pytest.raises(headwater.HeadwaterError, match="no source is named 'shop'"):
        client.source_check("shop", table="posts", key=("poster", "time"), value="title", where="cents > 0")
    for refused in (client.source_info, client.source_drop, client.source_position):
        with pytest.raises(headwater.HeadwaterError, match="'shop'"):
            refused("shop")


def test_streams(client):
    end = client.stream_append("story", "It was a dark night", length=100)
    begin = end - 19  # of an earlier test's stream, perhaps
    assert end == client.stream_len("story") == client.stream_info("story")["end"]
    assert client.stream_read("story", begin + 9, 4) == "dark" and client.stream_read("none", 0, 4) is None
    assert client.stream_read("story", end, 4, block_ms=1) in (None, "")
    assert client.stream_trim("story", begin + 9) == begin + 9
    with pytest.raises(headwater.TrimmedError) as caught:
        client.stream_read("story", begin, 4)
    assert caught.value.first == begin + 9
    with pytest.raises(headwater.WrongTypeError):
        client.get("story")


#: (module (func (export "call") (result i32) i32.const 0)), and one that ends with status 3.
MODULE = bytes.fromhex("0061736d0100000001050160000 17f03020100070801 0463616c6c00000a06010400 41".replace(" ", "")) + b"%c\x0b"


def test_functions(client):
    assert client.fn_list() == []
    client.fn_load("fine", MODULE % 0)
    client.fn_load("fails", MODULE % 3, export="call", replace=True)
    try:
        assert client.fn_call("fine", "k", "parameter", update=True, atomic=True) is None
        assert client.fn_call("fine", "k", noreply=True) is None
        client.mset({"f|1": 1, "f|2": 2})
        client.table_set("f", boundary=0)
        assert client.fn_range("fine", "f|", "f}", limit=1, rev=True) in ({}, None, [])
        assert "fine" in str(client.fn_list()) and client.fn_info("fine")
        with pytest.raises(headwater.FunctionError, match="status 3"):
            client.fn_call("fails", "f|1")
    finally:
        client.fn_drop("fine")
        client.fn_drop("fails")
    with pytest.raises(headwater.NoFunctionError, match="'fine' is not loaded"):
        client.fn_call("fine", "k")


def test_flows(client):
    assert client.flow_add("keep", "item|<id>", copy="archive|<id> = copy item|<id>", workers=2, backlog=10, overflow="block")
    client.set("item|7", "tea")
    with client.watch_prefix("archive|") as watch:
        assert watch.get(timeout=30)[:2] == ("archive|7", "tea")
    assert "COPY" in client.flow_list()["keep"]["spec"] and client.flow_info("keep")["dead"] == 0
    client.flow_pause("keep")
    client.flow_resume("keep")
    assert client.flow_dead("keep") == []
    client.flow_retry("keep")
    client.flow_discard("keep")
    with pytest.raises(headwater.HeadwaterError, match="positions"):
        client.flow_replay("keep", 1_000_000)
    client.flow_drop("keep")
    client.flow_add("news", "n|<id>", publish="news", operations=["set", "del"], max_attempts=3, backoff=(10, 100), backfill=True)
    with pytest.raises(headwater.HeadwaterError):
        client.flow_add("news", "n|<id>", fanout="what is no join")
    with pytest.raises(ValueError, match="one action"):
        client.flow_add("two", "n|<id>", publish="news", copy="a|<id> = copy n|<id>")


def test_a_dead_task(client):
    client.fn_load("fails", MODULE % 3, replace=True)
    client.flow_add("hook", "n|<id>", call="fails", max_attempts=1, backoff=(1, 1))
    try:
        client.set("n|1", "x")
        while not (dead := client.flow_dead("hook")):
            pass
        assert "status 3" in str(dead[0].fields) and dead[0].position >= 0
        client.flow_discard("hook", dead[0].position)
        assert client.flow_dead("hook") == []
    finally:
        client.flow_drop("hook")
        client.fn_drop("fails")


def test_limits(client):
    uses = [client.throttle("limit|ann", 1, 1, 3600) for _ in range(3)]
    assert [one.refused for one in uses] == [False, False, True] and uses[2].retry_after > 3000


def test_pipelines(timeline):
    for transaction in (True, False):
        pipe = timeline.pipeline(transaction=transaction)
        pipe.set("p|bob|0030", "new").prefix("t|ann|", rev=True, limit=1).prefix_count("t|ann|").join_list()
        answers = pipe.execute()
        assert answers == [True, {"t|ann|0030|bob": "new"}, 26, {"timeline": TIMELINE}]
        with pytest.raises(headwater.JoinedError, match="maintained by join 'timeline'") as caught:
            timeline.pipeline(transaction=transaction).set("t|ann|1|bob", 1).execute()
        assert caught.value.join == "timeline"
        answers = timeline.pipeline(transaction=transaction).set("t|ann|1|bob", 1).get("x").execute(raise_on_error=False)
        assert isinstance(answers[0], headwater.JoinedError) and answers[1] is None


def test_errors(timeline):
    with pytest.raises(headwater.JoinedError) as caught:
        timeline.set("t|ann|1|bob", 1)
    error = caught.value
    assert (error.code, str(error), error.join) == ("JOINED", "key is maintained by join 'timeline'", "timeline")
    assert isinstance(error, redis.ResponseError)
    with pytest.raises(headwater.JoinSyntaxError, match="neither a mode nor an operator") as caught:
        timeline.join_add("x", "x|<u> = coppy p|<u>")
    assert caught.value.column == 9
    with pytest.raises(headwater.HeadwaterError, match="would read its own output") as caught:
        timeline.join_add("x", "p|<a>|<b> = copy t|<a>|<b>|<c>")
    assert caught.value.code == "ERR"
    with pytest.raises(headwater.HeadwaterError, match="wrong number of arguments"):
        timeline.execute_command("PREFIX")


def test_rights_and_memory(protocol):
    server = Server("--memory=32mb")
    try:
        with headwater.Headwater(port=server.port, protocol=protocol) as admin:
            admin.execute_command("ACL", "SETUSER", "ann", "on", ">pw", "+@all", "-join.add", "~p|*")
            admin.config_set("maxmemory-policy", "noeviction")
            with pytest.raises(headwater.OutOfMemoryError) as caught:
                for at in range(200):
                    admin.set(f"big|{at}", b"x" * 1_000_000)
            assert caught.value.code == "OOM" and isinstance(caught.value, redis.exceptions.OutOfMemoryError)
            with headwater.Headwater(port=server.port, protocol=protocol, username="ann", password="pw") as ann:
                for refused in (lambda: ann.join_add("t", TIMELINE), lambda: ann.prefix("t|"), lambda: next(ann.watch_prefix("t|"))):
                    with pytest.raises(headwater.NoPermissionError):
                        refused()
                watch = ann.watch_prefix("p|x")
                assert watch.get(timeout=0.2) is None
                admin.execute_command("ACL", "SETUSER", "ann", "resetkeys", "~q|*")
                with pytest.raises((headwater.WatchEndedError, headwater.NoPermissionError, redis.AuthenticationError)):
                    watch.get(timeout=30)
        with headwater.Headwater(port=server.port, username="ann", password="wrong") as nobody:
            with pytest.raises(redis.AuthenticationError):
                nobody.watch_prefix("p|").get(timeout=30)
    finally:
        server.stop()


def test_asyncio_has_the_same(server, protocol):
    sync, other = (dict(inspect.getmembers(one, inspect.isfunction)) for one in (Commands, AsyncCommands))
    assert sync.keys() == other.keys()
    for name in sync:
        assert list(inspect.signature(sync[name]).parameters.values()) == list(
            inspect.signature(other[name]).parameters.values()
        ), name

    async def story():
        async with headwater.asyncio.Headwater(port=server.port, protocol=protocol, decode_responses=True) as client:
            await client.flushall()
            for name in reversed(await client.join_list()):
                await client.join_drop(name)
            await client.join_add("timeline", TIMELINE)
            await client.mset({"s|ann|bob": 1, **{f"p|bob|{at:04}": at for at in range(25)}})
            everything = list((await client.prefix("t|ann|")).items())
            assert [pair async for pair in client.prefix_iter("t|ann|", page=7)] == everything
            assert [pair async for pair in client.prefix_iter("t|ann|", page=7, rev=True)] == everything[::-1]
            assert await client.prefix_count("t|ann|") == 25 and await client.verify("t|", "t}") == []
            assert "timeline" in await client.explain("t|ann|0001|bob")
            pipe = client.pipeline()
            pipe.set("p|bob|0030", "new")
            pipe.prefix("t|ann|", rev=True, limit=1)
            assert await pipe.execute() == [True, {"t|ann|0030|bob": "new"}]
            for refused in (client.set("t|ann|1|bob", 1), client.pipeline().set("t|ann|1|bob", 1).execute()):
                with pytest.raises(headwater.JoinedError, match="maintained by join 'timeline'"):
                    await refused
            with pytest.raises(headwater.NoFunctionError):
                await client.fn_call("none", "k")

    asyncio.run(story())


def test_the_version_is_the_programs():
    programs = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    folder = pathlib.Path(__file__).resolve().parents[1]
    assert headwater.__version__ == programs
    assert f'version = "{programs}"' in (folder / "pyproject.toml").read_text()
