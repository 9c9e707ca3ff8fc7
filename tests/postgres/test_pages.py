"""What reads with a limit load, and loads that are larger than what a load may hold.

    HEADWATER=target/release/headwater python3 -m pytest -q tests/postgres
"""

import pathlib
import signal
import threading

import pytest
import redis
from test_exact import info, postgres, serve  # noqa: F401
from test_live import pairs, pytestmark  # noqa: F401


def table(name, of, key, value):
    return f'[[table]]\nname = "{name}"\nboundary = 1\nsource = "db"\ntable = "{of}"\nkey = {key}\nvalue = "{value}"\n'


def keys(answer):
    """The keys of an answer, in its order."""
    return list(pairs(answer))


def loaded(cache):
    return int(info(cache)["rows_loaded"])


@pytest.mark.parametrize("shards", (1, 2))
def test_a_limit_loads_what_it_shows(postgres, shards):  # noqa: F811
    database = postgres.connect()
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    database.execute("INSERT INTO items SELECT n, 'i' || n FROM generate_series(1, 200000) n")
    headwater = serve(postgres, tables=table("i", "items", '["id"]', "name"), shards=shards)
    most = 10 if shards == 1 else 400
    try:
        cache = headwater.connect()
        first, last = [f"i|{n:010}" for n in range(1, 11)], [f"i|{200000 - n:010}" for n in range(10)]
        assert keys(cache.execute_command("PREFIX", "i|", "LIMIT", 10)) == first
        assert loaded(cache) <= most
        assert keys(cache.execute_command("PREFIX", "i|", "REV", "LIMIT", 10)) == last
        assert loaded(cache) <= 2 * most + 2  # a row beside may be asked for
        # Again, and the next page.
        assert keys(cache.execute_command("PREFIX", "i|", "LIMIT", 10)) == first
        assert loaded(cache) <= 2 * most + 2  # a row beside may be asked for
        page = keys(cache.execute_command("RANGE", first[-1] + "!", "i}", "LIMIT", 10))
        assert page == [f"i|{n:010}" for n in range(11, 21)]
        assert loaded(cache) <= 4 * most
        # What was loaded is followed, new rows in it too.
        database.execute("UPDATE items SET name = 'new' WHERE id IN (5, 199999); DELETE FROM items WHERE id = 3")
        at = cache.execute_command("SOURCE.POSITION", "db")
        shown = pairs(cache.execute_command("PREFIX", "i|", "LIMIT", 10, "AT", at))
        assert list(shown) == [key for key in first if not key.endswith("03")] + ["i|0000000011"]
        assert shown["i|0000000005"] == "new"
        assert loaded(cache) <= 5 * most
        assert cache.execute_command("PREFIX", "i|", "COUNT") == 199999
    finally:
        headwater.end(signal.SIGKILL)


@pytest.mark.parametrize("key", ('["part", "id"]', '["name"]'))
def test_many_that_want_little_of_much_stay_within_the_bound(postgres, key):  # noqa: F811
    database = postgres.connect()
    # The collation of `name` is not that of bytes, or not known to be.
    there = "SELECT quote_ident(collname) FROM pg_collation WHERE collname IN ('und-x-icu', 'C.utf8') ORDER BY collname DESC LIMIT 1"
    collation = database.execute(there).fetchone()[0]
    database.execute(f"CREATE TABLE big (part int, id int, name text COLLATE {collation} UNIQUE, body text, PRIMARY KEY (part, id))")
    database.execute(
        "INSERT INTO big SELECT n % 40, n, 'n' || n, (SELECT string_agg(md5(n::text || m), '') FROM generate_series(1, 125) m) "
        "FROM generate_series(1, 60000) n"
    )
    database.execute("ALTER TABLE big REPLICA IDENTITY FULL")
    headwater = serve(postgres, tables=table("b", "big", key, "body"))
    bound = 160 << 20
    try:
        headwater.connect().config_set("maxmemory", bound)
        answers = []

        def ask():
            answers.append(pairs(headwater.connect().execute_command("PREFIX", "b|", "LIMIT", 3)))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 8 and all(len(answer) == 3 and answer == answers[0] for answer in answers)
        assert loaded(headwater.connect()) <= 3
        status = pathlib.Path(f"/proc/{headwater.process.pid}/status").read_text()
        most = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))
        assert most <= bound, f"{most >> 20} MB"
    finally:
        headwater.end(signal.SIGKILL)


