"""Cluster clients, unchanged, against three nodes of a cluster, also while one of them is killed: redis-py's RedisCluster, go-redis's ClusterClient,
node-redis's createCluster and JedisCluster; and pymemcache, which asks any node.

They need a real `nats-server` on the path, and are skipped without one; those of other languages where their tools are not installed, or their packages
cannot be fetched.
"""

import contextlib
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


def test_memcached_is_spoken_at_every_node_when_the_owner_is_killed(tmp_path):
    base = pytest.importorskip("pymemcache.client.base")
    exceptions = pytest.importorskip("pymemcache.exceptions")
    cluster = Cluster(tmp_path, words=["--memcached-port", "0"])
    try:

        def client(at):
            lines = (tmp_path / f"node{at}.log").read_text().splitlines()
            said = [line for line in lines if line.startswith("memcached's protocol on ")]
            return base.Client(said[-1].split()[-1], timeout=PATIENCE, no_delay=True)

        def works(at):
            """All commands through one node; nothing where the owner has lost its lease meanwhile, as it may on a busy machine."""
            try:
                each = client(at)
            except IndexError:
                # It has not begun yet.
                return False
            with contextlib.closing(each):
                try:
                    assert each.set_many({f"{at}{key}": key * 1000 for key in "abc"}, noreply=False) == []
                    assert each.get_many([f"{at}a", f"{at}c", "none"]) == {f"{at}a": b"a" * 1000, f"{at}c": b"c" * 1000}
                    assert each.append(f"{at}a", "!", noreply=False)
                    value, version = each.gets(f"{at}a")
                    assert value == b"a" * 1000 + b"!"
                    assert each.cas(f"{at}a", "new", version, noreply=False) is True
                    assert each.cas(f"{at}a", "newer", version, noreply=False) is False
                    assert each.set(f"{at}n", 5, noreply=False) and each.incr(f"{at}n", 3) == 8
                    assert each.delete(f"{at}c", noreply=False) and each.get(f"{at}c") is None
                except (OSError, exceptions.MemcacheServerError):
                    return False
            return True

        for at in range(len(cluster.ports)):
            eventually(lambda at=at: works(at), forgives=())
        owner = cluster.ports.index(eventually(lambda: client_of(cluster).get_primaries()[0].port))
        cluster.nodes[owner].kill()
        cluster.nodes[owner].wait()
        for at in set(range(len(cluster.ports))) - {owner}:

            def answers(at=at):
                with contextlib.closing(client(at)) as each:
                    return each.get(f"{owner}a") == b"new" and each.incr(f"{owner}n", 1)

            assert eventually(answers) > 8
    finally:
        cluster.end()


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
