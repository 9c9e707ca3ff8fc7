"""Numbers with a fraction in keys: ranges of keys are ranges of numbers in SQL, whatever is written, and only their rows are loaded.

    HEADWATER=target/release/headwater python3 -m pytest -q tests/postgres/test_numbers.py

HEADWATER_PG_SEED says which numbers.
"""

import decimal
import random
import signal
import struct
from decimal import Decimal

import pytest
import redis
from test_exact import info, postgres, serve  # noqa: F401
from test_live import SEED, pairs, pytestmark  # noqa: F401
from test_pages import keys, table

decimal.getcontext().prec = 2000
TYPES = ("numeric", "numeric(9,3)", "real", "double precision")
TURNED = str.maketrans("0123456789ABCDEFGHIJKLMNOPQRSTUV.~", "9876543210VUTSRQPONMLKJIHGFEDCBA~.")


def encoded(number):
    """A number as docs/joins.md says that it stands in keys."""
    sign, digits, exponent = number.as_tuple()
    digits = "".join(map(str, digits)).lstrip("0")
    if not digits:
        return "0"
    places = len(digits) + exponent
    head = f"A{9999 + places:04}" if places < 1 else chr(ord("A") + places) if places <= 20 else f"V{places:04}"
    text = head + digits.rstrip("0") + "."
    return "-" + text.translate(TURNED) if sign else text


def drawn(rng, kind):
    """A number as SQL reads it."""
    sign = rng.choice(("", "-"))
    if kind == "numeric(9,3)":
        return f"{sign}{rng.randrange(10 ** rng.randrange(1, 7))}.{rng.randrange(1000):03}"
    exponent = {"numeric": 60, "real": 30, "double precision": 250}[kind]
    match rng.randrange(4):
        case 0:
            return f"{sign}{rng.randrange(100)}"
        case 1:
            return f"{sign}{rng.randrange(1000)}.{rng.randrange(100):02}{'0' * rng.randrange(3)}"
        case 2:
            return f"{sign}{rng.randrange(1, 100)}e{rng.randrange(-exponent, exponent)}"
        case _:
            return f"{sign}{rng.random()}"


def decimal_of(kind, printed):
    """The decimal that stands for a number. PostgreSQL prints a longer one than the shortest where that lies between two binary numbers."""
    if kind == "double precision":
        return Decimal(repr(float(printed)))
    if kind == "real":
        single = lambda text: struct.pack("f", float(text))  # noqa: E731
        shortest = (f"{struct.unpack('f', single(printed))[0]:.{digits}g}" for digits in range(1, 10))
        return Decimal(next(text for text in shortest if single(text) == single(printed)))
    return Decimal(printed)


def key_of(kind, printed):
    return f"m|a|{encoded(decimal_of(kind, printed))}"


def shown(database, kind, where="true"):
    """The keys of the rows that SQL finds, in its order, and their values."""
    rows = database.execute(f"SELECT n::text, v FROM marks m WHERE grp = 'a' AND {where} ORDER BY m.n").fetchall()
    return {key_of(kind, n): v for n, v in rows if n not in ("NaN", "Infinity", "-Infinity")}


@pytest.fixture(params=[(kind, "") for kind in TYPES] + [("numeric", "&follow=triggers")], ids=lambda param: "".join(param))
def marks(request, postgres):  # noqa: F811
    kind, options = request.param
    rng = random.Random(f"{SEED} {kind}")
    database = postgres.connect()
    database.execute(f"CREATE TABLE marks (grp text, n {kind}, v text, PRIMARY KEY (grp, n))")
    for group in "ab":
        for at in range(600):
            sql = f"INSERT INTO marks VALUES ('{group}', '{drawn(rng, kind)}', 'v{at}') ON CONFLICT DO NOTHING"
            database.execute(sql)
    if "(" not in kind:
        database.execute("INSERT INTO marks SELECT 'a', n::text::float8, n FROM unnest('{NaN,Infinity,-Infinity}'::text[]) n")
    else:
        database.execute("INSERT INTO marks VALUES ('a', 'NaN', 'none')")
    text = table("m", "marks", '["grp", "n"]', "v") + "write-through = true\n"
    headwater = serve(postgres, options, tables=text)
    yield kind, rng, database, headwater.connect()
    headwater.end(signal.SIGKILL)


