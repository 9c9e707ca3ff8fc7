"""What is read equals the database whatever becomes of its schema, its server and its triggers: each case as somebody met it.

    HEADWATER=target/release/headwater python3 -m pytest -q tests/postgres
"""

import contextlib
import json
import os
import pathlib
import signal
import threading
import time
from types import SimpleNamespace

import psycopg
import pytest
import redis
from test_live import Headwater, Postgres, pairs, parent, pytestmark  # noqa: F401

SCHEMA = [
    "CREATE TYPE mood AS ENUM ('sad', 'glad')",
    "CREATE DOMAIN score AS int CHECK (VALUE >= 0)",
    "CREATE TABLE posts (poster text, time int, tweet text, mood mood DEFAULT 'sad', PRIMARY KEY (poster, time))",
    "CREATE TABLE parts (place text, id int, note text, PRIMARY KEY (place, id)) PARTITION BY LIST (place)",
    "CREATE TABLE part_a PARTITION OF parts FOR VALUES IN ('a')",
    "CREATE TABLE part_b PARTITION OF parts FOR VALUES IN ('b')",
    "INSERT INTO posts SELECT 'bob', n, 'old ' || n FROM generate_series(1, 5) n",
    "INSERT INTO parts SELECT p, n, 'old' FROM unnest('{a,b}'::text[]) p, generate_series(1, 3) n",
]
TABLES = """
[[table]]
name = "p"
source = "db"
table = "posts"
key = ["poster", "time"]
value = "tweet"
write-through = true

[[table]]
name = "m"
source = "db"
table = "posts"
key = ["poster", "time"]
value = "JSON (mood, tweet)"
write-through = true

[[table]]
name = "q"
source = "db"
table = "parts"
key = ["place", "id"]
value = "note"

[[join]]
name = "count"
spec = "count|<poster> = count p|<poster>|<time>"
"""


def source(folder, options="", name="db", user="postgres"):
    return f'[[source]]\nname = "{name}"\nkind = "postgres"\nurl = "postgres://{user}@/postgres?host={folder}{options}"\n'


def serve(postgres, options="", tables=TABLES, shards=1, user="postgres", folder=None):
    class Served(Headwater):
        bounded = False
        CONFIG = source(folder or postgres.folder, options, user=user) + tables

    headwater = Served(postgres, shards)
    await_up(headwater.connect())
    return headwater


def info(cache, name="db"):
    return pairs(cache.execute_command("SOURCE.INFO", name))


def await_up(cache, seconds=30):
    end = time.monotonic() + seconds
    while info(cache)["state"] != "up":
        assert time.monotonic() < end, info(cache)
        time.sleep(0.02)


@pytest.fixture
def postgres():
    made = Postgres("logical")
    with made.connect() as database:
        for statement in SCHEMA:
            database.execute(statement)
    yield made
    made.remove()


def tables_of(database):
    posts = database.execute("SELECT poster, time, tweet, mood FROM posts ORDER BY 1, 2").fetchall()
    return {
        "p": {f"p|{poster}|{at:010}": tweet or "" for poster, at, tweet, _ in posts},
        "q": {f"q|{place}|{at:010}": note for place, at, note in database.execute("SELECT place, id, note FROM parts")},
        "m": {
            f"m|{poster}|{at:010}": database.execute("SELECT json_build_object('mood', %s::text, 'tweet', %s::text)", (mood, tweet))
            .fetchone()[0]
            for poster, at, tweet, mood in posts
        },
    }


def prefix(cache, name, at):
    """What there is at a position. While an altered table is being compared, a read of it is refused, which is no answer."""
    end = time.monotonic() + 60
    while True:
        try:
            return pairs(cache.execute_command("PREFIX", f"{name}|", "AT", at))
        except redis.ResponseError as error:
            if "being compared again" not in str(error) or time.monotonic() > end:
                raise
        time.sleep(0.02)


