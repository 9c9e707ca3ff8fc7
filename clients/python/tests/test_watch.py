"""What a watch gives is each change once, whatever becomes of connections and of the server."""

import asyncio
import random
import signal
import threading
import time

import headwater
import headwater.asyncio
import pytest
import redis
from conftest import Server
from headwater.watching import Connect, Rest

TIMELINE = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"
KARMA = "karma|<author> = count vote|<author>|<voter>"
END = 120
POSTERS, USERS = ("bob", "liz", "tim"), ("ann", "eve")


class Mirror:
    """A copy that is kept by what a watch gives."""

    def __init__(self):
        self.pairs, self.seen = {}, []

    def apply(self, change):
        assert self.pairs.get(change.key) != change.value, f"{change} is no change"
        if change.value is None:
            del self.pairs[change.key]
        else:
            self.pairs[change.key] = change.value
        self.seen.append(change)


def attempt(do):
    """Does it again until the server has answered."""
    end = time.monotonic() + END
    while True:
        try:
            return do()
        except (redis.ConnectionError, redis.TimeoutError, headwater.TryAgainError):
            assert time.monotonic() < end, "the server stays away"
            time.sleep(0.02)


def write(port, number, count):
    """Random posts, subscriptions and removals."""
    draw = random.Random(number)
    with headwater.Headwater(port=port) as client:
        for at in range(count):
            poster, user, when = draw.choice(POSTERS), draw.choice(USERS), f"{draw.randrange(40):04}"
            kind = draw.randrange(10)
            if kind < 6:
                attempt(lambda: client.set(f"p|{poster}|{when}", f"{number}.{at}"))
            elif kind < 8:
                attempt(lambda: client.delete(f"p|{poster}|{when}"))
            elif kind == 8:
                attempt(lambda: client.set(f"s|{user}|{poster}", 1))
            else:
                attempt(lambda: client.delete(f"s|{user}|{poster}"))
            if at % 20 == 0:
                time.sleep(0.01)


def kill_watchers(client):
    """Ends the connections that watch; how many they were."""
    watching = [one["id"] for one in attempt(client.client_list) if int(one.get("range-watches", 0))]
    for one in watching:
        attempt(lambda: client.execute_command("CLIENT", "KILL", "ID", one))
    return len(watching)


def disturb(server, how, is_done):
    """Ends connections, or the server, in between; how often."""
    draw, times = random.Random(how), 0
    with headwater.Headwater(port=server.port, decode_responses=True) as client:
        while not is_done() or times < 3:
            if how == "flushes":
                # What cannot be told change by change: the watches read again.
                if draw.random() < 0.5:
                    attempt(client.flushall)
                else:
                    attempt(lambda: client.join_add("timeline", TIMELINE, replace=True))
                attempt(lambda: client.config_set("watch-output-bytes-max", draw.choice([2_000, 8_388_608])))
                times += 1
                time.sleep(0.05 + draw.random() / 5)
            elif how == "restarts":
                server.kill()
                time.sleep(draw.random() / 20)
                server.start()
                times += 1
                time.sleep(0.3 + draw.random() / 3)
            else:
                times += kill_watchers(client)
                time.sleep(0.05 + draw.random() / 10)
    return times


def watched_sync(port, protocol, ask, mirror, finished):
    with headwater.Headwater(port=port, protocol=protocol, decode_responses=True) as client:
        with client.watch_range(*ask, page=7, rest_max=0.2) as watch:
            while not finished(mirror):
                change = watch.get(timeout=0.05)
                if change is not None:
                    mirror.apply(change)
            assert watch.pairs == mirror.pairs
            return watch._follower


def watched_async(port, protocol, ask, mirror, finished):
    async def story():
        async with headwater.asyncio.Headwater(port=port, protocol=protocol, decode_responses=True) as client:
            async with client.watch_range(*ask, page=7, rest_max=0.2) as watch:
                while not finished(mirror):
                    change = await watch.get(timeout=0.05)
                    if change is not None:
                        mirror.apply(change)
                assert watch.pairs == mirror.pairs
                return watch._follower

    return asyncio.run(story())


