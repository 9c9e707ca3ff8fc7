"""Flows that write to PostgreSQL: a copy of what is written here, done afterwards, whatever ends meanwhile.

    HEADWATER=target/release/headwater python3 -m pytest -q tests/postgres
"""

import signal
import time

import pytest
from test_live import Headwater, Postgres, pytestmark  # noqa: F401


class Flowing(Headwater):
    # A store on disk that was opened without a bound does not fit into so little.
    bounded = False
    CONFIG = """
[data]
data-dir = "FOLDER/kept"
durability = "always"

[[source]]
name = "db"
kind = "postgres"
url = "postgres://postgres@/postgres?host=FOLDER"

[[table]]
name = "archive"
source = "db"
table = "archive"
key = ["id"]
value = "text"
write-through = true

[[table]]
name = "shown"
source = "db"
table = "shown"
key = ["who", "id"]
value = "text"
write-through = true

[[flow]]
name = "keep"
on = "item|<id>"
copy = "archive|<id> = copy item|<id>"
backoff-milliseconds = [5, 50]
max-attempts = 1000

[[flow]]
name = "show"
on = "item|<id>"
fanout = "shown|<who>|<id> = check reads|<who> copy item|<id>"
backoff-milliseconds = [5, 50]
max-attempts = 1000
"""


def settle(client):
    """Waits until flows have nothing to do, as long as they get on: a busy machine takes its time."""
    patience = 60
    least, deadline = None, time.monotonic() + patience
    while time.monotonic() < deadline:
        facts = [client.execute_command("FLOW.INFO", flow) for flow in ("keep", "show")]
        facts = [fact if isinstance(fact, dict) else dict(zip(fact[::2], fact[1::2])) for fact in facts]
        if all(fact["backlog"] == 0 for fact in facts):
            assert all(fact["dead"] == 0 for fact in facts)
            return
        backlog = sum(fact["backlog"] for fact in facts)
        if least is None or backlog < least:
            least, deadline = backlog, time.monotonic() + patience
        time.sleep(0.01)
    raise TimeoutError(facts)


@pytest.mark.parametrize("shards", [1, 3])
def test_what_is_written_here_is_copied_to_the_database(shards):
    postgres = Postgres("logical")
    try:
        with postgres.connect() as database:
            database.execute("CREATE TABLE archive (id text PRIMARY KEY, text text NOT NULL)")
            database.execute("CREATE TABLE shown (who text, id text, text text NOT NULL, PRIMARY KEY (who, id))")
        headwater = Flowing(postgres, shards)
        client = headwater.connect()
        for who in range(300):
            client.set(f"reads|{who:03}", "")
        wanted = {}
        for number in range(40):
            client.set(f"item|{number % 30}", f"text {number}")
            wanted[str(number % 30)] = f"text {number}"
            if number == 10:
                postgres.end(signal.SIGKILL)
            if number == 20:
                headwater.end(signal.SIGKILL)
                headwater.start()
                client = headwater.connect()
            if number == 30:
                postgres.start()
        for number in range(0, 30, 7):
            client.delete(f"item|{number}")
            del wanted[str(number)]
        settle(client)
        with postgres.connect() as database:
            rows = dict(database.execute("SELECT id, text FROM archive").fetchall())
            assert rows == wanted
            counts = database.execute("SELECT id, min(text), max(text), count(*) FROM shown GROUP BY id").fetchall()
        assert {id: (least, most, count) for id, least, most, count in counts} == {
            id: (text, text, 300) for id, text in wanted.items()
        }
        headwater.end(signal.SIGTERM)
    finally:
        postgres.remove()