def read(cache, at):
    found = {name: prefix(cache, name, at) for name in "pqm"}
    found["m"] = {key: json.loads(value) for key, value in found["m"].items()}
    return found


ALTERATIONS = {
    "a column is dropped and another of its name is added": [
        "ALTER TABLE posts DROP tweet, ADD tweet text DEFAULT 'fresh'",
    ],
    "a column is added, filled, and takes the place of another": [
        "BEGIN",
        "ALTER TABLE posts ADD other text",
        "UPDATE posts SET other = upper(tweet)",
        "ALTER TABLE posts DROP tweet",
        "ALTER TABLE posts RENAME other TO tweet",
        "COMMIT",
    ],
    "two columns change names": [
        "ALTER TABLE posts ADD other text DEFAULT 'other'",
        "BEGIN",
        "ALTER TABLE posts RENAME tweet TO third",
        "ALTER TABLE posts RENAME other TO tweet",
        "ALTER TABLE posts RENAME third TO other",
        "COMMIT",
    ],
    "the publication leaves updates out for a moment": [
        "ALTER PUBLICATION headwater_db SET (publish = 'insert')",
        "UPDATE posts SET tweet = 'lost ' || time",
        "ALTER PUBLICATION headwater_db SET (publish = 'insert, update, delete, truncate')",
    ],
    "a table is out of the publication for a moment": [
        "ALTER PUBLICATION headwater_db DROP TABLE posts",
        "UPDATE posts SET tweet = 'lost ' || time",
        "ALTER PUBLICATION headwater_db ADD TABLE posts",
    ],
    "the publication is another one": [
        "DROP PUBLICATION headwater_db",
        "UPDATE posts SET tweet = 'lost ' || time",
    ],
    "a partition is written while it is detached": [
        "ALTER TABLE parts DETACH PARTITION part_b",
        "UPDATE part_b SET note = 'new'",
        "ALTER TABLE parts ATTACH PARTITION part_b FOR VALUES IN ('b')",
    ],
    "a label gets another name": ["ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"],
    "a table takes the place of another": [
        "BEGIN",
        "CREATE TABLE later (LIKE posts INCLUDING ALL)",
        "INSERT INTO later SELECT poster, time, 'later' FROM posts",
        "DROP TABLE posts",
        "ALTER TABLE later RENAME TO posts",
        "COMMIT",
    ],
    "a column gets another type": ["ALTER TABLE posts ALTER tweet TYPE varchar(3) USING left(tweet, 3)"],
}


@pytest.mark.parametrize("options", ["", "&event-trigger=none", "&follow=triggers"])
@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_what_is_read_after_an_alteration_is_what_sql_shows(postgres, alteration, options):
    if "publication" in alteration and "triggers" in options:
        pytest.skip("nothing is published there")
    headwater = serve(postgres, options)
    try:
        cache, database = headwater.connect(), postgres.connect()
        before = cache.execute_command("SOURCE.POSITION", "db")
        assert read(cache, before) == tables_of(database)
        for statement in ALTERATIONS[alteration]:
            database.execute(statement)
        # Positions of the database's own hold across alterations, whether those are told or looked at.
        lsn = str(database.execute("SELECT pg_current_wal_lsn()").fetchone()[0])
        assert (info(cache)["alterations"] == "told") == (options == "")
        assert read(cache, lsn) == tables_of(database)
        lsn = str(database.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0])
        assert read(cache, lsn) == tables_of(database)
        assert read(cache, cache.execute_command("SOURCE.POSITION", "db")) == tables_of(database)
        # What comes after it arrives as well.
        database.execute("UPDATE posts SET tweet = 'end' WHERE time = 2")
        database.execute("UPDATE parts SET note = 'end' WHERE id = 2")
        at = cache.execute_command("SOURCE.POSITION", "db")
        assert read(cache, at) == tables_of(database)
    finally:
        headwater.end(signal.SIGKILL)


