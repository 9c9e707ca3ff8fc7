"""Real servers for the tests: `HEADWATER=path/to/headwater python3 -m pytest clients/python`."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]
PROGRAM = os.environ.get("HEADWATER", str(ROOT / "target" / "debug" / "headwater"))
sys.path.insert(0, str(HERE / "src"))


class Server:
    """A server that can be killed and started again at its port, with its data."""

    def __init__(self, *flags, data=None):
        self.flags = [*flags, *(["--data", str(data)] if data else [])]
        self.port = 0
        self.process = None
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--port", str(self.port), *self.flags],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        ready = self.process.stdout.readline()
        assert " ready on " in ready, "the server starts"
        self.port = int(ready.rsplit(":", 1)[1])

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=30)
        finally:
            self.process.kill()


@pytest.fixture(scope="module")
def server():
    server = Server("--shards=2")
    yield server
    server.stop()


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def protocol(request):
    return request.param


@pytest.fixture
def client(server, protocol):
    from headwater import Headwater

    with Headwater(port=server.port, protocol=protocol, decode_responses=True) as client:
        for name in client.flow_list():
            client.flow_drop(name)
        for name in reversed(client.join_list()):
            client.join_drop(name)
        client.flushall()
        yield client
