"""Whatever becomes of a source is a line of the log, with its reason; and how long it was not heard is a metric.

    HEADWATER=target/release/headwater python3 -m pytest -q tests/postgres
"""

import pathlib
import re
import signal
import socket
import time
import urllib.request

from test_exact import await_up, info, postgres, source  # noqa: F401
from test_live import Headwater, pytestmark  # noqa: F401

TABLE = """
[[table]]
name = "n"
source = "db"
table = "notes"
key = ["id"]
value = "body"
"""


def test_what_becomes_of_a_source_is_told(postgres, tmp_path):  # noqa: F811
    database = postgres.connect()
    database.execute("CREATE TABLE notes (id int PRIMARY KEY, body text)")
    database.execute("INSERT INTO notes VALUES (1, 'one')")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path / "log"
    config = f'[log]\nlog-file = "{log}"\n[listen]\nhttp-port = {port}\n'

    class Served(Headwater):
        bounded = False
        CONFIG = config + source(postgres.folder, "") + TABLE

    def until(what, *reasons):
        """Waits for a line that says so, behind those before."""
        end = time.monotonic() + 40
        while True:
            lines = [line for line in pathlib.Path(log).read_text().splitlines()[until.passed :] if "source_" in line]
            found = [line for line in lines if what in line and all(reason in line for reason in reasons)]
            if found:
                return found[0]
            assert time.monotonic() < end, (what, reasons, lines)
            time.sleep(0.05)

    until.passed = 0

    def mark():
        until.passed = len(pathlib.Path(log).read_text().splitlines())

    headwater = Served(postgres)
    try:
        cache = headwater.connect()
        await_up(cache)
        assert cache.get("n|0000000001") == "one"
        until("source_up")
        until("log begun")
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        heard = re.findall(r'headwater_source_seconds_since_heard\{source="db"\} ([0-9.e-]+)', metrics)
        assert len(heard) == 1 and float(heard[0]) < 60, heard
        mark()
        database.execute("TRUNCATE notes")
        until("loaded again", "n|")
        mark()
        database.execute("ALTER TABLE notes RENAME body TO words")
        until("table altered", "n")
        until("table refused", "body")
        mark()
        database.execute("ALTER TABLE notes RENAME words TO body")
        until("table ready", "n")
        mark()
        postgres.end(signal.SIGINT)
        until("source_down")
        postgres.start()
        await_up(cache)
        until("source_up")
        until("log goes on" if info(cache)["resets"] == "0" else "log")
    finally:
        headwater.end(signal.SIGKILL)