def test_whoever_alters_a_table_is_noticed_and_not_kept_from_it(postgres):
    with postgres.connect() as database:
        # One that an older version left.
        database.execute("CREATE SCHEMA headwater_db")
        body = "CREATE FUNCTION headwater_db.altered() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'"
        database.execute(body)
        database.execute(
            "CREATE EVENT TRIGGER headwater_db_altered ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION headwater_db.altered()"
        )
        database.execute("ALTER EVENT TRIGGER headwater_db_altered ENABLE ALWAYS")
    headwater = serve(postgres)
    try:
        cache, database = headwater.connect(), postgres.connect()
        assert read(cache, cache.execute_command("SOURCE.POSITION", "db")) == tables_of(database)
        database.execute("CREATE ROLE plain LOGIN")
        database.execute("ALTER TABLE posts OWNER TO plain")
        with psycopg.connect(f"host={postgres.folder} user=plain dbname=postgres", autocommit=True) as plain:
            plain.execute("CREATE TEMP TABLE passing (id int)")
            plain.execute("ALTER TABLE posts DROP tweet, ADD tweet text DEFAULT 'fresh'")
            at = str(plain.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0])
        assert read(cache, at) == tables_of(database)
        # A foreign table may become a partition.
        tags = database.execute("SELECT evttags FROM pg_event_trigger WHERE evtname = 'headwater_db_altered'").fetchone()[0]
        assert {"ALTER FOREIGN TABLE", "CREATE FOREIGN TABLE", "DROP FOREIGN TABLE", "IMPORT FOREIGN SCHEMA", "CREATE SCHEMA"} <= set(tags)
        # Without our trigger it is found by looking.
        database.execute("DROP SCHEMA headwater_db CASCADE")
        end = time.monotonic() + 30
        while info(cache)["alterations"] == "told":
            assert time.monotonic() < end
            time.sleep(0.02)
        database.execute("ALTER TABLE posts DROP tweet, ADD tweet text DEFAULT 'fresher'")
        assert read(cache, cache.execute_command("SOURCE.POSITION", "db")) == tables_of(database)
    finally:
        headwater.end(signal.SIGKILL)


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (["ALTER TABLE posts ENABLE ROW LEVEL SECURITY"], "row security"),
        (["CREATE TABLE child () INHERITS (posts)"], "inherit"),
        (["ALTER PUBLICATION headwater_db SET (publish = 'insert')"], "publish"),
    ],
)
def test_what_cannot_be_exact_any_more_is_an_error_and_nothing_else(postgres, statements, why):
    database = postgres.connect()
    database.execute("CREATE ROLE reader LOGIN REPLICATION")
    database.execute("GRANT SELECT ON posts, parts TO reader")
    database.execute("CREATE PUBLICATION headwater_db FOR TABLE posts, parts WITH (publish_via_partition_root = true)")
    headwater = serve(postgres, user="reader")
    try:
        cache = headwater.connect()
        assert read(cache, cache.execute_command("SOURCE.POSITION", "db")) == tables_of(database)
        for statement in statements:
            database.execute(statement)
        at = cache.execute_command("SOURCE.POSITION", "db")
        with pytest.raises(redis.ResponseError, match=why):
            cache.execute_command("PREFIX", "p|", "AT", at)
        # A range that nobody had read is none the better.
        with pytest.raises(redis.ResponseError, match=why):
            cache.execute_command("PREFIX", "p|nobody|")
    finally:
        headwater.end(signal.SIGKILL)


@pytest.mark.parametrize("options", ["", "&event-trigger=none"])
def test_columns_that_are_not_mapped_change_nothing(postgres, options):
    headwater = serve(postgres, options)
    try:
        cache, database = headwater.connect(), postgres.connect()
        assert read(cache, cache.execute_command("SOURCE.POSITION", "db")) == tables_of(database)
        resets = info(cache)["resets"]
        database.execute("ALTER TABLE posts ADD extra int DEFAULT 7")
        database.execute("UPDATE posts SET tweet = 'new' WHERE time = 3")
        database.execute("CREATE TABLE another (id int)")
        database.execute("CREATE INDEX ON posts (tweet)")
        database.execute("ALTER TABLE posts DROP extra")
        database.execute("ANALYZE")
        database.execute("UPDATE posts SET tweet = 'newer' WHERE time = 4")
        assert read(cache, cache.execute_command("SOURCE.POSITION", "db")) == tables_of(database)
        time.sleep(1.2)
        assert info(cache)["resets"] == resets
    finally:
        headwater.end(signal.SIGKILL)


