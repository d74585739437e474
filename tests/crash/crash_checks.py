"""What must hold of `crash_workload`'s store after a death, and after all of the plan was done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crash.crash_workload import (
    APP,
    BULK,
    BULK_READERS,
    EVENTS,
    JOBS,
    LEFT_OPEN,
    LOADED_AT,
    LOADER,
    LOADS,
    LOOKERS,
    NAMED_COUNT,
    NUMBER_AT,
    NUMBERS,
    OLD,
    OLD_COUNT,
    OUT,
    PARTITIONS,
    PLAIN_COUNT,
    SETTLED_AT,
    SETTLED_COUNT,
    SETTLERS,
    SHARES,
    TRANSACTIONS,
    Acknowledged,
    Life,
    numbers_of_lane,
    opened,
    read,
)

import eoslog
from eoslog import TopicPartition
from eoslog.checking import Recorder, check

VISIBLE_WITHIN_S = 60.0  # A slow machine is no anomaly.


class Found:
    """How much of each lane is in a store; making it checks that it is there once, in order."""

    def __init__(self, store: eoslog.Store) -> None:
        self._store = store
        self.counts: dict[str, int] = {}
        if not PARTITIONS.keys() <= store.topics().keys():
            return  # It died before all topics were made: nothing was written.
        self._rows = {
            (topic, partition): read(store, topic, partition)
            for topic, partitions in PARTITIONS.items()
            for partition in range(partitions)
        }
        self._appends()
        self._transactions()
        self._shares()
        self._staged()
        self._settled()
        assert self._values(*LEFT_OPEN) == [], "a record of a transaction that nobody committed"

    def _values(self, topic: str, partition: int) -> list[bytes]:
        return [value for _, value in self._rows[topic, partition]]

    def _appends(self) -> None:
        named = numbers_of_lane(self._values(EVENTS, 0), f"named-{EVENTS}")
        assert named == list(range(len(named))), named
        plain = numbers_of_lane(self._values(EVENTS, 1), "plain")
        assert plain == list(range(len(plain))), plain
        old = numbers_of_lane(self._values(OLD, 0), f"named-{OLD}")
        # Retention takes away from the oldest on.
        end = old[-1] + 1 if old else 0
        assert old == list(range(end - len(old), end)), old
        assert len(old) == end or self._store.partition(OLD, 0).log_start_offset > 0
        self.counts |= {
            f"named-{EVENTS}": len(named),
            "plain": len(plain),
            f"named-{OLD}": end,
            "deletion": self._store.partition(OLD, 0).log_start_offset,
        }

    def _transactions(self) -> None:
        count = self._offset(NUMBERS, NUMBER_AT)
        for partition, each in ((0, 2), (1, 1)):
            values = self._values(EVENTS, partition)
            numbers = numbers_of_lane(values, "transactions")
            assert numbers == [number for number in range(count) for _ in range(each)], numbers
            assert numbers_of_lane(values, "aborted") == []
        self.counts["transactions"] = count

    def _shares(self) -> None:
        for partition in range(PARTITIONS[EVENTS]):
            end = self._offset(SHARES, TopicPartition(EVENTS, partition))
            outputs = [b"of " + value for at, value in self._rows[EVENTS, partition] if at < end]
            assert self._values(OUT, partition) == outputs, f"offset {end}"
            self.counts[f"shares-{partition}"] = end
        self.counts["looks"] = self._offset(LOOKERS, TopicPartition(OUT, 0))

    def _staged(self) -> None:
        jobs, loads = self._versions(APP), self._versions(LOADER)
        numbers = [
            int(value[:7])
            for partition in range(PARTITIONS[BULK])
            for value in self._values(BULK, partition)
        ]
        assert sorted(numbers) == [number for job in JOBS[:jobs] for number in job]
        assert self._offset(BULK_READERS, TopicPartition(BULK, 0)) == jobs
        expected = [
            b"load-%d-%d:" % (number, index) for number in range(loads) for index in range(3)
        ]
        assert self._values(*LOADED_AT) == expected
        self.counts |= {"jobs": jobs, "loads": loads}

    def _settled(self) -> None:
        # The newest may be prepared still: "read_committed" would wait for its decision.
        count = self._offset(SETTLERS, SETTLED_AT, isolation_level="read_uncommitted")
        values = self._values(*SETTLED_AT)
        assert numbers_of_lane(values, "settled") == list(range(count)), values
        assert len(values) == count, values
        self.counts["settled"] = count

    def _versions(self, application: str) -> int:
        state = self._store.application(application)
        assert state is None or state.state == "complete", state
        return 0 if state is None else state.version + 1

    def _offset(self, group: str, where: TopicPartition, **options: Any) -> int:
        with self._store.consumer(group, **options) as consumer:
            return consumer.committed(where) or 0

    def check(self, acknowledged: dict[str, int]) -> None:
        """Nothing that was acknowledged is missing."""
        for lane, count in acknowledged.items():
            found = self.counts.get(lane)
            assert found is None or found >= count, f"{lane}: {found} of {count} acknowledged"
        committed, settled = acknowledged["database"], self.counts.get("settled", 0)
        # The newest may be prepared still.
        assert committed - 1 <= settled <= committed, f"{settled} of the database's {committed}"
        assert self.counts or not any(acknowledged.values())

    def check_all(self) -> None:
        """All of the plan is there."""
        events = [len(self._rows[EVENTS, partition]) for partition in range(PARTITIONS[EVENTS])]
        for partition, count in enumerate(events):
            assert len(self._values(OUT, partition)) == count
        expected = {
            f"named-{EVENTS}": NAMED_COUNT[-1],
            f"named-{OLD}": OLD_COUNT,
            "plain": PLAIN_COUNT,
            "transactions": TRANSACTIONS[-1],
            "jobs": len(JOBS),
            "loads": LOADS,
            "settled": SETTLED_COUNT[-1],
        }
        assert expected.items() <= self.counts.items(), self.counts


def record_all(store: eoslog.Store, recorder: Recorder) -> None:
    """Read everything into a history, and ask where the groups stand."""
    topics = [topic for topic in PARTITIONS if topic in store.topics()]
    everything = [
        TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS[topic])
    ]
    for isolation in ("read_committed", "read_uncommitted"):
        reader = recorder.consumer(store.consumer(isolation_level=isolation))
        reader.assign(everything)
        if everything:
            reader.end_offsets(everything)
        while everything and reader.poll(0, 1000):
            pass
        reader.close()
    groups: dict[str, list[Any]] = {
        SHARES: [TopicPartition(EVENTS, number) for number in range(PARTITIONS[EVENTS])],
        NUMBERS: [NUMBER_AT],
        LOOKERS: [TopicPartition(OUT, 0)],
    }
    if len(topics) == len(PARTITIONS):
        for group, partitions in groups.items():
            recorder.consumer(store.consumer(group)).committed(partitions)


def look_and_check(store: eoslog.Store, recorder: Recorder, said: dict[str, int]) -> Found:
    """Nothing acknowledged is lost, nothing is there twice, nothing undecided is seen."""
    found = Found(store)
    found.check(said)
    record_all(store, recorder)
    assert store.verify() == []
    return found


def go_on(store: eoslog.Store, recorder: Recorder, acknowledged: Acknowledged) -> None:
    """Do the rest of the plan, and see that it is all there."""
    Life(store, recorder, acknowledged).work(1)


def check_history(histories: list[Path]) -> None:
    there = [history for history in histories if history.exists()]
    report = check(there, visible_within_s=VISIBLE_WITHIN_S)
    assert report.clean, "\n".join(report.lines())


def check_after(path: Path, histories: list[Path], acknowledged: Path) -> None:
    """Open the store that a dead process left; check it, do the rest, close it, check again."""
    said = Acknowledged(acknowledged)
    with Recorder(histories[-1]) as recorder:
        with opened(path) as store:
            look_and_check(store, recorder, Acknowledged.read(acknowledged))
            go_on(store, recorder, said)
        with opened(path) as store:
            look_and_check(store, recorder, Acknowledged.read(acknowledged)).check_all()
    said.close()
    check_history(histories)
    for file in path.glob(f"{BULK}-*/*"):
        assert file.stat().st_nlink == 1, f"{file} still has its name as a staged file"
        assert file.suffix != ".cleaned", file
