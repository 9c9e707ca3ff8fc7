"""Parts of json and jsonb, changed letters, and generated columns, as values: equal to what SQL gives, loaded and followed.

    HEADWATER=target/release/headwater python3 -m pytest -q tests/postgres/test_values.py

HEADWATER_PG_SEED says which documents.
"""

import json
import random
import signal

import pytest
import redis
from test_exact import postgres, serve  # noqa: F401
from test_live import SEED, pairs, pytestmark  # noqa: F401

NAMES = ("a", "b", "it's", "é", 'q"', "")
PATHS = ("->'a'", "->>'a'", "->'a'->'b'", "->'b'->>'a'", "->0", "->>0", "->-1->>'a'", "->'a'->>-1", "->>'it''s'", "->'é'->>'q\"'", "->>''", "->'a'->0->'b'->>0")


def document(rng, depth=0):
    """A JSON text, with blanks and fields of one name."""
    blank = rng.choice(("", " ", "\n", "\t "))
    match rng.randrange(8 if depth < 3 else 5):
        case 0:
            return rng.choice(("null", "true", "false", "0", "-1.50", "1e3", "12345678901234567890.12"))
        case 1 | 2:
            return rng.choice(('"x"', '"\\u00e9\\n\\"]}"', '"\\ud83d\\ude00"', '"{,:[ "', '""', '"' + "y" * 40 + '"'))
        case 3 | 5:
            return "[" + f"{blank},{blank}".join(document(rng, depth + 1) for _ in range(rng.randrange(4))) + f"{blank}]"
        case _:
            fields = (f"{json.dumps(rng.choice(NAMES))}{blank}:{blank}{document(rng, depth + 1)}" for _ in range(rng.randrange(5)))
            return "{" + blank + ",".join(fields) + "}"


@pytest.mark.parametrize("options", ("", "&follow=triggers"))
def test_parts_of_documents_are_those_of_sql(postgres, options):  # noqa: F811
    rng = random.Random(SEED)
    database = postgres.connect()
    database.execute("CREATE TABLE docs (id int PRIMARY KEY, j json, b jsonb, n int DEFAULT 0)")
    # One is so long that the log leaves it out where it was not changed.
    long = json.dumps({"a": ["".join(rng.choices("abcdefgh", k=20000))], "b": {"a": "end"}})
    for at in range(300):
        text = long if at == 7 else None if at == 8 else document(rng)
        database.execute("INSERT INTO docs VALUES (%s, %s::json, %s::jsonb)", (at, text, text))
    headwater = serve(postgres, options, tables="")
    cache = headwater.connect()
    # Each table that triggers tell of is another trigger, and has the others compared again.
    paths = rng.sample(PATHS, 2) if options else PATHS
    views = {f"v{at}": f"{column}{path}" for at, (column, path) in enumerate((c, p) for c in "jb" for p in paths)}

    def equal():
        at = cache.execute_command("SOURCE.POSITION", "db")
        for name, expression in views.items():
            sql = f"SELECT id, coalesce(({expression})::text, '') FROM docs"
            expected = {f"{name}|{row:010}": text for row, text in database.execute(sql).fetchall()}
            assert pairs(cache.execute_command("PREFIX", f"{name}|", "AT", at)) == expected, expression
        sql = "SELECT id, jsonb_build_object('id', id, 'first', j->'a', 'Second', b->>'b', 'n', n) FROM docs"
        expected = {f"o|{row:010}": made for row, made in database.execute(sql).fetchall()}
        found = pairs(cache.execute_command("PREFIX", "o|", "AT", at))
        assert {key: json.loads(value) for key, value in found.items()} == expected

    try:
        for name, expression in [*views.items(), ("o", "JSON (id, j->'a' AS first, b ->> 'b' as \"Second\", n)")]:
            words = ("BOUNDARY", 1, "SOURCE", "db", "TABLE", "docs", "KEY", "(id)", "VALUE", expression)
            cache.execute_command("TABLE.SET", name, *words)
        equal()
        for turn in range(4):
            for at in rng.sample(range(9, 300), 20):
                text = document(rng)
                database.execute("UPDATE docs SET j = %s::json, b = %s::jsonb WHERE id = %s", (text, text, at))
            database.execute("UPDATE docs SET n = n + 1 WHERE id % 3 = 1")
            database.execute("UPDATE docs SET b = '{\"b\": \"changed\"}' WHERE id = 8")
            database.execute(f"DELETE FROM docs WHERE id = {20 + turn}")
            equal()
        words = ("SOURCE", "db", "TABLE", "docs", "KEY", "(id)", "VALUE", "b->>'a'", "WRITE", "THROUGH")
        cache.execute_command("TABLE.SET", "v0", *words)
        with pytest.raises(redis.ResponseError, match="has only a part of b"):
            cache.set("v0|0000000001", "x")
    finally:
        headwater.end(signal.SIGKILL)