def test_ranges_are_those_of_sql_and_load_no_more(marks):
    kind, rng, database, cache = marks
    every = list(shown(database, kind))
    assert every == sorted(every), "the order of the keys is that of the numbers"
    expected = shown(database, kind)
    loaded = 0
    for turn in range(60):
        low, high = sorted((drawn(rng, kind), drawn(rng, kind)), key=Decimal)
        # As the type has them: real numbers are rounded.
        low, high = (database.execute(f"SELECT ('{end}'::{kind})::text").fetchone()[0] for end in (low, high))
        first, last = (key_of(kind, end) for end in (low, high))
        by_sql = list(shown(database, kind, f"n >= '{low}' AND n < '{high}'"))
        assert by_sql == [key for key in every if first <= key < last]
        if turn % 3 == 2:
            # Ends that are cut off within a number, or go on behind it.
            first, last = sorted(end[: rng.randrange(4, len(end) + 1)] + rng.choice(("", "|", "5", "~")) for end in (first, last))
            by_sql = [key for key in every if first <= key < last]
        limit = rng.choice(([], ["LIMIT", 5], ["REV", "LIMIT", 3]))
        wanted = by_sql[::-1][:3] if "REV" in limit else by_sql[:5] if limit else by_sql
        assert keys(cache.execute_command("RANGE", first, last, *limit)) == wanted, (first, last, limit)
        now = int(info(cache)["rows_loaded"])
        # A number beside each end may be asked for, or a few where an end is cut off.
        if turn % 3 != 2 and not limit:
            assert now - loaded <= len(by_sql) + 2
        loaded = now
    assert pairs(cache.execute_command("PREFIX", "m|a|")) == expected
    for key in rng.sample(every, 20):
        assert cache.get(key) == expected[key]
    assert keys(cache.execute_command("PREFIX", "m|a|", "REV", "LIMIT", 4)) == every[::-1][:4]


def test_changes_of_the_log_are_of_the_same_keys(marks):
    kind, rng, database, cache = marks
    assert pairs(cache.execute_command("PREFIX", "m|a|")) == shown(database, kind)
    for turn in range(8):
        for _ in range(30):
            one = f"(SELECT n FROM marks WHERE grp = 'a' ORDER BY md5(n::text || '{rng.random()}') LIMIT 1)"
            new = f"'{drawn(rng, kind)}'"
            database.execute(
                rng.choice(
                    (
                        f"INSERT INTO marks VALUES ('a', {new}, 'new {turn}') ON CONFLICT (grp, n) DO UPDATE SET v = 'met'",
                        f"UPDATE marks SET n = {new} WHERE grp = 'a' AND n = {one} AND NOT EXISTS (SELECT FROM marks WHERE grp = 'a' AND n = {new})",
                        f"UPDATE marks SET v = 'turn {turn}' WHERE grp = 'a' AND n = {one}",
                        f"UPDATE marks SET n = 'NaN' WHERE grp = 'a' AND n = {one} AND NOT EXISTS (SELECT FROM marks WHERE grp = 'a' AND n = 'NaN')",
                        f"DELETE FROM marks WHERE grp = 'a' AND n = {one}",
                        "DELETE FROM marks WHERE grp = 'a' AND n = 'NaN'",
                    )
                )
            )
        at = cache.execute_command("SOURCE.POSITION", "db")
        assert pairs(cache.execute_command("PREFIX", "m|a|", "AT", at)) == shown(database, kind)


def test_what_is_written_through_is_the_row_of_its_key(marks):
    kind, rng, database, cache = marks
    for _ in range(40):
        number = database.execute(f"SELECT ('{drawn(rng, kind)}'::{kind})::text").fetchone()[0]
        key = key_of(kind, number)
        assert cache.set(key, "written")
        assert database.execute(f"SELECT v FROM marks WHERE grp = 'a' AND n = '{number}'").fetchone() == ("written",)
        assert cache.get(key) == "written"
        if rng.random() < 0.5:
            assert cache.delete(key) == 1
            assert database.execute(f"SELECT count(*) FROM marks WHERE grp = 'a' AND n = '{number}'").fetchone() == (0,)
    wrong = ["C420.", "C42", "42", "NaN"]
    # Numbers that the column would round.
    wrong += {
        "numeric(9,3)": [encoded(Decimal("1.2345"))],
        "real": [encoded(Decimal("0.12345678901"))],
        "double precision": [encoded(Decimal("0.12345678901234567890123"))],
    }.get(kind, [])
    before = shown(database, kind)
    for component in wrong:
        with pytest.raises(redis.ResponseError, match="is not the key of a row"):
            cache.set(f"m|a|{component}", "wrong")
    assert shown(database, kind) == before
