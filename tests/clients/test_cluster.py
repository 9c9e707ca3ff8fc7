"""redis-py's RedisCluster, unchanged, against three nodes of a cluster, also while the one that owns the data is killed.

It needs a real `nats-server` on the path, and is skipped without one.
"""

import pathlib
import sys

import pytest
from redis.cluster import ClusterNode, LoadBalancingStrategy, RedisCluster

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from nodes import NATS, Cluster, eventually  # noqa: E402

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