WORDS = ["Ann", "ANN [1]", "TITLE", "iI", "", "ÉCOLE", "Straße", "ΣΊΣΥΦΟΣ", "İstanbul", "IĞDIR", "two\nLines", "x" * 9000 + "É", "Y" * 9000, None]


@pytest.mark.parametrize("follow", ["", "&follow=triggers"])
def test_letters_are_changed_as_the_database_does_it(postgres, follow):  # noqa: F811
    rng = random.Random(SEED)
    database = postgres.connect()
    turkish = database.execute("SELECT 1 FROM pg_collation WHERE collname = 'tr-x-icu'").fetchone()
    database.execute("CREATE TABLE names (id int PRIMARY KEY, name text, short varchar(40) COLLATE \"C\", t text %s, n int)" % ('COLLATE "tr-x-icu"' if turkish else ""))
    database.execute("ALTER TABLE names ALTER name SET STORAGE EXTERNAL")
    headwater = serve(postgres, follow, tables="")
    cache = headwater.connect()
    views = {
        "l": ("lower(name)", "coalesce(lower(name), '')"),
        "u": ("upper( name )", "coalesce(upper(name), '')"),
        "s": ("UPPER(short)", "coalesce(upper(short), '')"),
        "t": ("lower(t)", "coalesce(lower(t), '')"),
        "v": ("upper(t)", "coalesce(upper(t), '')"),
        "o": ("JSON (id, lower(name) AS name, name AS whole, lower(t) AS t, n)", "json_build_object('id', id, 'name', lower(name), 'whole', name, 't', lower(t), 'n', n)::text"),
    }

    def put(at):
        row = {column: rng.choice(WORDS) for column in ("name", "short", "t")}
        row["short"] = row["short"] and row["short"][:40]
        row |= {"id": at, "n": rng.randrange(9)}
        sql = "INSERT INTO names (id, name, short, t, n) VALUES (%(id)s, %(name)s, %(short)s, %(t)s, %(n)s) ON CONFLICT (id) DO UPDATE SET name = excluded.name, short = excluded.short, t = excluded.t"
        database.execute(sql, row)

    def equal():
        at = cache.execute_command("SOURCE.POSITION", "db")
        for table, (_, sql) in views.items():
            found = pairs(cache.execute_command("PREFIX", f"{table}|", "AT", at))
            expected = {f"{table}|{row:010}": value for row, value in database.execute(f"SELECT id, {sql} FROM names").fetchall()}
            if table == "o":
                found, expected = ({key: json.loads(value) for key, value in one.items()} for one in (found, expected))
            assert found == expected, table

    try:
        for at in range(60):
            put(at)
        for table, (value, _) in views.items():
            cache.execute_command("TABLE.SET", table, "BOUNDARY", 1, "SOURCE", "db", "TABLE", "names", "KEY", "(id)", "VALUE", value)
        # The condition is of the column, and the value of what is computed of it.
        cache.execute_command("TABLE.SET", "w", "BOUNDARY", 1, "SOURCE", "db", "TABLE", "names", "KEY", "(id)", "VALUE", "lower(name)", "WHERE", "name = 'ANN [1]'")
        equal()
        for _ in range(12):
            for _ in range(10):
                put(rng.randrange(80))
            database.execute("UPDATE names SET n = n + 1 WHERE id % 5 = 1")
            database.execute("DELETE FROM names WHERE id = %s", (rng.randrange(80),))
            equal()
            at = cache.execute_command("SOURCE.POSITION", "db")
            expected = {f"w|{row:010}": "ann [1]" for (row,) in database.execute("SELECT id FROM names WHERE name = 'ANN [1]'").fetchall()}
            assert pairs(cache.execute_command("PREFIX", "w|", "AT", at)) == expected
        # A column of the key may be called as the function is.
        database.execute("CREATE TABLE odd (lower int PRIMARY KEY, name text)")
        database.execute("INSERT INTO odd SELECT n, 'Name É ' || n FROM generate_series(1, 3000) n")
        cache.execute_command("TABLE.SET", "odd", "SOURCE", "db", "TABLE", "odd", "KEY", "(lower)", "VALUE", "lower(name)")
        first = pairs(cache.execute_command("PREFIX", "odd|", "LIMIT", 5))
        assert first == {f"odd|{n:010}": f"name é {n}" for n in range(1, 6)}
        with pytest.raises(redis.ResponseError, match="for text and varchar, and the column n is of type int4"):
            cache.execute_command("TABLE.SET", "q", "SOURCE", "db", "TABLE", "names", "KEY", "(id)", "VALUE", "lower(n)")
        cache.execute_command("TABLE.SET", "l", "SOURCE", "db", "TABLE", "names", "KEY", "(id)", "VALUE", "lower(name)", "WRITE", "THROUGH")
        with pytest.raises(redis.ResponseError, match="is computed from name"):
            cache.set("l|0000000001", "x")
    finally:
        headwater.end(signal.SIGKILL)


