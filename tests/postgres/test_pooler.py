"""PgBouncer between Headwater and PostgreSQL.

    HEADWATER=target/release/headwater python3 -m pytest -q tests/postgres

Needs PgBouncer, which Debian has as a package.
"""

import pathlib
import shutil
import signal
import socket
import subprocess
import time

import pytest
import redis
from test_exact import await_up, info, postgres  # noqa: F401
from test_live import Headwater, pairs

PROGRAM = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
pytestmark = pytest.mark.skipif(not pathlib.Path(PROGRAM).exists(), reason="PgBouncer is not installed")

TABLE = '[[table]]\nname = "p"\nsource = "db"\ntable = "posts"\nkey = ["poster", "time"]\nvalue = "tweet"\nwrite-through = true\n'


@pytest.fixture
def pooler(postgres):  # noqa: F811
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = pathlib.Path(postgres.folder)
    (folder / "users.txt").write_text('"postgres" ""\n')
    (folder / "pooler.ini").write_text(
        f"[databases]\npostgres = host={folder} dbname=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
        f"unix_socket_dir =\nauth_type = trust\nauth_file = {folder}/users.txt\npool_mode = session\nlogfile = {folder}/pooler.log\n"
    )
    process = subprocess.Popen([PROGRAM, "-q", f"{folder}/pooler.ini"], user=postgres.user, stderr=subprocess.DEVNULL)
    yield port
    process.kill()
    process.wait()


def through(postgres, port, options):  # noqa: F811
    class Served(Headwater):
        bounded = False
        CONFIG = f'[[source]]\nname = "db"\nkind = "postgres"\nurl = "postgres://postgres@127.0.0.1:{port}/postgres{options}"\n{TABLE}'

    return Served(postgres)


def test_a_pooler_that_keeps_sessions_serves_with_triggers(postgres, pooler):  # noqa: F811
    headwater = through(postgres, pooler, "?follow=triggers")
    try:
        cache, database = headwater.connect(), postgres.connect()
        await_up(cache)
        assert len(pairs(cache.execute_command("PREFIX", "p|bob|"))) == 5
        database.execute("UPDATE posts SET tweet = 'new' WHERE time = 3")
        at = cache.execute_command("SOURCE.POSITION", "db")
        shown = pairs(cache.execute_command("PREFIX", "p|bob|", "AT", at))
        assert shown["p|bob|0000000003"] == "new"
        cache.set("p|bob|0000000004", "written")
        assert database.execute("SELECT tweet FROM posts WHERE time = 4").fetchone() == ("written",)
        assert cache.get("p|bob|0000000004") == "written"
    finally:
        headwater.end(signal.SIGKILL)


def test_a_pooler_that_passes_no_replication_on_is_named(postgres, pooler):  # noqa: F811
    headwater = through(postgres, pooler, "?follow=log")
    try:
        cache = headwater.connect()
        end = time.monotonic() + 30
        while "PgBouncer" not in (facts := info(cache)).get("reason", ""):
            # Versions from 1.23 on pass it on.
            if facts["state"] == "up":
                return
            assert time.monotonic() < end, facts
            time.sleep(0.05)
        assert "follow=triggers" in facts["reason"] and facts["state"] == "down"
        with pytest.raises(redis.ResponseError, match="PgBouncer"):
            cache.execute_command("PREFIX", "p|bob|")
    finally:
        headwater.end(signal.SIGKILL)
