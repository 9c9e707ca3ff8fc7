"""NATS servers and nodes as processes, for tests that need a cluster.

They need a real `nats-server` on the path, or HEADWATER_NATS_SERVER. With HEADWATER_NEEDS_NATS it must be there.
"""

import itertools
import os
import shutil
import socket
import subprocess
import time

PROGRAM = os.path.abspath(os.environ["HEADWATER"]) if "/" in os.environ.get("HEADWATER", "") else os.environ.get("HEADWATER", "headwater")
NATS = os.environ.get("HEADWATER_NATS_SERVER") or shutil.which("nats-server")
if NATS is None and "HEADWATER_NEEDS_NATS" in os.environ:
    raise RuntimeError("there is no nats-server, and HEADWATER_NEEDS_NATS is set")
SERVERS = 3
PATIENCE = float(os.environ.get("HEADWATER_NODES_PATIENCE", "180"))
# Nodes of several shards reach each other at their port and so much.
LINK_PORT_OFFSET = 10_000


def is_free(port):
    try:
        socket.create_server(("127.0.0.1", port)).close()
        return True
    except (OSError, OverflowError):
        return False


# Those that the system gives to outgoing connections begin at 32 768: one of them could be given away before a server binds it. Other processes of tests
# begin elsewhere.
PORTS = range(10_000, 20_000)
tried = itertools.count(os.getpid() * 64)


def free_ports(count):
    """Ports that nobody has, none of them twice, with room for those at which nodes reach each other."""
    found = []
    while len(found) < count:
        port = PORTS[next(tried) % len(PORTS)]
        if is_free(port) and is_free(port + LINK_PORT_OFFSET):
            found.append(port)
    return found


def free_runs(count, length):
    """The first of so many free ports in a row, this often."""
    found = []
    while len(found) < count:
        ports = free_ports(length)
        if ports[-1] - ports[0] == length - 1:
            found.append(ports[0])
    return found


def eventually(holds, forgives=Exception):
    """Waits until something holds, and gives what it is. Asks again after errors that it forgives."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            found = holds()
            if found:
                return found
        except forgives as why:
            if time.monotonic() > end:
                raise why
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.1)


def connects(port):
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


class Cluster:
    """Three NATS servers, and a node for each of these shards, or three nodes for all of so many shards. `machines` are the folders of three machines
    that have one server each, and nodes."""

    def __init__(self, folder, of=(0, 0, 0), words=(), machines=None, sync="always", shards=None):
        self.folder, self.of, self.words, self.processes = folder, of, words, []
        self.shards = shards or max(of) + 1
        self.has_all = shards is not None
        self.machines = machines or [folder] * SERVERS
        ports = free_ports(3 * SERVERS)
        self.ports = free_runs(len(of), self.shards if self.has_all else 1)
        self.clients, routes, self.monitors = (ports[at : 3 * SERVERS : 3] for at in range(3))
        every_route = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
        for at in range(SERVERS):
            conf = folder / f"nats{at}.conf"
            conf.write_text(
                f"server_name: s{at}\nlisten: 127.0.0.1:{self.clients[at]}\nhttp: 127.0.0.1:{self.monitors[at]}\n"
                f'jetstream {{ store_dir: "{self.machines[at]}/nats{at}", sync_interval: {sync} }}\n'
                f"cluster {{ name: c, listen: 127.0.0.1:{routes[at]}, routes: [{every_route}] }}\n"
            )
        self.run()

    def run(self):
        """Starts all of it."""
        for at in range(SERVERS):
            self.begin(self.folder / f"nats{at}.log", [NATS, "-c", str(self.folder / f"nats{at}.conf")])
        for port in self.clients + self.monitors:
            eventually(lambda port=port: connects(port))
        self.nodes = [self.start(at) for at in range(len(self.of))]

    def kill(self):
        """Ends all processes at once."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self.processes = []

    def start(self, at):
        """Starts a node."""
        port, shards = self.ports[at], self.shards
        urls = ",".join(f"nats://127.0.0.1:{port}" for port in self.clients)
        words = [PROGRAM, "serve", *self.words, "--shards", str(shards), "--port", str(port), "--cluster", urls]
        words += ["--cluster-shard", str(self.of[at])] if shards > 1 and not self.has_all else []
        words += ["--node", f"node{at}", "--advertise", f"127.0.0.1:{port}"]
        words += ["--data", str(self.machines[at % SERVERS] / f"node{at}")]
        for monitor in self.monitors:
            words += ["--nats-monitoring", f"http://127.0.0.1:{monitor}"]
        return self.begin(self.folder / f"node{at}.log", words)

    def begin(self, log, words):
        with open(log, "ab") as out:
            process = subprocess.Popen(words, stdout=out, stderr=out)
        self.processes.append(process)
        return process

    def end(self):
        """Ends all, and prints what nodes and servers have said, which pytest shows where a test has failed."""
        self.kill()
        for log in sorted(self.folder.glob("*.log")):
            print(f"--- {log.name}", log.read_text(errors="replace")[-4000:], sep="\n")
