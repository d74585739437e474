"""A partition's directory as tests make, open, break and reopen it through the bindings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from eoslog.bindings.partition_log import PartitionLog

TOPIC = "orders"
PARTITION = 0
EVER_MS = 2**63 - 1

# Kafka's defaults, but for sizes that suit a test.
CONFIG = {
    "segment.bytes": 1 << 20,
    "segment.ms": 604_800_000,
    "segment.index.bytes": 10_485_760,
    "index.interval.bytes": 4096,
    "max.message.bytes": 1_048_588,
    "producer.id.expiration.ms": 86_400_000,
    "message.timestamp.before.max.ms": EVER_MS,
    "message.timestamp.after.max.ms": EVER_MS,
    "eoslog.spare.segments": 0,
}


def settings_named(**config: int) -> dict[str, int]:
    """Settings by the names that the engine knows them by, with dots."""
    return {name.replace("_", "."): number for name, number in config.items()}


def segment_name(base_offset: int, suffix: str = ".log") -> str:
    return f"{base_offset:020d}{suffix}"


@dataclass
class PartitionFiles:
    """The folders that one partition needs; the store does the same for its own."""

    root: Path
    config: dict[str, int] = field(default_factory=dict)
    log: PartitionLog | None = None

    def __post_init__(self) -> None:
        for folder in (self.directory, self.spare, self.cut, self.control.parent):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def directory(self) -> Path:
        return self.root / f"{TOPIC}-{PARTITION}"

    @property
    def control(self) -> Path:
        return self.root / "control" / f"{TOPIC}-{PARTITION}"

    @property
    def spare(self) -> Path:
        return self.root / "spare"

    @property
    def cut(self) -> Path:
        return self.root / "cut"

    def path(self, base_offset: int, suffix: str = ".log") -> Path:
        return self.directory / segment_name(base_offset, suffix)

    def write(self, base_offset: int, data: bytes, suffix: str = ".log") -> Path:
        path = self.path(base_offset, suffix)
        path.write_bytes(data)
        return path

    def open(
        self,
        *,
        clean: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        rows: bytes | None = None,
        rows_offset: int = 0,
        evicted_count: int = 0,
        abort_files: list[tuple[int, int, int]] | None = None,
    ) -> PartitionLog:
        """Open the log and restore its producers from `rows`, else from its own files."""
        self.log = PartitionLog(
            str(self.directory),
            topic=TOPIC,
            partition=PARTITION,
            control_path=str(self.control),
            spare_path=str(self.spare),
            cut_path=str(self.cut),
            config=CONFIG | self.config,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
        )
        self.restored_from = self.log.restore_producers(
            rows, rows_offset, evicted_count, abort_files
        )
        return self.log

    def close(self, *, clean: bool = True) -> None:
        if self.log is not None:
            self.log.close(clean=clean)
            self.log = None

    def reopen(
        self, *, clean: bool = True, recovery_point: int = 0, keep_rows: bool = False
    ) -> PartitionLog:
        """Close and open again: as after a crash if not `clean`, with the rows or without."""
        assert self.log is not None
        start = self.log.log_start_offset
        rows: bytes | None = None
        rows_offset = 0
        if keep_rows:
            rows, rows_offset = self.log.dirty_producers()
        self.close(clean=clean)
        return self.open(
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=start,
            rows=rows,
            rows_offset=rows_offset,
        )

    def names(self, suffix: str) -> list[int]:
        """The base offsets in the names of the files with this suffix."""
        return sorted(int(path.name[:20]) for path in self.directory.glob(f"*{suffix}"))


def all_records(log: PartitionLog, offset: int | None = None) -> list[object]:
    """Every record from `offset` on, in several fetches.

    Behind a truncation inside a batch the log's end lies past its last batch: nothing is there.
    """
    return records_and_position(log, log.log_start_offset if offset is None else offset)[0]


def records_and_position(
    log: PartitionLog, position: int, committed: bool = False
) -> tuple[list[object], int]:
    """Every record from `position` on, or every committed one, and where a reader stands then."""
    found: list[object] = []
    options = {"committed": True} if committed else {}
    while position < log.log_end_offset:
        records, next_offset = log.fetch_records(position, 1000, 1 << 20, **options)
        if next_offset == position:
            assert not records
            break
        found.extend(records)
        position = next_offset
    return found, position


def same_records(found: Iterable[object], expected: Iterable[object]) -> None:
    """Compare the engine's records with the model's, field by field."""

    def fields(record: object) -> tuple[object, ...]:
        names = ("offset", "timestamp_ms", "key", "value", "headers")
        return tuple(getattr(record, name) for name in names)

    assert [fields(record) for record in found] == [fields(record) for record in expected]
