"""A scenario through the public API: a store, its partition, and what a kill leaves of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from conformance import steps
from conformance.engines import (
    Engine,
    aborted_fields,
    appended,
    break_path,
    marked,
    opened,
)
from store_copies import copy_store

import eoslog
from eoslog.errors import EoslogError
from eoslog.store.store import engine_of

TOPIC = "orders"
# What only the store's own maintenance does, at times of its own: the bindings tell these.
INTERNAL_STEPS = (steps.Roll, steps.Truncate, steps.AdvanceStart, steps.Snapshot)
STORE_SETTINGS = ("producer.id.expiration.ms",)
CHECKPOINTS = {
    "recovery": "recovery-point-offset-checkpoint",
    "start": "log-start-offset-checkpoint",
}


def is_told_by_the_store(scenario: steps.Scenario) -> bool:
    internal = any(isinstance(step, INTERNAL_STEPS) for step in scenario.steps)
    return scenario.told_by_store and not internal


class StoreEngine(Engine):
    """Opened without LMDB's rows each time, so that the partition's own files have to do."""

    def __init__(self, scenario: steps.Scenario, root: Path) -> None:
        super().__init__()
        self._path = root / "store"
        config = {
            name: number for name, number in scenario.config.items() if name not in STORE_SETTINGS
        }
        self._config = {
            name: number for name, number in scenario.config.items() if name in STORE_SETTINGS
        }
        self.expiration_ms = scenario.config.get("producer.id.expiration.ms", 86_400_000)
        with eoslog.open(self._path, create=True, config=self._config) as store:
            store.create_topic(TOPIC, config=config)
        self._kills = 0
        if scenario.log_start_offset:
            self._write_checkpoint("start", scenario.log_start_offset)
        self._open()

    def _open(self) -> None:
        self._store = eoslog.open(self._path, config=self._config)
        self.log = engine_of(self._store).partition(TOPIC, 0)

    @property
    def restored_from(self) -> str:
        return self.log.producer_state.restored_from

    @property
    def _directory(self) -> Path:
        return self._path / f"{TOPIC}-0"

    def _write_checkpoint(self, name: str, offset: int) -> None:
        text = f"0\n1\n{TOPIC} 0 {offset}\n"
        (self._path / CHECKPOINTS[name]).write_text(text)

    def _stop(self, *, clean: bool, recovery_point: int) -> None:
        """Close, or go on with a copy of the files as a kill leaves them."""
        start = self.log.log_start_offset
        if clean:
            self._store.close()
        else:
            self._kills += 1
            copied = self._path.with_name(f"killed-{self._kills}")
            copy_store(self._path, copied)
            self._store.close()
            self._path = copied
            self._write_checkpoint("recovery", recovery_point)
            self._write_checkpoint("start", start)
        shutil.rmtree(self._path / "state" / "lmdb")

    def append(self, data: bytes, verified: bool) -> tuple[int, int, bool]:
        return appended(self.log, data, verified)

    def mark(self, step: steps.Marker) -> int | None:
        return marked(self.log, self.marker_of(step), self.marker_options(step))

    def opened(self) -> tuple[int, list[tuple[int, int]]]:
        return opened(self.log)

    def aborted(self, first: int, upper_bound: int) -> list[tuple[int, int, int, int]]:
        found = self.log.aborted_transactions(first, upper_bound - 1)
        return [aborted_fields(one) for one in found]

    def replicate(self, data: bytes) -> None:
        base = self.log.active_base_offset
        self._stop(clean=True, recovery_point=0)
        with (self._directory / f"{base:020d}.log").open("ab") as file:
            file.write(data)
        self._unclean_from(0)
        self._open()

    def _unclean_from(self, recovery_point: int) -> None:
        (self._path / ".kafka_cleanshutdown").unlink()
        self._write_checkpoint("recovery", recovery_point)

    def state(self, producer_id: int) -> dict[str, int] | None:
        entry = self.log.producer(producer_id)
        if entry is None:
            return None
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
        self._stop(clean=clean, recovery_point=recovery_point)
        self._open()
        return self.log.producer_state.restored_from

    def bounds(self) -> dict[str, Any]:
        segments = self.log.segments()
        names = self._directory.glob("*.snapshot")
        return {
            "start": self.log.log_start_offset,
            "end": self.log.log_end_offset,
            "segments": tuple(segment["base_offset"] for segment in segments),
            "snapshots": tuple(sorted(int(path.name[:20]) for path in names)),
            "recovery_point": self.log.recovery_point,
            "largest_times_ms": tuple(segment["largest_timestamp_ms"] for segment in segments),
        }

    def flush(self) -> int:
        return self.log.flush()

    def delete_segments(self, up_to: int) -> int:
        self.log.producer_state.save_copies()
        return self.log.delete_segments(up_to)

    def expire(self, now_ms: int) -> list[int]:
        before = {state.producer_id for state in self.log.producers()}
        count = self.log.producer_state.expire(now_ms - self.expiration_ms + 1, frozenset)
        gone = before - {state.producer_id for state in self.log.producers()}
        assert count == len(gone)
        return sorted(gone)

    def read(
        self, offset: int, record_count_max: int, committed: bool
    ) -> tuple[tuple[int, ...], int]:
        """By a consumer, as users read; outside of the log by the partition, which names it."""
        if not self.log.log_start_offset <= offset <= self.log.log_end_offset:
            self.log.fetch_records(offset, 1, 1 << 20)
        where = eoslog.TopicPartition(TOPIC, 0)
        found: list[int] = []
        isolation = "read_committed" if committed else "read_uncommitted"
        with self._store.consumer(auto_offset_reset="none", isolation_level=isolation) as consumer:
            consumer.assign([where])
            consumer.seek(where, offset)
            wanted = min(record_count_max, 1000)
            while records := consumer.poll(timeout=0, max_records=wanted):
                found += [record.offset for record in records]
                if len(found) >= record_count_max:
                    break
            position = consumer.position(where)
            assert not found or position > found[-1]
        return tuple(found[:record_count_max]), position

    def find_time(self, timestamp_ms: int) -> int | None:
        where = eoslog.TopicPartition(TOPIC, 0)
        with self._store.consumer() as consumer:
            found = consumer.offsets_for_times({where: timestamp_ms})[where]
        return None if found is None else found.offset

    def break_file(self, step: steps.BreakFile) -> None:
        self._stop(clean=step.clean or step.suffix == ".snapshot", recovery_point=0)
        for path in self._chosen(step):
            break_path(path, step.how)
        if not step.clean and (self._path / ".kafka_cleanshutdown").exists():
            self._unclean_from(step.recovery_point)
        elif not step.clean:
            self._write_checkpoint("recovery", step.recovery_point)
        self._open()

    def _chosen(self, step: steps.BreakFile) -> list[Path]:
        if step.base == steps.ALL:
            return sorted(self._directory.glob(step.suffix))
        if step.base == steps.NEWEST:
            return [max(self._directory.glob(f"*{step.suffix}"))]
        return [self._directory / f"{step.base:020d}{step.suffix}"]

    def stray_file(self, step: steps.StrayFile) -> bool:
        self._stop(clean=True, recovery_point=0)
        path = self._directory / f"{step.base:020d}{step.suffix}"
        path.write_bytes(step.data)
        if not step.clean:
            self._unclean_from(0)
        self._open()
        return path.exists()

    def close(self) -> None:
        try:
            self._store.close()
        except EoslogError as error:
            raise AssertionError("a store could not be closed") from error
