"""What a crash may leave of a store at transactional work, and what must be true of it then.

A state is built for a moment between two events of a trace. Of each log there is everything that
was synced by then, and any part of what had been appended; of the files beside the logs, what was
there at that moment or, where they promise nothing, earlier, damaged or not at all.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from crash.lost_power import SECTOR_BYTES, DiskState
from crash.transaction_trace import (
    GROUP,
    QUIET,
    TOPIC,
    LiveStore,
    Moment,
    end_of_life,
)
from reference_model import batch_codec as codec

import eoslog
from eoslog import TopicPartition
from eoslog.fs.checkpoint_file import RECOVERY_POINT, read_checkpoint
from eoslog.store.store import parts_of

SHARES = (0.0, 0.1, 0.5, 0.9, 0.98, 1.0)
DERIVED = (".index", ".timeindex", ".snapshot", ".txnindex")
CHECKPOINTS = "-checkpoint"


@dataclass
class LogFile:
    """One segment as it was at the end of the work."""

    name: Path
    base_offset: int
    data: bytes
    size_bytes: int
    ends: list[tuple[int, int]] = field(default_factory=list)  # (offset behind a batch, its end)

    def bytes_below(self, offset: int) -> int:
        return max((end for behind, end in self.ends if behind <= offset), default=0)


def log_files(path: Path) -> dict[str, list[LogFile]]:
    """Every log's segments, in order."""
    found: dict[str, list[LogFile]] = {}
    for file in sorted(path.glob("*/*.log")):
        if file.parent.name == "state":
            continue
        data = file.read_bytes()
        one = LogFile(file.relative_to(path), int(file.stem), b"", len(data))
        used = 0
        for batch in codec.whole_batches(data):
            used += len(batch.data)
            one.ends.append((batch.last_offset + 1, used))
        one.data = data[:used]
        found.setdefault(file.parent.name, []).append(one)
    return found


