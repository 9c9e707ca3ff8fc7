"""A shop that writes to PostgreSQL and reads its pages from Headwater.

    python3 shop.py 'host=… dbname=…' HOST:PORT

Needs psycopg and redis. Every write goes to the database alone; nothing here tells Headwater of it.
"""

import json
import sys
import time

import psycopg
import redis

database = psycopg.connect(sys.argv[1], autocommit=True)
host, port = sys.argv[2].rsplit(":", 1)
cache = redis.Redis(host=host, port=int(port), decode_responses=True)


def page(customer, at=None):
    """What the sellers whom a customer follows offer, as of a position of the database if one is given."""
    words = ["PREFIX", f"front|{customer}|"] + (["AT", at] if at else [])
    answer = cache.execute_command(*words)
    pairs = answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2])
    return [(key.split("|")[3], json.loads(value)["title"]) for key, value in pairs]


def write(sql, *values):
    """Writes to the database, and gives the position of its log behind that."""
    database.execute(sql, values)
    return str(database.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0])


def show(what, got, expected):
    print(f"{what}: {got}")
    if got != expected:
        sys.exit(f"{what}: expected {expected}")


show("ann's page", page("ann"), [("bob", "A kettle"), ("cleo", "A lamp")])

# A write to the database is in the page of everybody whom it concerns.
offer = "INSERT INTO offers VALUES (%s, %s, %s, %s)"
at = write(offer, "bob", "2026-01-04 09:00Z", "A teapot", 2500)
show("… after an offer", page("ann", at), [("bob", "A kettle"), ("cleo", "A lamp"), ("bob", "A teapot")])
show("dan's page", page("dan", at), [("bob", "A kettle"), ("bob", "A teapot")])

# So is one to whom somebody follows, which changes the page as a whole.
at = write("INSERT INTO follows VALUES ('dan', 'eve')")
show("… who follows eve now", page("dan", at), [("bob", "A kettle"), ("eve", "A chair"), ("bob", "A teapot")])
at = write("DELETE FROM follows WHERE customer = 'dan' AND seller = 'bob'")
show("… and bob no more", page("dan", at), [("eve", "A chair")])

# Aggregates follow as well.
show("bob's stars", cache.get("stars|bob"), "3")
at = write("UPDATE reviews SET stars = 5 WHERE seller = 'bob' AND customer = 'ann'")
show("… after another review", cache.execute_command("RANGE", "stars|bob", "stars|bob}", "VALUES", "AT", at), ["3.5"])

# Without AT, a page is a little behind the database, and never goes back.
begun = time.perf_counter()
write(offer, "eve", "2026-01-05 09:00Z", "A table", 19900)
while len(page("dan")) < 2:
    pass
print(f"seen {1000 * (time.perf_counter() - begun):.1f} ms after it was written")
