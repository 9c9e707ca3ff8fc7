"""redis-py's RedisCluster, unchanged, against three nodes of a cluster, also while the one that owns the data is killed.

It needs a real `nats-server` on the path, and is skipped without one.
"""

import os
import shutil
import socket
import subprocess
import time

import pytest
from redis.cluster import ClusterNode, LoadBalancingStrategy, RedisCluster

PROGRAM = os.environ.get("HEADWATER", "headwater")
NATS = os.environ.get("HEADWATER_NATS_SERVER") or shutil.which("nats-server")
NODES = 3
PATIENCE = 180

pytestmark = pytest.mark.skipif(NATS is None, reason="there is no nats-server on the path")


def free_ports(count):
    """Ports that nobody has, none of them twice."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def eventually(holds):
    """Waits until something holds, and gives what it is."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            found = holds()
            if found:
                return found
        except Exception as why:  # noqa: BLE001: whatever is not yet there
            if time.monotonic() > end:
                raise why
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.1)


def connects(port):
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


class Cluster:
    def __init__(self, folder):
        self.folder, self.processes = folder, []
        ports = free_ports(4 * NODES)
        clients, routes, monitors, self.ports = (ports[at::4] for at in range(4))
        every_route = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
        for at in range(NODES):
            conf = folder / f"nats{at}.conf"
            conf.write_text(
                f"server_name: s{at}\nlisten: 127.0.0.1:{clients[at]}\nhttp: 127.0.0.1:{monitors[at]}\n"
                f'jetstream {{ store_dir: "{folder}/nats{at}", sync_interval: always }}\n'
                f"cluster {{ name: c, listen: 127.0.0.1:{routes[at]}, routes: [{every_route}] }}\n"
            )
            self.begin(folder / f"nats{at}.log", [NATS, "-c", str(conf)])
        for port in clients + monitors:
            eventually(lambda port=port: connects(port))
        urls = ",".join(f"nats://127.0.0.1:{port}" for port in clients)
        self.nodes = []
        for at, port in enumerate(self.ports):
            words = [PROGRAM, "serve", "--shards", "1", "--port", str(port), "--cluster", urls]
            words += ["--node", f"node{at}", "--advertise", f"127.0.0.1:{port}"]
            words += ["--data", str(folder / f"node{at}")]
            for monitor in monitors:
                words += ["--nats-monitoring", f"http://127.0.0.1:{monitor}"]
            self.nodes.append(self.begin(folder / f"node{at}.log", words))

    def begin(self, log, words):
        with open(log, "wb") as out:
            process = subprocess.Popen(words, stdout=out, stderr=out)
        self.processes.append(process)
        return process

    def end(self):
        """Ends all, and prints what nodes and servers have said, which pytest shows where a test has failed."""
        for process in self.processes:
            process.kill()
            process.wait()
        for log in sorted(self.folder.glob("*.log")):
            print(f"--- {log.name}", log.read_text(errors="replace")[-4000:], sep="\n")

    def client(self, **options):
        nodes = [ClusterNode("127.0.0.1", port) for port in self.ports]
        return RedisCluster(startup_nodes=nodes, **options)


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.end()


def test_a_cluster_client_goes_on_when_the_owner_is_killed(cluster):
    client = eventually(cluster.client)
    keys = [f"p|{{b{number}}}|1" for number in range(200)]
    for number, key in enumerate(keys[:100]):
        client.set(key, number)

    def all_are_known():
        client.nodes_manager.initialize()
        return len(client.get_nodes()) == NODES

    eventually(all_are_known)
    assert len(client.get_primaries()) == 1
    # Of nodes that stand by, too: they pass it on.
    readers = cluster.client(load_balancing_strategy=LoadBalancingStrategy.ROUND_ROBIN)
    assert [int(readers.get(key)) for key in keys[:100]] == list(range(100))
    owner = client.get_primaries()[0].port
    victim = cluster.nodes[cluster.ports.index(owner)]
    victim.kill()
    victim.wait()
    for number, key in enumerate(keys[100:], 100):
        eventually(lambda number=number, key=key: client.set(key, number))
    assert [int(client.get(key)) for key in keys] == list(range(200))
    assert client.get_primaries()[0].port != owner
    assert client.keyslot(keys[0]) == client.cluster_keyslot(keys[0])
