"""SOURCE.CHECK: what a mapping would need, told before anything is changed.

    HEADWATER=target/release/headwater python3 -m pytest -q tests/postgres
"""

import signal

import pytest
from test_exact import postgres, serve  # noqa: F401
from test_live import pairs, pytestmark  # noqa: F401

MAPPING = ("KEY", "(who,", "id)", "VALUE", "body")


def test_rights_that_are_missing_are_told_with_the_statement_that_gives_them(postgres):  # noqa: F811
    database = postgres.connect()
    database.execute("CREATE TABLE notes (id int PRIMARY KEY, body text)")
    database.execute("CREATE ROLE clerk LOGIN REPLICATION")
    database.execute("GRANT CREATE ON DATABASE postgres TO clerk")
    database.execute("CREATE PUBLICATION headwater_db FOR ALL TABLES")
    headwater = serve(postgres, tables="", user="clerk")
    try:
        cache = headwater.connect()

        def refusals():
            found = cache.execute_command("SOURCE.CHECK", "db", "TABLE", "notes", "KEY", "id", "VALUE", "body")
            return [line.removeprefix("refused: ") for line in found if line.startswith("refused: ")]

        for mends, breaks in (
            ("GRANT SELECT ON public.notes TO clerk", None),
            ("ALTER TABLE public.notes DISABLE ROW LEVEL SECURITY", "ALTER TABLE notes ENABLE ROW LEVEL SECURITY"),
            ("ALTER TABLE public.notes SET LOGGED", "ALTER TABLE notes SET UNLOGGED"),
            ("ALTER TABLE heir NO INHERIT public.notes", "CREATE TABLE heir () INHERITS (notes)"),
        ):
            if breaks:
                database.execute(breaks)
            told = refusals()
            assert len(told) == 1 and mends in told[0], (mends, told)
            database.execute(mends)
            assert refusals() == []
    finally:
        headwater.end(signal.SIGKILL)


@pytest.mark.parametrize("follow", ("log", "triggers"))
def test_what_is_told_mends_it(postgres, follow):  # noqa: F811
    database = postgres.connect()
    database.execute("CREATE TABLE notes (who text, id int, body text)")
    headwater = serve(postgres, options=f"&follow={follow}", tables="")
    try:
        cache = headwater.connect()

        def check(*words):
            return cache.execute_command("SOURCE.CHECK", "db", *words)

        def published():
            return database.execute("SELECT tablename FROM pg_publication_tables").fetchall()

        assert check("TABLE", "nothing", *MAPPING) == ["refused: there is no table nothing"]
        assert "has no column hue" in check("TABLE", "notes", "KEY", "id", "VALUE", "hue")[0]
        found = check("TABLE", "notes", *MAPPING)
        mended = [line for line in found if line.startswith("refused: several rows of public.notes")]
        assert mended, found
        # It tells the statement that makes it right.
        database.execute(mended[0].split(": ", 2)[2].replace(" CONCURRENTLY", ""))
        found = check("TABLE", "notes", *MAPPING)
        if follow == "log":
            assert any("REPLICA IDENTITY" in line for line in found), found
            database.execute("ALTER TABLE notes REPLICA IDENTITY FULL")
            found = check("TABLE", "notes", *MAPPING)
            added = [line for line in found if line.startswith("done: ALTER PUBLICATION")]
            assert len(added) == 1 and "ADD TABLE public.notes" in added[0], found
            assert published() == []
        else:
            assert any(line.startswith("done: CREATE TRIGGER") for line in found), found
        assert not any(line.startswith("refused") for line in found), found
        assert "price" in check("TABLE", "notes", *MAPPING, "WHERE", "price > 3")[0]
        assert database.execute("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'notes'::regclass").fetchone() == (0,)
        assert all(table["name"] == "" for table in cache.execute_command("TABLE.LIST"))
        # What was found is what declaring it does.
        cache.execute_command("TABLE.SET", "n", "SOURCE", "db", "TABLE", "notes", *MAPPING)
        assert not any(line.startswith("refused") for line in check("TABLE", "notes", *MAPPING))
        # Texts that are not compared bytewise: ranges of several of them are in no index's order.
        database.execute('ALTER TABLE notes ALTER who TYPE text COLLATE "C"')
        assert not any(line.startswith("warning") for line in check("TABLE", "notes", *MAPPING))
        there = "SELECT quote_ident(collname) FROM pg_collation WHERE collname IN ('und-x-icu', 'C.utf8') ORDER BY collname DESC LIMIT 1"
        database.execute(f"ALTER TABLE notes ALTER who TYPE text COLLATE {database.execute(there).fetchone()[0]}")
        warned = [line for line in check("TABLE", "notes", *MAPPING) if line.startswith("warning")]
        statement = 'CREATE INDEX CONCURRENTLY ON public.notes (who COLLATE "C", id)'
        assert len(warned) == 1 and warned[0].endswith(statement), warned
        told = pairs(cache.execute_command("TABLE.SET", "n", "SOURCE", "db", "TABLE", "notes", *MAPPING))
        assert [line.endswith(statement) for line in told["warnings"]] == [True], told
        database.execute(statement)
        assert not any(line.startswith("warning") for line in check("TABLE", "notes", *MAPPING))
        if follow == "log":
            assert published() == [("notes",)]
            assert not any(line.startswith("done") for line in check("TABLE", "notes", *MAPPING))
    finally:
        headwater.end(signal.SIGKILL)