@pytest.mark.parametrize("several_hosts", [False, True])
@pytest.mark.parametrize("options", ["", "&follow=triggers", "&slot=temporary"])
def test_a_standby_with_less_history_takes_over(postgres, several_hosts, options):
    postgres.end(signal.SIGINT)
    standby = Postgres("logical", of=postgres)
    open(f"{standby.folder}/data/standby.signal", "w").close()
    postgres.start()
    if several_hosts:
        standby.start()
    folder = f"{postgres.folder},{standby.folder}" if several_hosts else None
    headwater = serve(postgres, options, folder=folder)
    try:
        cache, database = headwater.connect(), postgres.connect()
        # Enough that the other's log is not as long for a while.
        database.execute("INSERT INTO parts SELECT 'b', n, repeat('x', 500) FROM generate_series(10, 20000) n")
        database.execute("UPDATE posts SET tweet = 'lost'")
        database.execute("INSERT INTO posts VALUES ('bob', 99, 'lost')")
        at = cache.execute_command("SOURCE.POSITION", "db")
        assert read(cache, at) == tables_of(database)
        assert cache.get("count|bob") == "6"
        database.close()
        postgres.end(signal.SIGKILL)
        if several_hosts:
            reached = standby
        else:
            os.rename(f"{postgres.folder}/data", f"{postgres.folder}/before")
            os.rename(f"{standby.folder}/data", f"{postgres.folder}/data")
            postgres.start()
            reached = postgres
        with reached.connect() as database:
            database.execute("SELECT pg_promote()")
            database.execute("INSERT INTO posts VALUES ('bob', 50, 'kept')")
            expected = tables_of(database)
        end = time.monotonic() + 30
        while True:
            # Whatever is said to be as of a position of the server that is there is what it has.
            with contextlib.suppress(redis.ResponseError):
                at = cache.execute_command("SOURCE.POSITION", "db")
                assert read(cache, at) == expected
                break
            assert time.monotonic() < end, info(cache)
            time.sleep(0.05)
        assert cache.get("count|bob") == "6"
        assert info(cache)["state"] == "up"
        with reached.connect() as database:
            database.execute("DELETE FROM posts WHERE time < 4")
            at = cache.execute_command("SOURCE.POSITION", "db")
            assert read(cache, at) == tables_of(database)
            at = str(database.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0])
            assert read(cache, at) == tables_of(database)
        cache.execute_command("SET", "p|bob|0000000077", "through")
        with reached.connect() as database:
            assert database.execute("SELECT tweet FROM posts WHERE time = 77").fetchone() == ("through",)
    finally:
        headwater.end(signal.SIGKILL)
        standby.remove()


