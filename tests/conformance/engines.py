"""Who runs a scenario: the plain model, and the engine through its bindings. Both answer alike."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from conformance import steps
from partition_files import PartitionFiles, records_and_position
from reference_model import batch_codec as codec
from reference_model.log_model import LogModel
from reference_model.producer_model import ModelError, ProducerModel

from eoslog.errors import EoslogError

MARKER_KINDS = {"abort": codec.ABORT, "commit": codec.COMMIT}


class Engine:
    """Builds the batches that the steps speak of; times count from `start_ms`."""

    def __init__(self) -> None:
        self.start_ms = int(time.time() * 1000)

    def batch(self, step: steps.Append | steps.Plain) -> bytes:
        times_ms = (step.at_ms,) * step.count
        producer: dict[str, int] = {}
        if isinstance(step, steps.Append):
            producer = {
                "attributes": codec.TRANSACTIONAL if step.transactional else 0,
                "producer_id": step.producer_id,
                "producer_epoch": step.epoch,
                "base_sequence": step.sequence,
            }
        elif step.times_ms:
            times_ms = step.times_ms
        records = [
            codec.ModelRecord(index, self.start_ms + at_ms, None, b"v" * step.value_bytes)
            for index, at_ms in enumerate(times_ms)
        ]
        return codec.encode_batch(records, **producer)

    def stored_batch(self, step: steps.Stored) -> bytes:
        indexes = range(step.count) if step.kept_indexes is None else step.kept_indexes
        records = [
            codec.ModelRecord(step.offset + index, self.start_ms + step.at_ms, b"k", b"v")
            for index in indexes
        ]
        return codec.encode_batch(
            records,
            base_offset=step.offset,
            leader_epoch=step.leader_epoch,
            attributes=(codec.TRANSACTIONAL if step.transactional else 0)
            | (codec.CONTROL if step.control else 0),
            last_offset_delta=step.count - 1,
            producer_id=step.producer_id,
            producer_epoch=step.epoch,
            base_sequence=step.sequence,
        )

    def stored_marker(self, step: steps.StoredMarker) -> bytes:
        return codec.encode_marker(
            MARKER_KINDS[step.kind],
            producer_id=step.producer_id,
            producer_epoch=step.epoch,
            coordinator_epoch=step.coordinator_epoch,
            offset=step.offset,
            timestamp_ms=self.start_ms + step.at_ms,
        )

    @staticmethod
    def marker_of(step: steps.Marker) -> tuple[int, int, int, bool]:
        return step.producer_id, step.epoch, step.coordinator_epoch, step.kind == "commit"

    def marker_options(self, step: steps.Marker) -> dict[str, Any]:
        return {"timestamp_ms": self.start_ms + step.at_ms, "newer_epoch": step.newer_epoch}


class ModelEngine(Engine):
    """The reference model. Indexes are no part of it: breaking one changes nothing."""

    def __init__(self, scenario: steps.Scenario) -> None:
        super().__init__()
        config = scenario.config
        self.log = LogModel(
            segment_bytes=config.get("segment.bytes", 1 << 20),
            index_interval_bytes=config.get("index.interval.bytes", 4096),
            index_bytes=config.get("segment.index.bytes", 10_485_760),
            log_start_offset=scenario.log_start_offset,
        )
        self.expiration_ms = config.get("producer.id.expiration.ms", 86_400_000)
        self.recovery_point = 0
        self.restored_from = ""

    def append(self, data: bytes, verified: bool) -> tuple[int, int, bool]:
        result = self.log.append_batch(data, verified=verified)
        return result.base_offset, result.last_offset, result.duplicate

    def mark(self, step: steps.Marker) -> int | None:
        result = self.log.append_marker(*self.marker_of(step), **self.marker_options(step))
        return None if result is None else result.base_offset

    def opened(self) -> tuple[int, list[tuple[int, int]]]:
        opened = [(one.producer_id, one.first_offset) for one in self.log.open_transactions()]
        return self.log.last_stable_offset, opened

    def aborted(self, first: int, upper_bound: int) -> list[tuple[int, int, int, int]]:
        found = self.log.aborted_transactions(first, upper_bound)
        return [aborted_fields(one) for one in found]

    def replicate(self, data: bytes) -> None:
        self.log.reopen()
        try:
            self.log.replicate(data)
        except ModelError:
            return

    def state(self, producer_id: int) -> dict[str, int] | None:
        entry = self.log.producer(producer_id)
        return None if entry is None else _state_of(entry)

    def reopen(self, clean: bool, recovery_point: int) -> str:
        self.log.reopen(clean=clean)
        self.recovery_point = self.log.log_end_offset if clean else recovery_point
        return "snapshot" if self.log.snapshots else "log"

    def bounds(self) -> dict[str, Any]:
        uppers = [*self.log.segments[1:], 2**63]
        newest = [
            max(
                (b.max_timestamp for b in self.log.batches if low <= b.base_offset < up), default=-1
            )
            for low, up in zip(self.log.segments, uppers, strict=True)
        ]
        return {
            "start": self.log.log_start_offset,
            "end": self.log.log_end_offset,
            "segments": tuple(self.log.segments),
            "snapshots": tuple(sorted(self.log.snapshots)),
            "recovery_point": self.recovery_point,
            "largest_times_ms": tuple(newest),
        }

    def roll(self) -> int:
        self.log.roll()
        return self.log.segments[-1]

    def flush(self) -> int:
        self.recovery_point = self.log.log_end_offset
        return self.recovery_point

    def truncate(self, offset: int) -> None:
        self.log.truncate(offset)

    def advance_start(self, offset: int) -> None:
        self.log.advance_log_start(offset)

    def delete_segments(self, up_to: int) -> int:
        return self.log.delete_segments(up_to)

    def expire(self, now_ms: int) -> list[int]:
        return self.log.producers.expire(now_ms, self.expiration_ms)

    def snapshot(self) -> bool:
        return self.log.take_snapshot()

    def read(
        self, offset: int, record_count_max: int, committed: bool
    ) -> tuple[tuple[int, ...], int]:
        if committed:
            records = self.log.committed_records(offset)[:record_count_max]
            bound = self.log.last_stable_offset
        else:
            records = self.log.records(offset, record_count_max)
            bound = self.log.log_end_offset
        return tuple(record.offset for record in records), max(bound, offset)

    def find_time(self, timestamp_ms: int) -> int | None:
        found = self.log.offset_for_timestamp(timestamp_ms)
        return None if found is None else found[0]

    def break_file(self, step: steps.BreakFile) -> None:
        if step.clean:
            self.log.take_snapshot()
        if step.suffix == ".snapshot":
            if step.how == "delete":
                del self.log.snapshots[step.base]
            else:
                self.log.snapshots[step.base] = b"broken"
        self.log.reopen(clean=False)

    def stray_file(self, step: steps.StrayFile) -> bool:
        if step.clean:
            self.log.take_snapshot()
        if step.suffix == ".snapshot":
            self.log.snapshots[step.base] = step.data
        self.log.reopen(clean=False)
        return step.suffix == ".snapshot" and step.base in self.log.snapshots

    def close(self) -> None:
        pass


def _state_of(entry: ProducerModel) -> dict[str, int]:
    first = entry.batches[0] if entry.batches else None
    return {
        "epoch": entry.producer_epoch,
        "first_sequence": first.first_sequence if first else -1,
        "first_offset": first.first_offset if first else -1,
        "last_sequence": entry.last_sequence,
        "last_offset": entry.last_offset,
        "coordinator_epoch": entry.coordinator_epoch,
        "transaction_first_offset": entry.transaction_first_offset,
        "batch_count": len(entry.batches),
    }


class BindingsEngine(Engine):
    """The engine itself, one partition in files of its own."""

    def __init__(self, scenario: steps.Scenario, root: Path) -> None:
        super().__init__()
        self.files = PartitionFiles(root, dict(scenario.config))
        self.expiration_ms = scenario.config.get("producer.id.expiration.ms", 86_400_000)
        self.log = self.files.open(log_start_offset=scenario.log_start_offset)

    @property
    def restored_from(self) -> str:
        return self.files.restored_from

    def append(self, data: bytes, verified: bool) -> tuple[int, int, bool]:
        return appended(self.log, data, verified)

    def mark(self, step: steps.Marker) -> int | None:
        return marked(self.log, self.marker_of(step), self.marker_options(step))

    def opened(self) -> tuple[int, list[tuple[int, int]]]:
        return opened(self.log)

    def aborted(self, first: int, upper_bound: int) -> list[tuple[int, int, int, int]]:
        return [aborted_fields(one) for one in self.log.aborted_transactions(first, upper_bound)]

    def replicate(self, data: bytes) -> None:
        start, base = self.log.log_start_offset, self.log.active_base_offset
        self.files.close()
        with self.files.path(base).open("ab") as file:
            file.write(data)
        self.log = self.files.open(clean=False, log_start_offset=start)

    def state(self, producer_id: int) -> dict[str, int] | None:
        entry = self.log.producer(producer_id)
        if entry is None:
            return None
        assert repr(entry) in [repr(known) for known in self.log.producers()]
        return {
            "epoch": entry.producer_epoch,
            "first_sequence": entry.batches[0][0] if entry.batches else -1,
            "first_offset": entry.batches[0][2] if entry.batches else -1,
            "last_sequence": entry.last_sequence,
            "last_offset": entry.last_offset,
            "coordinator_epoch": entry.coordinator_epoch,
            "transaction_first_offset": entry.current_txn_first_offset,
            "batch_count": len(entry.batches),
        }

    def reopen(self, clean: bool, recovery_point: int) -> str:
        self.log = self.files.reopen(clean=clean, recovery_point=recovery_point)
        return self.files.restored_from

    def bounds(self) -> dict[str, Any]:
        segments = self.log.segments()
        assert len(segments) == self.log.segment_count
        assert segments[-1]["base_offset"] == self.log.active_base_offset
        return {
            "start": self.log.log_start_offset,
            "end": self.log.log_end_offset,
            "segments": tuple(segment["base_offset"] for segment in segments),
            "snapshots": tuple(self.files.names(".snapshot")),
            "recovery_point": self.log.recovery_point,
            "largest_times_ms": tuple(segment["largest_timestamp_ms"] for segment in segments),
        }

    def roll(self) -> int:
        self.log.roll()
        return self.log.active_base_offset

    def flush(self) -> int:
        return self.log.flush()

    def truncate(self, offset: int) -> None:
        self.log.truncate(offset)

    def advance_start(self, offset: int) -> None:
        self.log.advance_log_start(offset)

    def delete_segments(self, up_to: int) -> int:
        return self.log.delete_segments(up_to)

    def expire(self, now_ms: int) -> list[int]:
        # Idle for the whole time or longer: last seen before the first moment that is still alive.
        expired = self.log.expired_producers(now_ms - self.expiration_ms + 1)
        self.log.drop_producers(expired)
        return list(expired)

    def snapshot(self) -> bool:
        return self.log.take_snapshot() is not None

    def read(
        self, offset: int, record_count_max: int, committed: bool
    ) -> tuple[tuple[int, ...], int]:
        if record_count_max < 1000 or offset > self.log.log_end_offset:
            records, position = self.log.fetch_records(
                offset, record_count_max, 1 << 20, committed=committed
            )
        else:
            records, position = records_and_position(self.log, offset, committed)
        return tuple(record.offset for record in records), position

    def find_time(self, timestamp_ms: int) -> int | None:
        found = self.log.offset_for_timestamp(timestamp_ms)
        return None if found is None else found[0]

    def break_file(self, step: steps.BreakFile) -> None:
        start = self.log.log_start_offset
        self.files.close(clean=step.clean or step.suffix == ".snapshot")
        for path in self._chosen(step):
            break_path(path, step.how)
        self.log = self.files.open(
            clean=step.clean, recovery_point=step.recovery_point, log_start_offset=start
        )

    def _chosen(self, step: steps.BreakFile) -> list[Path]:
        if step.base == steps.ALL:
            chosen = sorted(self.files.directory.glob(step.suffix))
        elif step.base == steps.NEWEST:
            chosen = [max(self.files.directory.glob(f"*{step.suffix}"))]
        else:
            chosen = [self.files.path(step.base, step.suffix)]
        return chosen

    def stray_file(self, step: steps.StrayFile) -> bool:
        start = self.log.log_start_offset
        self.files.close(clean=True)
        path = self.files.write(step.base, step.data, step.suffix)
        self.log = self.files.open(clean=step.clean, log_start_offset=start)
        return path.exists()

    def close(self) -> None:
        self.files.close()


def appended(log: Any, data: bytes, verified: bool) -> tuple[int, int, bool]:
    result = log.append_batch(data, verified=verified)
    assert result.record_count == result.last_offset - result.base_offset + 1
    return result.base_offset, result.last_offset, result.duplicate


def marked(log: Any, marker: tuple[int, int, int, bool], options: dict[str, Any]) -> int | None:
    end = log.log_end_offset
    result = log.append_marker(*marker, **options)
    assert log.log_end_offset == end + (0 if result.duplicate else 1)
    return None if result.duplicate else result.base_offset


def opened(log: Any) -> tuple[int, list[tuple[int, int]]]:
    found = [(one.producer_id, one.first_offset) for one in log.open_transactions()]
    return log.last_stable_offset, found


def aborted_fields(one: Any) -> tuple[int, int, int, int]:
    return one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset


def break_path(path: Path, how: str) -> None:
    noise = random.Random(path.name + how)
    data = path.read_bytes() if path.exists() else b""
    if how == "delete":
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(
            {
                "empty": lambda: b"",
                "half": lambda: data[: len(data) // 2],
                "zeros": lambda: bytes(37) + data[37:],
                "spaces": lambda: b"  ",
                "noise": lambda: noise.randbytes(len(data)),
                "append_noise": lambda: data + noise.randbytes(333),
            }[how]()
        )


def error_name(error: Exception) -> str:
    """The class of a refusal; both engines speak in the same names."""
    if isinstance(error, ModelError):
        return error.name
    assert isinstance(error, EoslogError), error
    assert error.outcome == "not_appended", error
    return type(error).__name__