@pytest.mark.parametrize("index", (False, True))
@pytest.mark.parametrize("key", (["poster", "time"], ["name"]))
def test_texts_of_another_collation_are_loaded_in_pages(postgres, key, index):  # noqa: F811
    database = postgres.connect()
    there = "SELECT quote_ident(collname) FROM pg_collation WHERE collname IN ('und-x-icu', 'C.utf8') ORDER BY collname DESC LIMIT 1"
    collation = database.execute(there).fetchone()[0]
    database.execute(
        f"CREATE TABLE big (poster text COLLATE {collation}, time int, name text COLLATE {collation} UNIQUE, body text, PRIMARY KEY (poster, time))"
    )
    # Larger than the bound; most posters begin another one's name, and one has much more than a page.
    database.execute(
        "INSERT INTO big SELECT CASE WHEN n % 3 = 0 THEN 'ann' ELSE 'ann' || n % 40 END, n, 'n' || n, "
        "(SELECT string_agg(md5(n::text || m), '') FROM generate_series(1, 125) m) FROM generate_series(1, 32000) n"
    )
    database.execute("ALTER TABLE big REPLICA IDENTITY FULL")
    if index:
        database.execute(f'CREATE INDEX ON big ({key[0]} COLLATE "C"{"".join(f", {other}" for other in key[1:])})')
    database.execute("ANALYZE big")
    headwater = serve(postgres, tables=table("b", "big", str(key).replace("'", '"'), "body"))
    bound = 120 << 20
    try:
        cache = headwater.connect()
        cache.config_set("maxmemory", bound)
        # All of it is too much, and ends; what came is kept.
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            cache.execute_command("PREFIX", "b|", "COUNT")
        assert loaded(cache) > 10000
        # Longer than what one answer may be.
        first, seen = "b|", []
        while len(seen) < 15800:
            page = keys(cache.execute_command("RANGE", first, "b}", "LIMIT", 3500))
            assert len(page) == 3500, (first, len(page))
            seen, first = seen + page, page[-1] + "!"
        texts = ("replace({0}, '|', '{{}}')", "lpad({0}::text, 10, '0')")
        name = " || '|' || ".join(text.format(column) for text, column in zip(texts, key))
        expected = f"SELECT 'b|' || {name} FROM big ORDER BY ('b|' || {name}) COLLATE \"C\" LIMIT {len(seen)}"
        assert seen == [row[0] for row in database.execute(expected)]
        status = pathlib.Path(f"/proc/{headwater.process.pid}/status").read_text()
        most = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))
        assert most <= bound, f"{most >> 20} MB"
        # Less, all of which fits.
        database.execute("DELETE FROM big WHERE time > 15500")
        at = cache.execute_command("SOURCE.POSITION", "db")
        assert cache.execute_command("PREFIX", "b|", "COUNT", "AT", at) == 15500
    finally:
        headwater.end(signal.SIGKILL)


def test_a_table_that_comes_as_a_whole_takes_its_share_and_one_that_is_too_much_ends(postgres):  # noqa: F811
    database = postgres.connect()
    there = "SELECT quote_ident(collname) FROM pg_collation WHERE collname IN ('und-x-icu', 'C.utf8') ORDER BY collname DESC LIMIT 1"
    collation = database.execute(there).fetchone()[0]
    bound = 48 << 20
    # In their keys' order no index has them; of the bound they are an eighth to more than half.
    sizes = (80000, 110000, 150000, 400000)
    tables = ""
    for count in sizes:
        database.execute(f"CREATE TABLE t{count} (name text COLLATE {collation} PRIMARY KEY, body text)")
        database.execute(f"INSERT INTO t{count} SELECT md5(n::text), repeat('x', 60) FROM generate_series(1, {count}) n")
        tables += table(f"t{count}", f"t{count}", '["name"]', "body")
    database.execute("CREATE TABLE ids (name text COLLATE \"C\" PRIMARY KEY, body text)")
    database.execute("INSERT INTO ids SELECT md5(n::text), repeat('x', 400) FROM generate_series(1, 300000) n")
    headwater = serve(postgres, tables=tables + table("i", "ids", '["name"]', "body"))
    try:
        cache = headwater.connect()
        cache.config_set("maxmemory", bound)
        for count in sizes[:-1]:
            assert cache.execute_command("PREFIX", f"t{count}|", "COUNT") == count
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            cache.execute_command("PREFIX", f"t{sizes[-1]}|", "COUNT")
        # Parts of one are here, so no load of what is between them is too much; all of them are.
        for first in "0123456789abcdef":
            assert len(keys(cache.execute_command("PREFIX", f"i|{first}", "LIMIT", 3))) == 3
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            cache.execute_command("PREFIX", "i|", "COUNT")
        status = pathlib.Path(f"/proc/{headwater.process.pid}/status").read_text()
        most = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))
        assert most <= bound, f"{most / bound:.4f} of the bound"
    finally:
        headwater.end(signal.SIGKILL)


@pytest.mark.parametrize("shards", (1, 2))
def test_a_load_in_parts_is_of_one_state(postgres, shards):  # noqa: F811
    database = postgres.connect()
    database.execute("CREATE TABLE money (id int PRIMARY KEY, amount int, body text)")
    database.execute("INSERT INTO money SELECT n, 0, repeat('x', 400) FROM generate_series(1, 60000) n")
    headwater = serve(postgres, tables=table("m", "money", '["id"]', "JSON (amount, body)"), shards=shards)
    done = threading.Event()

    def pay():
        connection, n = postgres.connect(), 0
        while not done.is_set():
            n += 7919
            one, other = n % 60000 + 1, n * 31 % 60000 + 1
            connection.execute(
                f"UPDATE money SET amount = amount - 1 WHERE id = {one}; UPDATE money SET amount = amount + 1 WHERE id = {other}"
            )

    writer = threading.Thread(target=pay)
    writer.start()
    try:
        cache = headwater.connect()
        shown = pairs(cache.execute_command("PREFIX", "m|"))
        amounts = [int(value[value.index(":") + 1 : value.index(",")]) for value in shown.values()]
        assert len(amounts) == 60000 and int(info(cache)["loads"]) > 2
        if shards == 1:
            assert sum(amounts) == 0 and any(amounts)
    finally:
        done.set()
        writer.join()
        headwater.end(signal.SIGKILL)
