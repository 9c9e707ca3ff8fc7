"""Servers that are none, or mean it badly: they cost no more than their share of the memory bound, and the reason names what they do.

    HEADWATER=target/release/headwater python3 -m pytest -q tests/postgres
"""

import pathlib
import signal
import socket
import struct
import threading
import time

import pytest
from test_exact import info
from test_live import Headwater, pytestmark  # noqa: F401

BOUND = 96 << 20


def frame(tag, body):
    return tag + struct.pack(">I", len(body) + 4) + body


class Hostile:
    """Greets like PostgreSQL, and answers every question with the same, without end."""

    def __init__(self, folder, says):
        self.folder = str(folder)
        self.says = says
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        # How often it was asked something. How much it can send then depends on how soon the client hangs up.
        self.asked = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.talk, args=(client,), daemon=True).start()

    def talk(self, client):
        try:
            length = struct.unpack(">I", client.recv(4))[0]
            greeting = client.recv(length - 4)
            if greeting[:4] == struct.pack(">I", 80877103):
                client.sendall(b"N")
                length = struct.unpack(">I", client.recv(4))[0]
                client.recv(length - 4)
            client.sendall(frame(b"R", bytes(4)) + frame(b"Z", b"I"))
            if not client.recv(1):
                return
            self.asked += 1
            begin, rest = self.says
            client.sendall(begin)
            while True:
                client.sendall(rest)
        except OSError:
            pass
        finally:
            client.close()


ROW = frame(b"D", struct.pack(">HI", 1, 1000) + b"x" * 1000)
SAYS = {
    "rows without end": ((b"", ROW * 64), "more than 8388608 bytes"),
    "a message of 900 MB": ((b"D" + struct.pack(">I", 900 << 20), b"x" * 65536), "a message of 943718400 bytes"),
}


@pytest.mark.parametrize("says", SAYS)
def test_a_hostile_server_costs_no_more_than_its_share(tmp_path, says):
    spoken, reason = SAYS[says]
    hostile = Hostile(tmp_path, spoken)

    class Served(Headwater):
        bounded = False
        CONFIG = f"""
[memory]
max = {BOUND}

[[source]]
name = "db"
kind = "postgres"
url = "postgres://postgres@127.0.0.1:{hostile.port}/postgres"

[[table]]
name = "p"
source = "db"
table = "posts"
key = ["id"]
value = "EMPTY"
"""

    headwater = Served(hostile)
    try:
        cache = headwater.connect()
        end = time.monotonic() + 60
        while reason not in info(cache)["reason"]:
            assert time.monotonic() < end, info(cache)
            time.sleep(0.05)
        assert info(cache)["state"] != "up"
        # It is tried again, and is no other then.
        before = hostile.asked
        while hostile.asked < before + 2:
            assert time.monotonic() < end, hostile.asked
            time.sleep(0.05)
        status = pathlib.Path(f"/proc/{headwater.process.pid}/status").read_text()
        most = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))
        assert most <= BOUND, f"{most >> 20} MB"
        assert cache.set("plain", "x")
    finally:
        headwater.end(signal.SIGKILL)
        hostile.listener.close()
