"""Cluster clients, unchanged, against three nodes of a cluster, also while one of them is killed: redis-py's RedisCluster, go-redis's ClusterClient,
node-redis's createCluster and JedisCluster.

They need a real `nats-server` on the path, and are skipped without one; those of other languages where their tools are not installed, or their packages
cannot be fetched.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from redis.cluster import ClusterNode, LoadBalancingStrategy, RedisCluster

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from nodes import NATS, PATIENCE, Cluster, eventually  # noqa: E402

pytestmark = pytest.mark.skipif(NATS is None, reason="there is no nats-server on the path")


def client_of(cluster, **options):
    nodes = [ClusterNode("127.0.0.1", port) for port in cluster.ports]
    return RedisCluster(startup_nodes=nodes, **options)


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.end()


def test_a_cluster_client_goes_on_when_the_owner_is_killed(cluster):
    client = eventually(lambda: client_of(cluster))
    keys = [f"p|{{b{number}}}|1" for number in range(200)]
    for number, key in enumerate(keys[:100]):
        client.set(key, number)

    def all_are_known():
        client.nodes_manager.initialize()
        return len(client.get_nodes()) == len(cluster.nodes)

    eventually(all_are_known)
    assert len(client.get_primaries()) == 1
    # Of nodes that stand by, too: they pass it on.
    readers = client_of(cluster, load_balancing_strategy=LoadBalancingStrategy.ROUND_ROBIN)
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


SHARDS = 3


@pytest.fixture
def nodes(tmp_path):
    """Three nodes that are for all shards, and own one each."""
    cluster = Cluster(tmp_path, shards=SHARDS)

    def all_own():
        owners = {node.port for node in client_of(cluster).get_primaries()}
        return all(any(port <= owner < port + SHARDS for owner in owners) for port in cluster.ports)

    eventually(all_own)
    yield cluster
    cluster.end()


def test_a_cluster_client_goes_on_when_a_node_of_several_is_killed(nodes):
    client = eventually(lambda: client_of(nodes))
    keys = [f"key{number}" if number % 2 else f"p|{{b{number}}}|1" for number in range(200)]
    for number, key in enumerate(keys[:100]):
        client.set(key, number)
    assert len(client.get_primaries()) == SHARDS
    assert [int(value) for value in client.mget_nonatomic(keys[:100])] == list(range(100))
    nodes.nodes[0].kill()
    nodes.nodes[0].wait()
    for number, key in enumerate(keys[100:], 100):
        eventually(lambda number=number, key=key: client.set(key, number))
    assert [int(eventually(lambda key=key: client.get(key))) for key in keys] == list(range(200))


@pytest.mark.parametrize(
    "folder, tool, fetch, run",
    [
        ("go", "go", "go mod download", "go test -count=1 -run TestClusterClient ./..."),
        (
            "node",
            "npm",
            "npm install --no-audit --no-fund --no-package-lock",
            "node cluster.js",
        ),
        ("java", "mvn", "mvn -q compile", "mvn -q exec:java"),
    ],
)
def test_cluster_clients_of_other_languages(nodes, folder, tool, fetch, run):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    place = pathlib.Path(__file__).parent / folder
    if subprocess.run(fetch.split(), cwd=place, capture_output=True).returncode:
        pytest.skip("its packages cannot be fetched")
    addresses = ",".join(f"127.0.0.1:{port}" for port in nodes.ports)
    victim = {"HEADWATER_CLUSTER": addresses, "HEADWATER_CLUSTER_VICTIM": str(nodes.nodes[0].pid)}
    # None of them needs longer for one step than it is patient, and there are few.
    done = subprocess.run(
        run.split(), cwd=place, env=os.environ | victim, capture_output=True, text=True, timeout=3 * PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert nodes.nodes[0].wait() != 0
