"""One transactional id's entry with its logs, as tests make, look at and reopen it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partition_files import (
    EVER_MS,
    PartitionFiles,
    all_records,
    records_and_position,
    segment_name,
)

from eoslog.bindings.accumulator import RecordAccumulator
from eoslog.bindings.column_set import ColumnSet, open_columns
from eoslog.bindings.partition_log import PartitionLog
from eoslog.bindings.record_batch import BatchHeader, decode_records, iter_batches
from eoslog.bindings.transaction_entry import (
    TransactionEntry,
    TransactionPart,
    decode_transaction_value,
    encode_transaction_value,
    transactional_id_of,
)

ID = "my-transaction"
TIMEOUT_MS = 60_000
FILLER = b"filler"


@dataclass
class TransactionFiles:
    """An entry, its state log and the logs of its partitions; the names are the entry's own."""

    root: Path
    durable: bool = False
    state_config: dict[str, int] = field(default_factory=dict)
    data_config: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.files: dict[str, PartitionFiles] = {}
        self.state = self._open("state", self.state_config)
        self.parts: dict[tuple[str, int], TransactionPart] = {}
        self.entry = self.make_entry()

    def _open(self, name: str, config: dict[str, int]) -> PartitionLog:
        # Records of the year 1970 stand beside today's: that starts no new segment here.
        self.files[name] = PartitionFiles(self.root / name, {"segment.ms": EVER_MS} | config)
        return self.files[name].open()

    def make_entry(self) -> TransactionEntry:
        return TransactionEntry(ID, self.state, self.durable)

    def part(self, topic: str, partition: int = 0) -> TransactionPart:
        if (topic, partition) not in self.parts:
            log = self._open(f"{topic}-{partition}", self.data_config)
            self.parts[topic, partition] = TransactionPart(topic, partition, log)
        return self.parts[topic, partition]

    def close(self) -> None:
        for one in self.files.values():
            one.close()

    def initialize(self, producer_id: int = 7, epoch: int = 0, **others: int) -> None:
        numbers = {"last_producer_epoch": -1, "previous_producer_id": -1, "now_ms": 500}
        self.entry.initialize(
            producer_id=producer_id,
            producer_epoch=epoch,
            **({"timeout_ms": TIMEOUT_MS} | numbers | others),
        )

    def load(self, state: str, epoch: int = 5, producer_id: int = 7, **others: Any) -> None:
        """Have the entry as if this were its newest record; `parts` are attached."""
        parts = others.pop("parts", [])
        fields = {
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "timeout_ms": TIMEOUT_MS,
            "state": state,
            "partitions": None if state == "Empty" else [(p.topic, p.partition) for p in parts],
            "last_update_ms": 1000,
            "start_ms": -1 if state == "Empty" else 900,
            "client_transaction_version": 2,
            "last_producer_epoch": epoch - 1,
        }
        self.entry.load(encode_transaction_value(**(fields | others)), 0)
        self.entry.attach(parts)

    def reload(self) -> None:
        """A new entry, as the next coordinator would make it from the state log."""
        record = all_records(self.state)[-1]
        self.entry = self.make_entry()
        self.entry.load(record.value, record.offset)
        self.entry.attach(list(self.parts.values()))

    def records(self) -> list[dict[str, Any] | None]:
        """The state log's records; None is a tombstone."""
        found = []
        for record in all_records(self.state):
            if record.key == FILLER:
                continue
            assert transactional_id_of(record.key) == ID
            found.append(None if record.value is None else decode_transaction_value(record.value))
        return found

    def states(self) -> list[str]:
        return [record["state"] if record else "tombstone" for record in self.records()]


def opened(
    values: object, keys: object = None, timestamps: object = None, headers: object = None
) -> ColumnSet:
    """Columns as an entry takes them."""
    return open_columns(values, keys, timestamps, headers, 1)


def filled(part: TransactionPart, *values: bytes) -> tuple[RecordAccumulator, TransactionPart]:
    accumulator = RecordAccumulator(16384)
    for value in values:
        accumulator.add(value, None, None, 1000)
    return accumulator, part


def whole_batches(log: PartitionLog) -> list[tuple[BatchHeader, bytes]]:
    """The header and the bytes of each batch."""
    found = []
    offset = 0
    while offset < log.log_end_offset:
        data = log.read(offset)
        for header in iter_batches(data):
            end = header.position_bytes + header.batch_bytes
            found.append((header, data[header.position_bytes : end]))
            offset = header.last_offset + 1
    return found


def batches(log: PartitionLog) -> list[tuple[Any, ...]]:
    """(producer id, epoch, first sequence, values) of each batch; a marker's value is its type."""
    found = []
    for header, data in whole_batches(log):
        assert header.is_transactional or header.producer_id < 0
        records = decode_records(data)
        if records[0].key == FILLER:
            continue
        if header.is_control:
            values = {0: "ABORT", 1: "COMMIT"}[int.from_bytes(records[0].key[2:4], "big")]
        else:
            values = [record.value for record in records]
        found.append((header.producer_id, header.producer_epoch, header.base_sequence, values))
    return found


def committed(log: PartitionLog) -> list[bytes]:
    records = records_and_position(log, 0, committed=True)[0]
    return [record.value for record in records if record.key != FILLER]


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can grow: an append that needs more of the disk finds no space."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def have_room(log: PartitionLog) -> None:
    """Have the log's file grow by its first step, with a small record."""
    log.append_columns([b"f"], [FILLER], timestamp_ms=1)


def fill_up(log: PartitionLog, room_bytes: int) -> None:
    """Append records until this much room is left in what the log's file has on the disk."""
    have_room(log)
    file_bytes = (Path(log.path) / segment_name(log.active_base_offset)).stat().st_size
    wanted = file_bytes - room_bytes - log.size_bytes
    assert 10_000 < wanted < 1_000_000
    # 61 bytes of header; length 3, attributes, timestamp, offset, key 1 + 6, value 3, headers.
    log.append_columns([b"f" * (wanted - 61 - 17)], [FILLER], timestamp_ms=1)
    assert log.size_bytes == file_bytes - room_bytes