class CrashStates:
    """Builds states of one piece of work."""

    def __init__(self, live: LiveStore) -> None:
        self.live = live
        self.logs = log_files(live.path)

    def moments_until(self, at: int) -> list[Moment]:
        return [moment for moment in self.live.moments if moment.at <= at]

    def power_cut(self, target: Path, at: int, noise: random.Random) -> dict[str, int]:
        """A cut when `at` events had happened; where each log then ends, at most."""
        ends, synced = self.live.trace.at(at)
        how = noise.choice(("batches", "batches", "sectors"))
        left = {}
        for name, files in self.logs.items():
            end, kept = ends.get(name, 0), synced.get(name, 0)
            if how == "batches":
                end = noise.choice(self._ends_between(files, kept, end))
                self.write_log(target, files, end, noise)
            else:
                self._write_torn(target, files, kept, end, noise)
            left[name] = end
        self._write_others(target, self.moments_until(at), noise)
        return left

    def at_ends(self, target: Path, at: int, ends: dict[str, int]) -> None:
        """The state in which each log ends at a given batch; all else is as it was."""
        for name, files in self.logs.items():
            self.write_log(target, files, ends.get(name, 0), None)
        self._write_others(target, self.moments_until(at), None)

    @staticmethod
    def _ends_between(files: Iterable[LogFile], low: int, high: int) -> list[int]:
        between = [end for file in files for end, _ in file.ends if low <= end <= high]
        return between if low > 0 else [0, *between]

    @staticmethod
    def write_log(
        target: Path, files: list[LogFile], end: int, noise: random.Random | None
    ) -> None:
        """The log up to an offset, with zeros behind, as a segment has them that is being used."""
        for file in files:
            if file.base_offset >= end and file is not files[0]:
                break
            used = file.bytes_below(end)
            size = file.size_bytes
            if noise is not None and noise.random() < 0.3:
                size = noise.randint(used, size)
            _write_sparse(target / file.name, file.data[:used], size)

    def _write_torn(
        self, target: Path, files: list[LogFile], synced: int, end: int, noise: random.Random
    ) -> None:
        for file in files:
            is_first = file is files[0]
            if file.base_offset >= end and not is_first:
                break
            used, kept = file.bytes_below(end), file.bytes_below(synced)
            if kept == 0 and not is_first and noise.random() < 0.2:
                continue
            share = noise.choice(SHARES)
            data = bytearray(file.data[:used])
            for start in range(kept // SECTOR_BYTES * SECTOR_BYTES, used, SECTOR_BYTES):
                upper = min(start + SECTOR_BYTES, used)
                if noise.random() >= share:
                    first = max(start, kept)
                    data[first:upper] = bytes(upper - first)
            size = file.size_bytes
            if noise.random() < 0.2:
                size = noise.randint(kept, size)
            _write_sparse(target / file.name, bytes(data[:size]), size)

    def _write_others(
        self, target: Path, moments: list[Moment], noise: random.Random | None
    ) -> None:
        """What is beside the logs. Without `noise` it is that of the last moment."""
        latest = moments[-1].files
        checkpoints, rows = latest, latest
        if noise is not None:
            checkpoints = noise.choice((latest, noise.choice(moments).files))
            rows = noise.choice((latest, noise.choice(moments).files, None))
        points = {}
        for name, file in latest.files.items():
            if name.name.endswith(CHECKPOINTS) or name.parts[:2] == ("state", "lmdb"):
                continue
            if name.suffix not in DERIVED:
                _write_sparse(target / name, file.data, len(file.data))
        _copy(checkpoints, target, lambda name: name.name.endswith(CHECKPOINTS))
        if rows is not None:
            _copy(rows, target, lambda name: name.parts[:2] == ("state", "lmdb"))
        if (target / RECOVERY_POINT).exists():
            points = read_checkpoint(target / RECOVERY_POINT)
        for name, file in latest.files.items():
            if name.suffix not in DERIVED or not self._is_left(target, name):
                continue
            data: bytes | None = file.data
            if noise is not None and not self._is_below(name, points):
                data = _damaged(file.data, noise)
            if data is not None:
                _write_sparse(target / name, data, len(data))
        for name in (".kafka_cleanshutdown", "state/unrecovered.json"):
            (target / name).unlink(missing_ok=True)
        for name in ("staging", "state/spare", "state/cut", "state/control", "state/lmdb"):
            (target / name).mkdir(parents=True, exist_ok=True)
        for directory in (one.parent for one in target.glob("*/*.log")):
            metadata = self.live.path / directory.name / "partition.metadata"
            _write_sparse(directory / metadata.name, metadata.read_bytes(), metadata.stat().st_size)
        topics = self.live.path / "state" / "topics.json"
        _write_sparse(target / "state" / "topics.json", topics.read_bytes(), topics.stat().st_size)

    @staticmethod
    def _is_left(target: Path, name: Path) -> bool:
        return (target / name).with_suffix(".log").exists() or name.suffix == ".snapshot"

    def _is_below(self, name: Path, points: dict[TopicPartition, int]) -> bool:
        """Whether the checkpoint says that the file's segment, and so the file, was synced."""
        topic, number = name.parts[0].rsplit("-", 1)
        point = points.get(TopicPartition(topic, int(number)), 0)
        files = self.logs.get(name.parts[0], [])
        behind = [one.base_offset for one in files if one.base_offset > int(name.stem)]
        return bool(behind) and min(behind) <= point


def _damaged(data: bytes, noise: random.Random) -> bytes | None:
    kind = noise.choice(("whole", "whole", "missing", "empty", "cut", "zeros", "noise"))
    cut = noise.randrange(len(data) + 1)
    return {
        "whole": data,
        "missing": None,
        "empty": b"",
        "cut": data[:cut],
        "zeros": data[:cut] + bytes(len(data) - cut),
        "noise": noise.randbytes(len(data)),
    }[kind]


def _copy(state: DiskState, target: Path, wanted) -> None:
    for name, file in state.files.items():
        if wanted(name):
            _write_sparse(target / name, file.data, len(file.data))


def _write_sparse(path: Path, data: bytes, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(data)
        file.truncate(size)


class Expected:
    """What a reader may see after a crash when `at` events had happened.

    With `ends` the state has each log up to that offset, so that no decision is in doubt.
    """

    def __init__(self, live: LiveStore, at: int, ends: dict[str, int] | None = None) -> None:
        synced = live.trace.at(at)[1] if ends is None else ends
        self.works = live.works
        self.required: set[tuple[str, int]] = set()
        self.allowed: set[tuple[str, int]] = set()
        for work in live.works:
            if work.decided_at is None or work.decision is None or work.decided_at >= at:
                continue
            if ends is None or ends.get(work.decision[0], 0) > work.decision[1]:
                self.allowed.add((work.owner, work.number))
            promised = work.promised_at is not None and work.promised_at <= at
            if promised or synced.get(work.decision[0], 0) > work.decision[1]:
                self.required.add((work.owner, work.number))

    def check(
        self, live: LiveStore, seen: dict[int, list[bytes]], offsets: dict
    ) -> set[tuple[str, int]]:
        """Whole, once each, in order, what must be there and nothing that must not; what is."""
        there: dict[tuple[str, int], dict[int, list[bytes]]] = {}
        for partition, values in seen.items():
            last: dict[str, int] = {}
            for value in values:
                owner, number = value.split(b":", 2)[:2]
                key = (owner.decode(), int(number))
                there.setdefault(key, {}).setdefault(partition, []).append(value)
                assert last.get(key[0], -1) <= key[1], f"{key} comes after a later one"
                last[key[0]] = key[1]
        works = {(work.owner, work.number): work for work in self.works}
        missing = {one for one in self.required - set(there) if works[one].values}
        assert not missing, f"committed, and gone: {missing}"
        unknown = set(there) - self.allowed
        assert not unknown, f"never committed, and seen: {unknown}"
        for key, values in there.items():
            assert values == works[key].values, f"{key} is not whole"
        for transactional_id in live.ids:
            newest = [
                work.group_offset
                for key, work in sorted(works.items())
                if key in there and key[0] == transactional_id and work.group_offset
            ]
            found = offsets.get(live.place_of(transactional_id))
            assert (found.offset if found else None) == (newest[-1] if newest else None), (
                f"{transactional_id}: the group's offset"
            )
        return set(there)


def committed_values(store: eoslog.Store, partitions: int) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for number in range(partitions):
        with store.consumer() as consumer:
            consumer.assign([TopicPartition(TOPIC, number)])
            while records := consumer.poll(timeout=0, max_records=5000):
                found.setdefault(number, []).extend(record.value or b"" for record in records)
    return found


def check_nothing_is_open(store: eoslog.Store) -> None:
    for partition in parts_of(store).files.partitions.with_transactions(None, None):
        where = partition.topic_partition
        assert partition.open_transactions() == [], f"{where}: nobody ends these"
        assert partition.last_stable_offset == partition.log_end_offset, where
    for listing in store.transactions():
        assert listing.transaction_state in ("Empty", "CompleteCommit", "CompleteAbort"), listing


def check_state(
    path: Path, live: LiveStore, expected: Expected, *, durability: str = "commit", deeply: bool
) -> set[tuple[str, int]]:
    """Open what a crash left, and look at everything; then go on with every producer.

    Returns which works are there.
    """
    store = eoslog.open(path, durability=durability, config=QUIET)
    try:
        seen = committed_values(store, live.partitions)
        there = expected.check(live, seen, store.groups().get(GROUP, {}))
        check_nothing_is_open(store)
        added = go_on(store, live)
        check_nothing_is_open(store)
        now = committed_values(store, live.partitions)
        assert now == {
            number: seen.get(number, []) + added[number] for number in range(live.partitions)
        }
        if deeply:
            store.close()
            store = eoslog.open(path, durability=durability, config=QUIET)
            problems = store.verify()
            assert problems == [], problems
            assert committed_values(store, live.partitions) == now
            check_nothing_is_open(store)
    finally:
        if not store.closed:
            end_of_life(store)
    return there


def go_on(store: eoslog.Store, live: LiveStore) -> dict[int, list[bytes]]:
    """One aborted and one committed transaction of every id, at every partition."""
    added: dict[int, list[bytes]] = {number: [] for number in range(live.partitions)}
    for transactional_id in live.ids:
        producer = store.producer(transactional_id=transactional_id)
        producer.init_transactions()
        for commit in (False, True):
            producer.begin_transaction()
            for number in range(live.partitions):
                value = f"after:{transactional_id}:{commit}".encode()
                producer.send(TOPIC, value=value, partition=number)
                if commit:
                    added[number].append(value)
            producer.send_offsets_to_transaction({live.place_of(transactional_id): 7777}, GROUP)
            if commit:
                producer.commit_transaction()
            else:
                producer.flush()
                producer.abort_transaction()
    found = store.groups()[GROUP]
    assert {one: found[one].offset for one in found} == dict.fromkeys(
        map(live.place_of, live.ids), 7777
    )
    return added