def test_a_standby_that_keeps_the_slot_goes_on(postgres):
    with postgres.connect() as database:
        if database.info.server_version < 170000:
            pytest.skip("standbys keep slots from PostgreSQL 17 on")
    postgres.end(signal.SIGINT)
    of = f"host={postgres.folder} user=postgres dbname=postgres"
    following = ["primary_slot_name=standby", "hot_standby_feedback=on", "sync_replication_slots=on", f"primary_conninfo={of}"]
    standby = Postgres("logical", following, of=postgres)
    open(f"{standby.folder}/data/standby.signal", "w").close()
    postgres.settings = ["synchronized_standby_slots=standby"]
    postgres.start()
    with postgres.connect() as database:
        database.execute("SELECT pg_create_physical_replication_slot('standby', true)")
    standby.start()
    headwater = serve(postgres, folder=f"{postgres.folder},{standby.folder}")
    try:
        cache, database = headwater.connect(), postgres.connect()
        assert read(cache, cache.execute_command("SOURCE.POSITION", "db")) == tables_of(database)
        end = time.monotonic() + 60
        there = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'headwater_db' AND synced AND NOT temporary"
        while True:
            with standby.connect() as beside:
                if beside.execute(there).fetchone()[0]:
                    break
            assert time.monotonic() < end
            # The slot has to come as far as the standby wants it.
            database.execute("SELECT pg_log_standby_snapshot()")
            database.execute("UPDATE posts SET tweet = 'on the way'")
            time.sleep(0.2)
        database.execute("UPDATE posts SET tweet = 'before'")
        assert read(cache, cache.execute_command("SOURCE.POSITION", "db")) == tables_of(database)
        resets = info(cache)["resets"]
        database.close()
        postgres.end(signal.SIGKILL)
        with standby.connect() as database:
            database.execute("SELECT pg_promote()")
            database.execute("INSERT INTO posts VALUES ('bob', 50, 'after')")
            end = time.monotonic() + 30
            while True:
                with contextlib.suppress(redis.ResponseError):
                    assert read(cache, cache.execute_command("SOURCE.POSITION", "db")) == tables_of(database)
                    break
                assert time.monotonic() < end, info(cache)
                time.sleep(0.05)
        assert info(cache)["resets"] == resets
    finally:
        headwater.end(signal.SIGKILL)
        standby.remove()


@pytest.mark.parametrize("shards", [1, 3])
def test_what_was_not_written_is_not_said_to_be(postgres, shards):
    headwater = serve(postgres, shards=shards)
    try:
        cache, database = headwater.connect(), postgres.connect()
        assert cache.delete("p|bob|0000000001", "p|bob|0000000077", "p|nobody|0000000001") == 1
        assert cache.delete("p|bob|0000000001") == 0
        database.execute("CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        database.execute(
            "CREATE TRIGGER skip BEFORE INSERT OR UPDATE OR DELETE ON posts FOR EACH ROW WHEN (pg_trigger_depth() = 0) "
            "EXECUTE FUNCTION skip()"
        )
        for key in ("p|bob|0000000002", "p|bob|0000000200"):
            with pytest.raises(redis.ResponseError, match="trigger"):
                cache.set(key, "skipped")
        with pytest.raises(redis.ResponseError, match="trigger"):
            cache.mset({"p|bob|0000000002": "skipped", "p|ann|0000000200": "skipped"})
        assert cache.delete("p|bob|0000000002") == 0
        assert cache.get("p|bob|0000000002") == "old 2"
        database.execute("DROP TRIGGER skip ON posts")
        cache.set("m|bob|0000000002", '{"mood": "glad"}')
        assert cache.get("p|bob|0000000002") == "old 2"
        cache.set("m|bob|0000000300", '{"tweet": "new"}')
        rows = database.execute("SELECT time, mood::text, tweet FROM posts WHERE time IN (2, 300) ORDER BY 1").fetchall()
        assert rows == [(2, "glad", "old 2"), (300, "sad", "new")]
        for wrong, why in [('{"colour": "red"}', "colour"), ("[1]", "JSON object"), ('{"mood": "glad"', "JSON object")]:
            with pytest.raises(redis.ResponseError, match=why):
                cache.set("m|bob|0000000002", wrong)
        cache.set("m|bob|0000000002", '{"tweet": null}')
        assert database.execute("SELECT mood::text, tweet FROM posts WHERE time = 2").fetchone() == ("glad", None)
    finally:
        headwater.end(signal.SIGKILL)


