"""Joins over PostgreSQL's tables in a cluster of several shards, each of which follows the database for itself: the same random histories as with one
process, while nodes end in all manners and others take over their shards, beside all that is done to the database.

It needs a real `nats-server` on the path as well, and is skipped without one.
"""

import pathlib
import random
import signal
import sys
import tempfile

import pytest
import redis
from test_live import PROGRAMS, SEED, Headwater, History, Postgres

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from nodes import NATS, Cluster, eventually  # noqa: E402

# Which shard each node is for.
OF = (0, 1, 2, 1)

pytestmark = pytest.mark.skipif(not PROGRAMS or NATS is None, reason="PostgreSQL is not installed, or there is no nats-server on the path")


class Nodes:
    """A cluster in the place of one server: any node is asked, and any one ends."""

    def __init__(self, postgres, seed):
        self.random = random.Random(seed)
        self.folder = tempfile.TemporaryDirectory(prefix="hw-cluster-")
        config = pathlib.Path(self.folder.name) / "headwater.toml"
        config.write_text(Headwater.CONFIG.replace("FOLDER", postgres.folder))
        self.cluster = Cluster(pathlib.Path(self.folder.name), OF, ["--config", str(config)])
        self.ended = None
        eventually(lambda: all(self.answers(at) for at in range(len(OF))))

    def client(self, at):
        return redis.Redis(port=self.cluster.ports[at], decode_responses=True, socket_timeout=30)

    def answers(self, at):
        """Whether a node answers, and all shards to it."""
        return self.client(at).execute_command("SOURCE.LIST") and self.client(at).execute_command("PREFIX", "posts|") is not None

    def connect(self):
        return self.client(self.random.choice([at for at in range(len(OF)) if at != self.ended]))

    def end(self, how):
        self.ended = self.random.randrange(len(OF))
        node = self.cluster.nodes[self.ended]
        node.send_signal(how)
        node.wait()

    def start(self):
        # Whoever stands by for its shard may have taken it over meanwhile.
        self.cluster.nodes[self.ended] = self.cluster.start(self.ended)
        self.ended = None

    def close(self):
        self.cluster.end()
        self.folder.cleanup()


@pytest.mark.parametrize("wal_level", ["logical", "replica"])
def test_joins_of_several_shards_equal_the_same_joins_in_sql(wal_level):
    postgres = Postgres(wal_level)
    try:
        history = History(postgres, SEED, lambda: Nodes(postgres, SEED))
        nodes = history.headwater
        try:
            history.run()
            eventually(lambda: all(nodes.answers(at) for at in range(len(OF))))
            for _ in OF:
                history.compare()
        finally:
            nodes.close()
        print(history.counts)
        assert min(history.counts["written"], history.counts["read"]) > 50
        assert history.counts["awaited"] > 5
        assert min(history.counts["altered"], history.counts["failed over"]) > 0
    finally:
        postgres.remove()


def test_tables_are_declared_and_written_through_any_node():
    postgres = Postgres("logical")
    try:
        with postgres.connect() as database:
            database.execute("CREATE TABLE posts (poster text, time int, tweet text, PRIMARY KEY (poster, time))")
            database.execute("CREATE TABLE subs (who text, poster text, PRIMARY KEY (who, poster))")
            database.execute("INSERT INTO posts SELECT 'p' || n % 9, n, 'old ' || n FROM generate_series(1, 90) n")
            database.execute("INSERT INTO subs SELECT 'u' || n % 5, 'p' || n % 9 FROM generate_series(1, 45) n")

        class Plain(Nodes):
            def answers(self, at):
                return self.client(at).execute_command("JOIN.LIST") is not None

        source = Headwater.CONFIG[: Headwater.CONFIG.index("[[table]]")]
        try:
            config, Headwater.CONFIG = Headwater.CONFIG, source
            nodes = Plain(postgres, SEED)
        finally:
            Headwater.CONFIG = config
        try:
            clients = [nodes.client(at) for at in range(len(OF))]
            posts = "TABLE.SET p SOURCE db TABLE posts KEY (poster, time) VALUE tweet WRITE THROUGH"
            eventually(lambda: clients[2].execute_command(*posts.split()) is not None)
            eventually(lambda: clients[1].execute_command(*"TABLE.SET s SOURCE db TABLE subs KEY (who, poster) VALUE EMPTY".split()) is not None)
            join = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"
            eventually(lambda: clients[0].execute_command("JOIN.ADD", "timeline", join) is not None)

            def timelines(client, position):
                found = {}
                for user in range(5):
                    answer = client.execute_command("PREFIX", f"t|u{user}|", "AT", position)
                    found |= answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2]))
                return found

            def expected():
                with postgres.connect() as database:
                    rows = database.execute("SELECT who, time, poster, tweet FROM subs JOIN posts USING (poster)").fetchall()
                    return {f"t|{who}|{at:010}|{poster}": tweet for who, at, poster, tweet in rows}

            for at, client in enumerate(clients):
                # One row, and rows of several shards, through whichever node.
                assert client.set(f"p|p1|{1000 + at:010}", f"new {at}")
                assert client.mset({f"p|p{n}|{2000 + at:010}": f"many {at}" for n in range(9)})
                assert client.delete(f"p|p2|{2 + 9 * at:010}", "p|p3|0000000003", "p|none|0000000001") == (2 if at == 0 else 1)
                position = client.execute_command("SOURCE.POSITION", "db")
                for other in clients:
                    assert timelines(other, position) == expected()
            info = clients[0].execute_command("SOURCE.INFO", "db")
            assert "up" in str(info), info
            with postgres.connect() as database:
                slots = [name for (name,) in database.execute("SELECT slot_name FROM pg_replication_slots ORDER BY 1")]
            assert [slot.startswith(f"headwater_db_shard{shard}") for shard, slot in enumerate(slots)] == [True] * 3
            # All of it is there again when all have ended.
            for node in nodes.cluster.nodes:
                node.send_signal(signal.SIGKILL)
                node.wait()
            nodes.cluster.nodes = [nodes.cluster.start(at) for at in range(len(OF))]
            position = eventually(lambda: nodes.client(3).execute_command("SOURCE.POSITION", "db"))
            for at in range(len(OF)):
                assert eventually(lambda at=at: timelines(nodes.client(at), position)) == expected()
        finally:
            nodes.close()
    finally:
        postgres.remove()