@pytest.mark.parametrize("watched", [watched_sync, watched_async], ids=["sync", "asyncio"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("how", ["killed clients", "restarts", "flushes"])
def test_each_change_once(protocol, shards, how, watched, tmp_path):
    server = Server(f"--shards={shards}", data=tmp_path / "data")
    try:
        with headwater.Headwater(port=server.port) as client:
            client.join_add("timeline", TIMELINE)
        mirrors = {ask: Mirror() for ask in [("t|ann|", "t|ann}"), ("t|", "t}"), ("p|", "p}")]}
        expected, errors, followers = {}, [], []

        def follow(ask):
            end = time.monotonic() + END

            def finished(mirror):
                assert time.monotonic() < end, f"{ask}: {len(mirror.pairs)} pairs, not {len(expected.get(ask, []))}"
                return expected.get(ask) == mirror.pairs

            try:
                followers.append(watched(server.port, protocol, ask, mirrors[ask], finished))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=follow, args=(ask,)) for ask in mirrors]
        writers = [threading.Thread(target=write, args=(server.port, number, 400)) for number in range(2)]
        for thread in threads:
            thread.start()
        with headwater.Headwater(port=server.port) as client:
            end = time.monotonic() + END
            while sum(int(one["range-watches"]) for one in client.client_list()) < len(mirrors):
                assert time.monotonic() < end
        for writer in writers:
            writer.start()
        times = disturb(server, how, lambda: not any(writer.is_alive() for writer in writers))
        for writer in writers:
            writer.join()
        with headwater.Headwater(port=server.port, decode_responses=True) as client:
            for ask in mirrors:
                expected[ask] = attempt(lambda: client.range(*ask))
            for thread in threads:
                thread.join()
            assert errors == []
            assert times >= 3 and attempt(lambda: client.verify("t|", "t}")) == []
        assert len(mirrors["p|", "p}"].seen) > 40
        assert all((one.reads if how == "flushes" else one.connections) > 1 for one in followers)
    finally:
        server.stop()


@pytest.mark.parametrize("watched", [watched_sync, watched_async], ids=["sync", "asyncio"])
def test_no_change_is_missed_while_connections_end(protocol, watched):
    """As long as the server runs, each single change is told: all numbers of each counter, in order."""
    server = Server("--shards=2")
    try:
        with headwater.Headwater(port=server.port, decode_responses=True) as client:
            mirror, found = Mirror(), []
            end = time.monotonic() + END

            def finished(mirror):
                assert time.monotonic() < end
                return len(mirror.pairs) == 5 and all(value == "200" for value in mirror.pairs.values())

            thread = threading.Thread(
                target=lambda: found.append(watched(server.port, protocol, ("n|", "n}"), mirror, finished))
            )
            thread.start()
            for at in range(1, 201):
                for key in range(5):
                    client.set(f"n|{key}", at)
                if at % 10 == 1:
                    # It has come so far, and misses what is written from here on until it is back.
                    while mirror.pairs.get("n|4") != str(at):
                        assert time.monotonic() < end
                        time.sleep(0.001)
                    assert kill_watchers(client) > 0
            thread.join()
        follower = found[0]
        assert follower.connections > 10 and follower.reads == 1
        told = [change for change in mirror.seen if not change.is_read]
        # What was read at the beginning is a state; from there on every number is told.
        for key in range(5):
            numbers = [int(change.value) for change in mirror.seen if change.key == f"n|{key}"]
            assert numbers == list(range(numbers[0], 201)), numbers
        assert len(told) > 900
    finally:
        server.stop()


def test_a_snapshot_is_optional(client):
    client.join_add("karma", KARMA)
    client.mset({"vote|bob|ann": 1, "vote|bob|eve": 1, "vote|liz|ann": 1})
    with client.watch_prefix("karma|", snapshot=False) as silent, client.watch_prefix("karma|") as loud:
        assert [loud.get(timeout=30)[:3] for _ in range(2)] == [("karma|bob", "2", True), ("karma|liz", "1", True)]
        assert silent.get(timeout=0.2) is None and silent.pairs == loud.pairs == {"karma|bob": "2", "karma|liz": "1"}
        client.delete("vote|liz|ann")
        client.set("vote|bob|tim", 1)
        for watch in (silent, loud):
            changes = sorted(watch.get(timeout=30)[:3] for _ in range(2))
            assert changes == [("karma|bob", "3", False), ("karma|liz", None, False)]
            assert watch.position