def test_a_transaction_that_is_too_large_is_loaded_again_even_if_it_is_the_first(postgres):
    headwater = serve(postgres, "&transaction-bytes-max=1024")
    try:
        cache, database = headwater.connect(), postgres.connect()
        assert len(pairs(cache.execute_command("PREFIX", "p|"))) == 5
        database.execute("UPDATE posts SET tweet = repeat('x', 1000) || time")
        at = cache.execute_command("SOURCE.POSITION", "db")
        assert read(cache, at) == tables_of(database)
        database.execute("UPDATE posts SET tweet = 'short' WHERE time = 1")
        at = cache.execute_command("SOURCE.POSITION", "db")
        assert read(cache, at) == tables_of(database)
    finally:
        headwater.end(signal.SIGKILL)


def test_a_domain_over_numbers_is_a_number(postgres):
    database = postgres.connect()
    database.execute("CREATE DOMAIN points AS score")
    database.execute("CREATE TABLE games (id points PRIMARY KEY, score score, text text)")
    database.execute("INSERT INTO games VALUES (7, 3, 'x')")
    tables = '[[table]]\nname = "g"\nsource = "db"\ntable = "games"\nkey = ["id"]\nvalue = "JSON (id, score)"\n'
    headwater = serve(postgres, tables=tables)
    try:
        cache = headwater.connect()
        assert cache.get("g|0000000007") == '{"id":7,"score":3}'
        database.execute("UPDATE games SET score = 4")
        at = cache.execute_command("SOURCE.POSITION", "db")
        assert pairs(cache.execute_command("PREFIX", "g|", "AT", at)) == {"g|0000000007": '{"id":7,"score":4}'}
    finally:
        headwater.end(signal.SIGKILL)


@pytest.mark.parametrize("database", ["postgres", "other"])
def test_a_slot_that_somebody_else_reads_is_left_alone(postgres, database):
    with postgres.connect() as connection:
        if database == "other":
            connection.execute("CREATE DATABASE other")
    first = serve(postgres, "&slot=kept")
    other = None
    try:

        class Second(Headwater):
            bounded = False
            CONFIG = source(postgres.folder, f"&slot=kept&dbname={database}")

        os.mkdir(f"{postgres.folder}/second")
        other = Second(SimpleNamespace(folder=f"{postgres.folder}/second"))
        cache, beside = first.connect(), other.connect()
        end = time.monotonic() + 30
        while "slot-name" not in info(beside).get("reason", ""):
            assert time.monotonic() < end, info(beside)
            time.sleep(0.05)
        assert info(beside)["state"] == "down"
        assert info(cache)["state"] == "up" and info(cache)["reconnections"] == "0"
        first.end(signal.SIGTERM)
        await_up(beside, 60)
    finally:
        for headwater in filter(None, (first, other)):
            headwater.end(signal.SIGKILL)


def processes(postgres):
    main = postgres.process.pid
    return [main] + [int(child.name) for child in pathlib.Path("/proc").glob("[0-9]*") if parent(child) == main]


@pytest.mark.parametrize("options", ["", "&follow=triggers"])
def test_a_server_that_does_not_answer_is_down_until_it_does(postgres, options):
    headwater = serve(postgres, f"{options}&silence-ms=1000&timeout-ms=1000")
    try:
        cache, database = headwater.connect(), postgres.connect()
        assert cache.get("p|bob|0000000001") == "old 1"
        assert float(info(cache)["seconds_since_heard"]) < 60
        stopped = processes(postgres)
        for process in stopped:
            os.kill(process, signal.SIGSTOP)
        end = time.monotonic() + 30
        while info(cache)["state"] == "up":
            assert time.monotonic() < end
            time.sleep(0.05)
        # A statement may be late before the server counts as silent.
        while "answer" not in info(cache)["reason"] or float(info(cache)["seconds_since_heard"]) < 0.9:
            assert time.monotonic() < end, info(cache)
            time.sleep(0.05)
        # What was loaded is there all the same.
        assert cache.get("p|bob|0000000001") == "old 1"
        for process in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
        await_up(cache)
        database.execute("UPDATE posts SET tweet = 'new'")
        at = cache.execute_command("SOURCE.POSITION", "db")
        assert read(cache, at) == tables_of(database)
    finally:
        headwater.end(signal.SIGKILL)


