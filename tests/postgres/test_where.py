"""Tables of which some rows are keys: `WHERE "status = 'paid'"`.

    HEADWATER=target/release/headwater python3 -m pytest -q tests/postgres
"""

import random
import signal

import pytest
import redis
from test_exact import postgres, serve  # noqa: F401
from test_live import pairs, pytestmark  # noqa: F401

FILTER = "(status = 'paid' OR amount > 90) AND NOT hidden AND note IS NOT NULL"


@pytest.mark.parametrize("follow", ("log", "triggers"))
def test_rows_enter_and_leave_as_in_sql(postgres, follow):  # noqa: F811
    database = postgres.connect()
    database.execute("CREATE TYPE status AS ENUM ('new', 'paid', 'sent')")
    database.execute(
        "CREATE TABLE orders (who int, id int, status status, amount int, hidden bool, note text, body text, PRIMARY KEY (who, id))"
    )
    database.execute("ALTER TABLE orders ALTER body SET STORAGE EXTERNAL")
    choose = random.Random(7)

    def row():
        status = choose.choice(["'new'", "'paid'", "'sent'", "NULL"])
        amount = choose.choice(["NULL", str(choose.randrange(120))])
        hidden = choose.choice(["true", "false", "false", "NULL"])
        note = choose.choice(["'n'", "'m'", "NULL"])
        return status, amount, hidden, note

    for n in range(300):
        status, amount, hidden, note = row()
        database.execute(f"INSERT INTO orders VALUES ({n % 5}, {n}, {status}, {amount}, {hidden}, {note}, repeat('x{n}', 1500))")
    table = f'[[table]]\nname = "o"\nsource = "db"\ntable = "orders"\nkey = ["who", "id"]\nvalue = "body"\nwhere = "{FILTER}"\n'
    table += '[[join]]\nname = "orders"\nspec = "orders|<who> = count o|<who>|<id>"\n'
    headwater = serve(postgres, options=f"&follow={follow}", tables=table)
    try:
        cache = headwater.connect()

        def compare():
            at = cache.execute_command("SOURCE.POSITION", "db")
            shown = pairs(cache.execute_command("PREFIX", "o|", "AT", at))
            there = database.execute(f"SELECT who, id, body FROM orders WHERE {FILTER} ORDER BY who, id").fetchall()
            assert shown == {f"o|{who:010}|{n:010}": body for who, n, body in there}
            counts = database.execute(f"SELECT who, count(*) FROM orders WHERE {FILTER} GROUP BY who").fetchall()
            shown = pairs(cache.execute_command("PREFIX", "orders|"))
            assert shown == {f"orders|{who:010}": str(n) for who, n in counts}
            return len(there)

        sizes = {compare()}
        for _ in range(40):
            for _ in range(choose.randrange(1, 12)):
                n = choose.randrange(330)
                status, amount, hidden, note = row()
                what = choose.randrange(10)
                if what < 7:
                    database.execute(
                        f"UPDATE orders SET status = {status}, amount = {amount}, hidden = {hidden}, note = {note} WHERE id = {n}"
                    )
                elif what == 7:
                    database.execute(f"DELETE FROM orders WHERE id = {n}")
                elif what == 8:
                    database.execute(f"UPDATE orders SET who = {choose.randrange(5)} WHERE id = {n}")
                else:
                    database.execute(
                        f"INSERT INTO orders VALUES ({n % 5}, {n}, {status}, {amount}, {hidden}, {note}, repeat('y{n}', 1500)) "
                        "ON CONFLICT DO NOTHING"
                    )
            sizes.add(compare())
        assert len(sizes) > 3
        assert len(pairs(cache.execute_command("PREFIX", "o|", "LIMIT", 5))) == 5
    finally:
        headwater.end(signal.SIGKILL)


def test_a_filter_that_cannot_be_judged_is_refused(postgres):  # noqa: F811
    database = postgres.connect()
    database.execute("CREATE TYPE status AS ENUM ('new', 'paid')")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, status status, price numeric, name text, big text)")
    database.execute("INSERT INTO orders VALUES (1, 'paid', 1, 'a', 'b')")
    headwater = serve(postgres, tables="")
    try:
        cache = headwater.connect()

        def declare(where):
            words = ("SOURCE", "db", "TABLE", "orders", "KEY", "id", "VALUE", "name", "WHERE", where)
            return cache.execute_command("TABLE.SET", "o", *words)

        for where, why in (
            ("price > 3", "price"),
            ("name < 'x'", "`<`"),
            ("status = 'none'", "none"),
            ("colour = 'red'", "colour"),
            ("id = 1; DROP TABLE orders", "`;`"),
            ("id =", "at the end"),
        ):
            with pytest.raises(redis.ResponseError, match=why):
                declare(where)
        declare("status = 'paid'")
        assert pairs(cache.execute_command("PREFIX", "o|")) == {"o|0000000001": "a"}
        declare("status = 'new'")
        assert pairs(cache.execute_command("PREFIX", "o|")) == {}
    finally:
        headwater.end(signal.SIGKILL)
