"""The power goes under a store: what each durability promised is there, and names go on."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from crash.lost_power import DiskState, PowerCut
from partition_files import all_records
from reference_model import batch_codec as codec
from short_form import short_form

import eoslog
from eoslog.store.store import parts_of

pytestmark = pytest.mark.crash

TOPIC = "orders"
NAME = "writer"
PARTITIONS = 2
# The background thread syncs at times of its own; here only the calls of the test do.
QUIET = {"eoslog.checkpoint.interval.ms": 3_600_000, "log.initial.task.delay.ms": 3_600_000}


def value_of(partition: int, position: int) -> bytes:
    return b"%d:%d:" % (partition, position) + b"z" * (position * 61 % 700)


class LiveStore:
    """A store with one named producer; knows what was acknowledged, and what was promised."""

    def __init__(self, path: Path, durability: str, seed: int) -> None:
        self.path = path
        self.durability = durability
        self.noise = random.Random(seed)
        with eoslog.open(path, create=True, config=QUIET) as store:
            store.create_topic(TOPIC, partitions=PARTITIONS, config={"segment.bytes": 8000})
        self.store = eoslog.open(path, durability=durability, config=QUIET)
        self.producer = self.store.producer(name=NAME)
        self.acknowledged = [0] * PARTITIONS
        self.promised = [0] * PARTITIONS

    def append(self, batch_count: int) -> None:
        for _ in range(batch_count):
            partition = self.noise.randrange(PARTITIONS)
            first = self.acknowledged[partition]
            count = self.noise.randint(1, 5)
            values = [value_of(partition, first + index) for index in range(count)]
            self.producer.append(TOPIC, partition=partition, values=values)
            self.acknowledged[partition] += count
        if self.durability == "always":
            self.promised = list(self.acknowledged)

    def flush(self) -> None:
        self.producer.flush()
        if self.durability != "process":
            self.promised = list(self.acknowledged)

    def persist_rows(self) -> None:
        """LMDB then knows more than the disk has of the log."""
        for number in range(PARTITIONS):
            self.store.partition(TOPIC, number).producer_state.persist()

    def synced_bytes(self) -> dict[Path, int]:
        """Of each log file, as far as its partition's recovery point says that it was synced."""
        synced: dict[Path, int] = {}
        for partition in parts_of(self.store).files.partitions.opened():
            for segment in partition.segments():
                path = Path(str(segment["path"]))
                data = path.read_bytes()[: int(str(segment["size_bytes"]))]
                below = [
                    len(batch.data)
                    for batch in codec.iter_batches(data)
                    if batch.last_offset < partition.recovery_point
                ]
                synced[path.relative_to(self.path)] = sum(below)
        return synced


def check_after(path: Path, live: LiveStore) -> list[int]:
    """A beginning of what was sent, all that was promised, and a name that goes on right there."""
    with eoslog.open(path, config=QUIET) as store:
        producer = store.producer(name=NAME)
        found = []
        for partition in range(PARTITIONS):
            log = store.partition(TOPIC, partition)
            values = [record.value for record in all_records(log)]
            assert values == [value_of(partition, number) for number in range(len(values))]
            assert live.promised[partition] <= len(values) <= live.acknowledged[partition]
            assert producer.next_sequence(TOPIC, partition) == len(values)
            rest = range(len(values), live.acknowledged[partition] + 3)
            if rest:
                more = [value_of(partition, number) for number in rest]
                producer.append(TOPIC, partition=partition, values=more)
            found.append(len(values))
    with eoslog.open(path) as store:
        for partition in range(PARTITIONS):
            values = [record.value for record in all_records(store.partition(TOPIC, partition))]
            count = live.acknowledged[partition] + 3
            assert values == [value_of(partition, number) for number in range(count)]
        assert store.verify() == []
    return found


def cut_the_power(root: Path, durability: str, *, seed: int, cuts: int) -> set[int]:
    live = LiveStore(root / "live", durability, seed)
    live.append(live.noise.randint(0, 40))
    live.flush()
    before = DiskState.of(live.path)
    live.append(live.noise.randint(1, 40))
    if live.noise.random() < 0.7:
        live.persist_rows()
    now, synced = DiskState.of(live.path), live.synced_bytes()
    reached = set()
    for cut in range(cuts):
        target = root / "after"
        PowerCut(before, now, seed * 1000 + cut).write(target, synced)
        for name in ("staging", "state/spare", "state/cut"):
            (target / name).mkdir(parents=True, exist_ok=True)
        try:
            reached.update(check_after(target, live))
        except BaseException as error:
            error.add_note(f"seed {seed}, cut {cut}")
            raise
        shutil.rmtree(target)
    live.store.close()
    return reached


@pytest.mark.parametrize("durability", ["process", "commit", "always"])
@pytest.mark.parametrize("seed", short_form(range(2), 0))
def test_what_was_promised_is_there(tmp_path, durability, seed):
    assert cut_the_power(tmp_path, durability, seed=seed, cuts=8)


@pytest.mark.soak
@pytest.mark.parametrize("durability", ["process", "commit", "always"])
def test_what_was_promised_is_there_after_thousands_of_cuts(tmp_path, durability):
    for seed in range(10, 110):
        cut_the_power(tmp_path / str(seed), durability, seed=seed, cuts=20)
        shutil.rmtree(tmp_path / str(seed))


def test_rows_that_know_more_than_the_log_are_not_believed(tmp_path):
    """LMDB was synced and the log was not: the lost records are sent again, none is skipped."""
    live = LiveStore(tmp_path / "live", "commit", 1)
    live.append(20)
    live.flush()
    synced = live.synced_bytes()
    live.append(20)
    live.persist_rows()
    assert live.acknowledged > live.promised
    target = tmp_path / "after"
    shutil.copytree(live.path, target)
    for name, size in synced.items():
        if name.parts[0].startswith(TOPIC):
            with (target / name).open("r+b") as file:
                file.truncate(size)
    for path in target.glob(f"{TOPIC}-*/*.log"):
        if path.relative_to(target) not in synced:
            path.unlink()
    assert check_after(target, live) == live.promised
    live.store.close()
