"""Log directories as a Kafka broker leaves them, written byte by byte without a broker."""

from __future__ import annotations

import struct
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from partition_files import segment_name
from reference_model import batch_codec as codec
from reference_model.batch_codec import ModelRecord

from eoslog.fs.identity_files import id_bytes, id_text

BASE_MS = 1_700_000_000_000
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
PROPERTIES = "#\n#Sat Nov 28 02:19:23 UTC 2026\nnode.id={node}\nversion=1\ncluster.id={cluster}\n"
TOPIC, PARTITION, CONFIG, CHANGE, REMOVE, NO_OP, BEGIN, END, ABORT = 2, 3, 4, 5, 9, 20, 23, 24, 25
OF_TOPIC, OF_BROKER = 2, 4


# As Java's FileChannel.tryLock: a lock of the process, on the whole file.
_TRY_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("held", flush=True)
else:
    print("locked", flush=True)
sys.stdin.read()
"""


def locking_process(lock: Path) -> subprocess.Popen[str]:
    """A process that locks a file as a broker does: it says "locked", or "held", and waits."""
    return subprocess.Popen(
        [sys.executable, "-c", _TRY_LOCK, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def try_lock(lock: Path) -> str:
    """Return "locked" if a broker could lock the file, else "held"."""
    with locking_process(lock) as process:
        return process.communicate("")[0].strip()


def topic_id(name: str) -> str:
    """An id that follows from the name."""
    return id_text(uuid.uuid5(uuid.NAMESPACE_URL, name).bytes)


# Records of the cluster's metadata: a frame, and fields in the flexible form.


def unsigned_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def text(value: str | None) -> bytes:
    encoded = b"" if value is None else value.encode()
    return unsigned_varint(0 if value is None else len(encoded) + 1) + encoded


def int32s(*numbers: int) -> bytes:
    return unsigned_varint(len(numbers) + 1) + struct.pack(f">{len(numbers)}i", *numbers)


def framed(record_type: int, fields: bytes, *, version: int = 0, tagged: bytes = b"\0") -> bytes:
    return unsigned_varint(1) + unsigned_varint(record_type) + bytes((version,)) + fields + tagged


def topic_record(name: str, of: str | None = None) -> bytes:
    return framed(TOPIC, text(name) + id_bytes(of or topic_id(name)))


def partition_record(name: str, number: int, *replicas: int, of: str | None = None) -> bytes:
    nodes = int32s(*replicas or (1,))
    fields = struct.pack(">i", number) + id_bytes(of or topic_id(name)) + nodes + nodes
    fields += int32s() * 2 + struct.pack(">iii", 1, 0, 0) + unsigned_varint(1)
    return framed(PARTITION, fields, version=2)


def change_record(name: str, number: int, *replicas: int) -> bytes:
    change = int32s(*replicas)
    tagged = bytes((2, 1, 4)) + struct.pack(">i", 1) + bytes((2, len(change))) + change
    fields = struct.pack(">i", number) + id_bytes(topic_id(name))
    return framed(CHANGE, fields, version=2, tagged=tagged)


def config_record(kind: int, of: str, name: str, value: str | None) -> bytes:
    return framed(CONFIG, bytes((kind,)) + text(of) + text(name) + text(value))


def remove_record(name: str, of: str | None = None) -> bytes:
    return framed(REMOVE, id_bytes(of or topic_id(name)))


def batch(
    values: Iterable[bytes | tuple[bytes, bytes | None] | None], base_offset: int = 0, **fields: int
) -> bytes:
    """A batch of values, or of pairs of a key and a value."""
    pairs = [value if isinstance(value, tuple) else (None, value) for value in values]
    records = [
        ModelRecord(offset, BASE_MS + offset, key, value)
        for offset, (key, value) in enumerate(pairs, base_offset)
    ]
    return codec.encode_batch(records, base_offset=base_offset, **fields)


def control_batch(kind: int, base_offset: int) -> bytes:
    record = ModelRecord(base_offset, BASE_MS, struct.pack(">hh", 0, kind), b"\0\0\0")
    return codec.encode_batch([record], base_offset=base_offset, attributes=codec.CONTROL)


def snapshot(values: Sequence[bytes], *, whole: bool = True) -> bytes:
    data = control_batch(3, 0) + batch(values, 1)
    return data + control_batch(4, 1 + len(values)) if whole else data


class BrokerDirectory:
    """One log directory; its files are written as they are given."""

    def __init__(self, path: Path, *, node: int = 1, cluster: str = CLUSTER_ID) -> None:
        self.path = path
        self.starts: dict[str, int] = {}
        self.ends: dict[str, int] = {}
        path.mkdir(parents=True)
        (path / "meta.properties").write_text(PROPERTIES.format(node=node, cluster=cluster))
        (path / ".lock").touch()
        (path / "cleaner-offset-checkpoint").write_text("0\n0\n")

    def partition(
        self,
        name: str,
        segments: Mapping[int, bytes] | bytes = b"",
        *,
        end: int | None = None,
        start: int = 0,
        of: str | None = None,
    ) -> Path:
        """Write a partition, `topic-number`, by its segments' base offsets. `end` is that of what
        was synced.
        """
        directory = self.path / name
        directory.mkdir()
        topic = name.rpartition("-")[0]
        (directory / "partition.metadata").write_text(
            f"version: 0\ntopic_id: {of or topic_id(topic)}"
        )
        (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        by_base = segments if isinstance(segments, Mapping) else {0: segments}
        for base_offset, data in by_base.items():
            (directory / segment_name(base_offset)).write_bytes(data)
        found = [one for data in by_base.values() for one in codec.whole_batches(data)]
        self.ends[name] = (
            end if end is not None else max((one.last_offset + 1 for one in found), default=0)
        )
        if start:
            self.starts[name] = start
        return directory

    def metadata(self, *values: bytes, from_offset: int = 0, of_snapshot: bytes = b"") -> Path:
        """Write the cluster's metadata: a log, and a snapshot of all below its beginning."""
        directory = self.path / "__cluster_metadata-0"
        directory.mkdir()
        data = control_batch(2, from_offset) + (batch(values, from_offset + 1) if values else b"")
        (directory / segment_name(from_offset)).write_bytes(data)
        if of_snapshot:
            name = f"{from_offset:020d}-0000000001.checkpoint"
            (directory / name).write_bytes(of_snapshot)
        return directory

    def stop(self, *, clean: bool = True) -> Path:
        """Write what a broker writes when it stops."""
        files = {
            "log-start-offset-checkpoint": self.starts,
            "recovery-point-offset-checkpoint": self.ends,
            "replication-offset-checkpoint": self.ends,
        }
        for file_name, offsets in files.items():
            rows = [f"{' '.join(name.rsplit('-', 1))} {at}" for name, at in offsets.items()]
            (self.path / file_name).write_text("\n".join(("0", str(len(rows)), *rows)) + "\n")
        if clean:
            (self.path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":7}')
        return self.path


def internal_partitions(directory: BrokerDirectory, topic: str, count: int = 50) -> None:
    """Write empty partitions of an internal topic, as far as they are not there."""
    for number in range(count):
        if not (directory.path / f"{topic}-{number}").exists():
            directory.partition(f"{topic}-{number}")
