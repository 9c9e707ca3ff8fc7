"""A server of our own for each test: the real program, on a port that the system chose."""

import os
import pathlib
import re
import signal
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def port():
    default = ROOT / "target" / "debug" / "headwater"
    program = os.environ.get("HEADWATER", str(default))
    process = subprocess.Popen([program, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        yield int(re.search(r":(\d+)$", line.strip()).group(1))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0, "SIGTERM ends the server cleanly"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