def test_flushes_and_joins_are_read_anew(client):
    client.join_add("karma", KARMA)
    client.mset({"vote|bob|ann": 1, "vote|liz|ann": 1})
    with client.watch_prefix("karma|") as watch:
        for expected in [("karma|bob", "1"), ("karma|liz", "1")]:
            assert watch.get(timeout=30)[:2] == expected
        client.flushall()
        assert sorted(watch.get(timeout=30)[:2] for _ in range(2)) == [("karma|bob", None), ("karma|liz", None)]
        client.set("vote|tim|ann", 5)
        assert watch.get(timeout=30)[:2] == ("karma|tim", "1")
        client.join_add("karma", KARMA.replace("count", "sum"), replace=True)
        assert watch.get(timeout=30)[:3] == ("karma|tim", "5", True)
        client.join_drop("karma")
        assert watch.get(timeout=30)[:3] == ("karma|tim", None, True)
        assert watch.get(timeout=0.1) is None


def test_a_reader_that_is_slow_misses_nothing(client):
    """More than the server keeps for it: it is told to read again."""
    client.config_set("watch-output-bytes-max", 100_000)
    try:
        with client.watch_prefix("p|") as watch:
            assert watch.get(timeout=0.1) is None
            for at in range(300):
                client.set(f"p|bob|{at % 30:04}", f"{at} " + "x" * 60_000)
            mirror, expected = Mirror(), client.prefix("p|")
            while mirror.pairs != expected:
                change = watch.get(timeout=60)
                assert change is not None
                mirror.apply(change)
            assert watch._follower.reads > 1
    finally:
        client.config_set("watch-output-bytes-max", 8 << 20)


def test_a_watch_is_closed_from_elsewhere(client):
    watch = client.watch_prefix("p|")
    threading.Timer(0.3, watch.close).start()
    assert list(watch) == [] and watch.get(timeout=1) is None


def test_attempts_end(protocol):
    server = Server()
    with headwater.Headwater(port=server.port, protocol=protocol, retry=None) as client:
        watch = client.watch_prefix("p|", attempts_max=2, rest_max=0.01)
        assert watch.get(timeout=0.2) is None
        server.kill()
        with pytest.raises(redis.ConnectionError):
            watch.get(timeout=60)


def test_what_cannot_be_watched(client):
    client.join_add("posts", "posts|<poster> = pull count p|<poster>|<time>")
    with pytest.raises(headwater.HeadwaterError, match="pull"):
        next(client.watch_prefix("posts|"))
    for wrong in ({"page": 0}, {"heartbeat": 0}):
        with pytest.raises(ValueError):
            client.watch_prefix("p|", **wrong)


def test_a_silent_server_is_asked(client):
    with client.watch_prefix("p|", heartbeat=0.05) as watch:
        assert watch.get(timeout=1) is None
        client.set("p|bob|1", "Hi")
        assert watch.get(timeout=30).value == "Hi"


def test_a_server_that_says_nothing_is_left(client, server):
    """It has stopped: what is asked is not answered, and the connection is made again."""
    with client.watch_prefix("p|", heartbeat=0.2) as watch:
        assert watch.get(timeout=0.5) is None
        before = watch._follower.connections
        server.process.send_signal(signal.SIGSTOP)
        try:
            end = time.monotonic() + END
            while watch._connection is not None and watch._follower.connections == before and time.monotonic() < end:
                if watch.get(timeout=1) is None and isinstance(watch._step, (Connect, Rest)):
                    break
            assert time.monotonic() < end
        finally:
            server.process.send_signal(signal.SIGCONT)
        client.set("p|bob|2", "back")
        assert watch.get(timeout=60).value == "back"


def test_a_task_that_is_cancelled_takes_no_change_along(server, protocol):
    async def story():
        async with headwater.asyncio.Headwater(port=server.port, protocol=protocol) as client:
            await client.flushall()
            async with client.watch_prefix("p|") as watch:
                for at in range(20):
                    with pytest.raises(asyncio.TimeoutError):
                        await asyncio.wait_for(watch.get(), 0.005)
                    await client.set(b"p|1", at)
                    change = await watch.get(timeout=30)
                    assert (change.key, change.value) == (b"p|1", b"%d" % at)

    asyncio.run(story())