def test_other_expressions_are_columns_that_the_database_computes(postgres):  # noqa: F811
    database = postgres.connect()
    database.execute("CREATE TABLE people (id int PRIMARY KEY, name text, age int)")
    database.execute("INSERT INTO people SELECT n, 'Name ' || n, n FROM generate_series(1, 50) n")
    newer = database.info.server_version >= 180000
    headwater = serve(postgres, "" if newer else "&follow=triggers", tables="")
    logged = serve(postgres, "&slot-name=other", tables="")
    cache = headwater.connect()

    def declare(value, cache=cache):
        words = ("BOUNDARY", 1, "SOURCE", "db", "TABLE", "people", "KEY", "(id)", "VALUE", value)
        return cache.execute_command("TABLE.SET", "p", *words)

    def equal():
        at = cache.execute_command("SOURCE.POSITION", "db")
        expected = {f"p|{row:010}": name.title() for row, name in database.execute("SELECT id, name FROM people").fetchall()}
        assert pairs(cache.execute_command("PREFIX", "p|", "AT", at)) == expected

    try:
        with pytest.raises(redis.ResponseError) as refused:
            declare("initcap(name)")
        statement = str(refused.value).split("Have PostgreSQL compute it: ")[1].split(", and name")[0]
        assert statement == "ALTER TABLE people ADD derived text GENERATED ALWAYS AS (initcap(name)) STORED"
        database.execute(statement)
        with pytest.raises(redis.ResponseError, match="generated column derived of public.people") as refused:
            declare("derived", logged.connect())
        if newer:
            database.execute(str(refused.value).split("people: ")[1].removesuffix(")") + ")")
        declare("derived")
        equal()
        for change in ("UPDATE people SET name = upper(name) WHERE id < 9", "UPDATE people SET age = 3", "DELETE FROM people WHERE id = 2"):
            database.execute(change)
            equal()
        with pytest.raises(redis.ResponseError, match="can be in values alone"):
            cache.execute_command("TABLE.SET", "q", "SOURCE", "db", "TABLE", "people", "KEY", "(derived)", "VALUE", "name")
        with pytest.raises(redis.ResponseError, match="is of type text"):
            declare("name->'a'")
    finally:
        headwater.end(signal.SIGKILL)
        logged.end(signal.SIGKILL)
