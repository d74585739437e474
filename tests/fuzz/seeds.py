"""What a fuzzer begins with: bytes of every kind as the store writes them, small ones.

`python tests/fuzz/seeds.py FOLDER` writes them below a folder, by target.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from format import worked_examples as worked

import eoslog
from eoslog.bindings.producer_state import PRODUCER_ROW_BYTES
from eoslog.bindings.record_batch import iter_batches
from eoslog.bindings.shared_page import SharedPage
from eoslog.common.topic_partition import TopicPartition
from eoslog.groups.members import GroupMembers, Member
from eoslog.groups.records import (
    OffsetValue,
    encode_members_key,
    encode_members_value,
    encode_offset_key,
    encode_offset_value,
)
from eoslog.staging.message import STAGED_PRODUCER_ID_MIN
from eoslog.store.store import parts_of
from fuzz.partition_targets import fresh, opened_in_session, template

GOLDEN = Path(__file__).parents[1] / "format" / "golden"
SEED_BYTES_MAX = 2000
WHERE = TopicPartition("orders", 3)
FILE = {
    "topic": "orders",
    "partition": 0,
    "name": "orders-0.0.batches",
    "bytes": 100,
    "records": 1,
    "producer_id": STAGED_PRODUCER_ID_MIN + 5,
    "crc": 12345,
}
Seed = tuple[str, bytes]


def seeds() -> Iterator[Seed]:
    yield from seeds_of_batches()
    yield from seeds_of_records()
    yield from seeds_of_tasks()
    yield from seeds_of_journals()
    yield from seeds_of_a_partition()
    with tempfile.TemporaryDirectory() as folder:
        yield from seeds_of_a_store(Path(folder) / "store")


def seeds_of_batches() -> Iterator[Seed]:
    for path in sorted(GOLDEN.glob("*_by_model.bin")):
        data = path.read_bytes()
        if len(data) <= SEED_BYTES_MAX:
            yield "batches", data
            yield "batches_with_sums", data
            yield "records", bytes([iter_batches(data)[0].record_count % 256]) + data[61:]
    whole = worked.DATA_BATCH + worked.COMMIT_MARKER
    for name in ("dumped_log", "log_recovered", "log_recovered_with_sums", "log_of_a_clean_close"):
        yield name, whole
        yield name, worked.ABORT_MARKER


def seeds_of_records() -> Iterator[Seed]:
    key = encode_offset_key("group", WHERE)
    yield "offset_key", key
    yield "offset_key", b"\x00\x00" + key[2:]
    for value in (OffsetValue(7, 1, "text", 1000), OffsetValue(7, -1, "", 1000, 2000)):
        yield "offset_value", encode_offset_value(value)
    flexible = (
        struct.pack(">hqi", 4, 7, 1) + b"\x05text" + struct.pack(">q", 1000) + b"\x01\x00\x02ab"
    )
    yield "offset_value", flexible
    member = Member(
        "member-1", "client", "host", 300_000, ("orders",), ("range",), b"\x01" * 8, 4,
        frozenset({WHERE}), frozenset({WHERE, TopicPartition("other", 0)}), None,
    )  # fmt: skip
    members = encode_members_value(GroupMembers(4, "range", (member,), 1000))
    yield "members_key", encode_members_key("group")
    yield "members_value", members
    shown = encode_members_key("group")
    yield "shown_records", struct.pack(">H", len(shown)) + shown + members
    own = b"\x03\xe9name" + b'{"version":1,"producer_id":5}'
    yield "shown_records", struct.pack(">H", 6) + own
    yield "transaction_key_bytes", b"\x00\x00\x00\x02id"


def seeds_of_journals() -> Iterator[Seed]:
    one = struct.pack("<16sqqqqii", bytes(16), 0, 61, 5, 7, 0, 0) + b"bytes"
    # A count of ranges; behind what the target writes: the length of the record.
    yield "commit_journal_with_sums", struct.pack("<IQ", 1, 56 + len(one)) + one
    yield "commit_journal_with_sums", struct.pack("<IQ", 0, 56)
    yield "commit_journal", bytes(100)


def seeds_of_tasks() -> Iterator[Seed]:
    message = {"app_id": "a", "run_id": "r", "attempt": "0", "files": [FILE], "synced": True}
    yield "staged_message", json.dumps(message).encode()
    offsets = [[3, FILE["producer_id"], {"in": "id"}, [["g", "in", 0, 5, -1, "", 1000]]]]
    manifest = {"files": [["attempt", [[*FILE.values()]]]], "offsets": offsets}
    job = {"topics": {"orders": {"topic_id": "id", "bounds": {"0": 17}}}, "manifest": manifest}
    source = {"id": "s", "base": 0, "driver": "d", "place": "p", "drivers": ["x"]}
    record = {
        "version": 1, "app_id": "a", "app_version": 3, "run_id": "r", "generation": 2,
        "state": "prepared", "overtaken": ["q"], "job": job, "process": "00ff", "source": source,
    }  # fmt: skip
    yield "application_record", json.dumps(record).encode()
    named = {"version": 1, "producer_id": 5, "epoch": 1, "positions": {"orders-0": [9, 1, 4]}}
    yield "named_producer_record", json.dumps(named).encode()
    yield "token", b"123:45"
    unresolved = {
        "session": "01" * 16,
        "renews": True,
        "partitions": [["orders", 0, [[5, 1, True, 2, False, 3, 40]]]],
    }
    yield "unresolved_transactions_file", json.dumps(unresolved).encode()


def seeds_of_a_partition() -> Iterator[Seed]:
    names, _, _, (rows, _) = template()
    targets = {
        ".index": ("offset_index", "dumped_indexes"),
        ".timeindex": ("time_index", "dumped_indexes"),
        ".txnindex": ("abort_index", "dumped_indexes"),
        ".snapshot": ("snapshot", "dumped_snapshot"),
        ".log": ("log_recovered", "log_of_a_clean_close"),
    }
    for name, content in sorted(names.items()):
        for target in targets[Path(name).suffix] if content else ():
            yield target, content
    yield "producer_rows", rows[: 2 * PRODUCER_ROW_BYTES]
    files = fresh()
    for name, content in names.items():
        (files.directory / name).write_bytes(content)
    log = opened_in_session(files)
    page = files.control.read_bytes()
    log.close()
    yield "control_page", page[:1024]
    yield "attached_page", page[36:112]


def seeds_of_a_store(path: Path) -> Iterator[Seed]:
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders", partitions=2, config={"segment.bytes": 2000})
        producer = store.producer(transactional_id="id")
        producer.init_transactions()
        with producer.transaction():
            producer.send("orders", value=b"v", partition=0)
        producer.close()
        session = (path / "state/session.json").read_bytes()
        shared = next((path / "state").glob("shared*")).read_bytes()
        for number in range(50):
            found = path / f"__transaction_state-{number}"
            if found.is_dir():
                for record in (
                    parts_of(store)
                    .files.partitions.internal_partition("__transaction_state", number)
                    .fetch_records(0, 100, 1 << 20)[0]
                ):
                    if record.key and record.key[:2] == b"\x00\x00" and record.value:
                        yield "transaction_value", record.value
                        shown = struct.pack(">H", len(record.key)) + record.key + record.value
                        yield "shown_records", shown
    yield "session_file", session
    yield "shared_page", shared[:1024]
    assert SharedPage.read_session(str(path / "none")) is None
    yield "meta_properties", (path / "meta.properties").read_bytes()
    yield "checkpoint", (path / "recovery-point-offset-checkpoint").read_bytes()
    yield "partition_metadata", (path / "orders-0/partition.metadata").read_bytes()
    yield "topics_file", (path / "state/topics.json").read_bytes()
    yield "older_topics", b'{}\t297bd0aa\n{"a":null}\t01b0ae7b\n'
    yield "clean_close_marker", (path / ".kafka_cleanshutdown").read_bytes()
    unrecovered = {"version": 1, "session": "ab", "partitions": ["orders-0"]}
    yield "clean_close_marker", json.dumps(unrecovered).encode()


def main() -> None:
    for number, (target, data) in enumerate(seeds()):
        folder = Path(sys.argv[1]) / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"seed-{number:03d}").write_bytes(data)


if __name__ == "__main__":
    main()
