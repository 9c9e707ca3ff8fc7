"""All power of a cluster is lost at once: what was acknowledged is there when it is back, whatever the disks had not been told to keep.

Three machines have a file system each, with a NATS server's store and the folders of nodes. A loss of power is what ext4 makes of it for its own tests: nothing reaches
the disk any more from one moment on (EXT4_IOC_SHUTDOWN without a flush of the journal), and what is there then is what comes back. It needs root, loop devices and a real
`nats-server`, and is skipped without them.

HEADWATER_CLUSTER_ROUNDS says how often power is lost (2).
"""

import fcntl
import os
import pathlib
import re
import struct
import subprocess
import sys
import threading
import time

import pytest
import redis

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from nodes import NATS, SERVERS, Cluster, eventually  # noqa: E402

ROUNDS = int(os.environ.get("HEADWATER_CLUSTER_ROUNDS", "2"))
# Which shard each node is for: each machine has one of each.
OF = (0, 1, 0, 1)
WRITERS = 4
EXT4_IOC_SHUTDOWN, NO_FLUSH_OF_THE_JOURNAL = 0x8004587D, 2
IMAGE_BYTES = 512 << 20

pytestmark = pytest.mark.skipif(NATS is None, reason="there is no nats-server on the path")


class Disk:
    """A file system that loses power."""

    def __init__(self, folder, name):
        self.image, self.path = folder / f"{name}.img", folder / name
        self.path.mkdir()
        with open(self.image, "wb") as image:
            image.truncate(IMAGE_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=1", str(self.image)], check=True)
        self.mount()

    def mount(self):
        subprocess.run(["mount", "-o", "loop", str(self.image), str(self.path)], check=True)

    def lose_power(self):
        folder = os.open(self.path, os.O_RDONLY)
        fcntl.ioctl(folder, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_FLUSH_OF_THE_JOURNAL))
        os.close(folder)

    def unmount(self):
        subprocess.run(["umount", str(self.path)], check=True)


def has_disks(folder):
    try:
        disk = Disk(folder, "try")
    except (OSError, subprocess.CalledProcessError):
        return False
    try:
        (disk.path / "lost").write_text("x")
        disk.lose_power()
        return True
    except OSError:
        return False
    finally:
        disk.unmount()


class Writer(threading.Thread):
    """Writes ever greater numbers to keys of its own through one node, as long as that answers; which number of each key was acknowledged last."""

    def __init__(self, port, me):
        super().__init__(daemon=True)
        self.port, self.me, self.ends, self.written, self.acknowledged = port, me, False, {}, 0

    def run(self):
        client = redis.Redis(port=self.port, socket_timeout=10)
        number = 0
        while not self.ends:
            number += 1
            key = f"p|w{self.me}|{number % 50:02}"
            try:
                client.set(key, number)
                self.written[key] = number
                self.acknowledged += 1
            except redis.RedisError:
                time.sleep(0.01)


@pytest.fixture
def disks(tmp_path):
    if not has_disks(tmp_path):
        pytest.skip("file systems cannot be made and mounted here")
    made = [Disk(tmp_path, f"machine{at}") for at in range(SERVERS)]
    yield made
    for disk in made:
        disk.unmount()


def lose_power(cluster, disks, seconds):
    """Writes for so long, and until each writer has just had more acknowledged, loses all power, and has it back; what was acknowledged."""
    writers = [Writer(cluster.ports[at % len(OF)], at) for at in range(WRITERS)]
    for writer in writers:
        writer.start()
    time.sleep(seconds)
    # What has just been acknowledged is what may be lost.
    before = [writer.acknowledged for writer in writers]
    eventually(lambda: all(writer.acknowledged > 10 + earlier for writer, earlier in zip(writers, before)))
    # One after the other, as machines do.
    for disk in disks:
        disk.lose_power()
    for writer in writers:
        writer.ends = True
    cluster.kill()
    for writer in writers:
        writer.join()
    for disk in disks:
        disk.unmount()
        disk.mount()
    cluster.run()
    return {key: number for writer in writers for key, number in writer.written.items()}


def answers(cluster):
    client = redis.Redis(port=cluster.ports[0], socket_timeout=10)
    return all(client.get(f"p|w{at}|00") or True for at in range(20))


def test_what_was_acknowledged_outlives_the_power_of_all(tmp_path, disks):
    cluster = Cluster(tmp_path, OF, machines=[disk.path for disk in disks])
    try:
        eventually(lambda: answers(cluster))
        join = "copies", "t|all|<w>|<k> = copy p|<w>|<k>"
        eventually(lambda: redis.Redis(port=cluster.ports[0]).execute_command("JOIN.ADD", *join) is not None)
        for _ in range(ROUNDS):
            written = lose_power(cluster, disks, 4)
            assert len(written) > 20
            eventually(lambda: answers(cluster))
            for at in range(2):
                client = redis.Redis(port=cluster.ports[at], socket_timeout=30)
                found = {key: int(client.get(key) or 0) for key in written}
                # One that was not acknowledged may be there.
                lost = {key: (written[key], found[key]) for key in written if found[key] < written[key]}
                assert not lost
                derived = client.execute_command("PREFIX", "t|all|")
                derived = derived if isinstance(derived, dict) else dict(zip(derived[::2], derived[1::2]))
                assert {key.decode().replace("t|all|", "p|"): int(number) for key, number in derived.items()}.items() >= found.items()
    finally:
        cluster.end()


def test_without_syncing_each_message_something_is_lost(tmp_path, disks):
    """What the other test looks for is found where it is there."""
    cluster = Cluster(tmp_path, OF, ["--unsafe-sync"], [disk.path for disk in disks], "2m")
    try:
        eventually(lambda: answers(cluster))
        written = lose_power(cluster, disks, 4)

        def lost():
            client = redis.Redis(port=cluster.ports[0], socket_timeout=10)
            return sum(int(client.get(key) or 0) < number for key, number in written.items())

        try:
            assert eventually(lost) > 0
        except (AssertionError, redis.RedisError):
            # Or the nodes see that it is, and do not serve.
            logs = "".join(log.read_text(errors="replace") for log in tmp_path.glob("node*.log"))
            lost_records = r"message \d+ of stream \S+ (was acknowledged and is lost|is missing|is needed, and it begins with|is another one)"
            assert re.search(lost_records + r"|is a copy of an earlier stream", logs)
    finally:
        cluster.end()