def test_what_blocks_writers_blocks_nobody_else(postgres):
    headwater = serve(postgres)
    try:
        with postgres.connect() as blocking, postgres.connect() as database:
            # Whoever writes while a table is published has loads of it wait.
            assert len(pairs(headwater.connect().execute_command("PREFIX", "q|b|"))) == 3
            with blocking.transaction():
                blocking.execute("SELECT * FROM posts WHERE time = 1 FOR UPDATE")
                held = [headwater.connect() for _ in range(6)]
                for number, client in enumerate(held):
                    client.connection = client.connection_pool.get_connection()
                    client.connection.send_command("SET", "p|bob|0000000001", f"blocked {number}")
                end = time.monotonic() + 30
                waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headwater' AND wait_event_type = 'Lock'"
                while database.execute(waiting).fetchone()[0] < 4:
                    assert time.monotonic() < end
                    time.sleep(0.01)
                cache = headwater.connect()
                assert len(pairs(cache.execute_command("PREFIX", "q|a|"))) == 3
                assert cache.set("p|bob|0000000002", "unrelated")
                assert cache.execute_command("SOURCE.POSITION", "db")
            for client in held:
                assert client.connection.read_response() in (b"OK", "OK")
    finally:
        headwater.end(signal.SIGKILL)


def test_a_connection_that_is_dead_costs_no_write(postgres):
    headwater = serve(postgres)
    try:
        cache, database = headwater.connect(), postgres.connect()
        for number in range(20):
            cache.set("p|bob|0000000001", f"before {number}")
            database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'headwater' AND backend_type = 'client backend'"
            )
            cache.set("p|bob|0000000001", f"after {number}")
            assert database.execute("SELECT tweet FROM posts WHERE time = 1").fetchone() == (f"after {number}",)
    finally:
        headwater.end(signal.SIGKILL)


def test_writers_of_the_same_keys_do_not_wait_in_a_circle(postgres):
    headwater = serve(postgres)
    wrong = []

    def write(step):
        cache = headwater.connect()
        keys = [f"p|bob|{at:010}" for at in range(1, 30)][::step]
        for number in range(40):
            try:
                cache.mset({key: f"{step} {number}" for key in keys})
            except redis.ResponseError as error:
                wrong.append(str(error))

    try:
        threads = [threading.Thread(target=write, args=(step,)) for step in (1, -1, 1, -1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        logged = open(f"{postgres.folder}/log").read()
        assert "deadlock" not in logged
    finally:
        headwater.end(signal.SIGKILL)


def test_loads_take_their_share_of_memory_and_no_more(postgres):
    database = postgres.connect()
    database.execute("CREATE TABLE big (part int, id int, body text, PRIMARY KEY (part, id))")
    database.execute("INSERT INTO big SELECT n % 40, n, repeat(md5(n::text), 125) FROM generate_series(1, 60000) n")
    tables = '[[table]]\nname = "b"\nboundary = 1\nsource = "db"\ntable = "big"\nkey = ["part", "id"]\nvalue = "body"\n'
    headwater = serve(postgres, tables=tables)
    bound = 160 << 20
    try:
        headwater.connect().config_set("maxmemory", bound)
        refused = []

        def ask():
            try:
                headwater.connect().execute_command("PREFIX", "b|", "COUNT")
            except redis.ResponseError as error:
                refused.append(str(error))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == 8 and all("SOURCE" in text for text in refused)
        assert any("maxmemory" in text for text in refused), refused
        # A part that fits is loaded all the same.
        assert headwater.connect().execute_command("PREFIX", "b|0000000001|", "COUNT") == 1500
        status = pathlib.Path(f"/proc/{headwater.process.pid}/status").read_text()
        most = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))
        assert most <= bound, f"{most >> 20} MB"
    finally:
        headwater.end(signal.SIGKILL)
