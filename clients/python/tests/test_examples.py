"""The example of the repository, as a reader would start it."""

import os
import subprocess
import sys

from conftest import HERE, ROOT, Server


def test_forty_lines_are_enough():
    for name in ("timeline.py", "timeline.ts"):
        assert len((ROOT / "examples/timeline" / name).read_text().splitlines()) <= 40, name


def test_timelines():
    server = Server()
    try:
        ran = subprocess.run(
            [sys.executable, ROOT / "examples/timeline/timeline.py", f"127.0.0.1:{server.port}"],
            env={**os.environ, "PYTHONPATH": str(HERE / "src")}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.splitlines() == [
            "page 09:00 bob: Good morning",
            "live 09:00 bob: Good morning",
            "live 09:01 liz: Ann does not read this yet",
            "live 09:02 liz: Hello, Ann",
        ]
    finally:
        server.stop()
