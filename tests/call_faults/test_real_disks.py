"""A real file system that fails under a store at work: ext4 in a file, where one may be mounted.

It becomes read-only after an error, or is shut down as by a drive that is gone. What a durability
promised is there after the file system's own repair; the child never dies.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from short_form import short_form
from staged_jobs import quick_directory

import eoslog
from eoslog import TopicPartition
from eoslog.errors import EoslogError

pytestmark = pytest.mark.crash

TOPIC, NAME = "orders", "writer"
TESTS = Path(__file__).parents[1]
PLACE = TopicPartition(TOPIC, 0)
DISK_BYTES = 64 << 20
EXT4_IOC_SHUTDOWN = 0x8004587D
# What is on its way to the disk when it is gone: flushed, the journal alone, nothing.
DOWN = {"down": 0, "down, journal": 1, "down, nothing": 2}
WAYS = ("error", *DOWN)
# The append at which it happens: right before a flush, and with appends between.
MOMENTS = (300, 301, 333)
DURABILITIES = ("commit", "always", "process")
FLUSHED_EVERY = 50
REPAIRS_MAX = 300


class Disk:
    def __init__(self, root: Path) -> None:
        self.file, self.path = root / "disk", root / "mounted"
        self.path.mkdir()
        with self.file.open("wb") as file:
            file.truncate(DISK_BYTES)

    def make(self) -> None:
        for command in (["mkfs.ext4", "-q", "-F", self.file], self._mounting()):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no ext4 can be mounted: {done.stderr.strip()}")

    def repair(self) -> None:
        for _ in range(REPAIRS_MAX):
            subprocess.run(["umount", self.path], check=True)
            subprocess.run(["e2fsck", "-fy", self.file], capture_output=True, check=False)
            subprocess.run(self._mounting(), check=True)
            # The loop device may still have been the broken one.
            if not os.statvfs(self.path).f_flag & os.ST_RDONLY:
                return
            time.sleep(0.2)
        pytest.fail("the file system stays read-only")

    def _mounting(self) -> list[str | Path]:
        return ["mount", "-o", "loop,errors=remount-ro", self.file, self.path]


@pytest.fixture
def disk(tmp_path) -> Iterator[Disk]:
    if os.geteuid() or not all(map(shutil.which, ("mkfs.ext4", "mount", "e2fsck"))):
        pytest.skip("only root mounts a file system, with e2fsprogs")
    with quick_directory(tmp_path) as root:
        disk = Disk(root)
        disk.make()
        yield disk
        subprocess.run(["umount", disk.path], check=False)


@pytest.mark.parametrize(
    ("how", "durability", "at"),
    short_form(
        [(how, one, at) for how in WAYS for one in DURABILITIES for at in MOMENTS],
        ("error", "commit", 301),
        ("down, journal", "always", 333),
        ("down, nothing", "commit", 300),
    ),
)
def test_a_disk_that_fails_under_a_store(disk, how, durability, at):
    command = [sys.executable, "-m", "call_faults.test_real_disks", disk.path, how, durability]
    done = subprocess.run(
        [*command, str(at)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    appended, promised = map(int, done.stdout.split()[-2:])
    assert appended >= at
    disk.repair()
    with eoslog.open(disk.path / "store") as store:
        values = read(store)
        assert values == [value_of(number) for number in range(len(values))]
        assert promised <= len(values) <= appended + 1
        assert store.verify() == []
        producer = store.producer(name=NAME)
        if durability != "process":
            assert producer.next_sequence(TOPIC, 0) == len(values)
        producer.append(TOPIC, partition=0, values=[b"after"])
        assert read(store) == [*values, b"after"]


def value_of(number: int) -> bytes:
    return b"%d:" % number + b"v" * 700


def read(store: eoslog.Store) -> list[bytes]:
    found: list[bytes] = []
    with store.consumer() as consumer:
        consumer.assign([PLACE])
        while records := consumer.poll(timeout=0, max_records=1000):
            found += [record.value or b"" for record in records]
    return found


def fail(path: Path, how: str) -> None:
    if how == "error":
        device = path.stat().st_dev
        block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name
        Path(f"/sys/fs/ext4/{block}/trigger_fs_error").write_text("asked for")
        return
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", DOWN[how]))
    os.close(descriptor)


def main(path: str, how: str, durability: str, at: str) -> None:
    """Prints how many appends returned, and for how many the durability promised a power cut."""
    store = eoslog.open(Path(path) / "store", create=True, durability=durability)
    store.create_topic(TOPIC, config={"segment.bytes": 1 << 16})
    producer = store.producer(name=NAME)
    appended = promised = refused = 0
    while refused < 20:
        if appended == int(at):
            fail(Path(path), how)
            at = "-1"
        try:
            producer.append(TOPIC, partition=0, values=[value_of(appended)])
            appended += 1
            if durability == "always":
                promised = appended
            if appended % FLUSHED_EVERY == 0:
                producer.flush()
                promised = 0 if durability == "process" else appended
        except EoslogError as error:
            refused += 1
            assert error.outcome in ("not_appended", "unknown")
    assert len(read(store)) in (appended, appended + 1)
    try:
        store.close()
    except EoslogError:
        pass
    else:
        raise AssertionError("a clean close on a disk that is gone")
    print(appended, promised)


if __name__ == "__main__":
    main(*sys.argv[1:])
