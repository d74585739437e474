"""A store's life at random: written to, by names and without, retained, closed, killed.

A plain model says what must be there: each partition's values in order, each name's position. A
failure prints its seed.
"""

import random
import shutil
import time

import pytest
from short_form import short_form
from stores import values_of

import eoslog
from eoslog import TopicPartition
from eoslog.errors import StoreError
from eoslog.store.retention import apply_retention
from eoslog.store.store import abandon, engine_of, parts_of

TOPIC, PARTITIONS, STEPS = "t", 2, 60
NAMES = ("red", "green", "blue")


class Life:
    """The store under test beside the model of it."""

    def __init__(self, open_store, seed):
        self.random = random.Random(seed)
        self.open_store = open_store
        self.values = [[] for _ in range(PARTITIONS)]
        self.positions = {(name, one): 0 for name in NAMES for one in range(PARTITIONS)}
        self.last_batch = {}  # Per partition: what an anonymous producer wrote last, and where.
        self.count = 0
        self.begin()

    def begin(self):
        self.store = self.open_store(
            self.random.choice(["process", "commit"]),
            eoslog__producers__cached__max=self.random.choice([2, 1000]),
        )
        if TOPIC not in self.store.topics():
            self.store.create_topic(TOPIC, PARTITIONS, {"segment.bytes": 2048})
        # A copy of what deleted segments told that was lost comes back here, before the other goes.
        for number in range(PARTITIONS):
            self.store.partition(TOPIC, number)
        self.producers = {}

    def new_values(self):
        """Up to 12 values, each of them once in the life of the store."""
        first = self.count
        self.count += self.random.randint(1, 12)
        return [b"%060d" % number for number in range(first, self.count)]

    def producer_of(self, name):
        if name not in self.producers or self.random.random() < 0.2:
            config = {"linger.ms": 3_600_000, "batch.size": 400}
            self.producers[name] = self.store.producer(name=name, config=config)
        return self.producers[name]

    # Steps.

    def append(self):
        number, values = self.random.randrange(PARTITIONS), self.new_values()
        producer = self.store.producer()
        result = producer.append(TOPIC, number, values)
        assert result.base_offset == len(self.values[number])
        self.last_batch[number] = (producer.producer_id, values, result.base_offset)
        self.values[number] += values

    def append_under_a_name(self):
        number, name = self.random.randrange(PARTITIONS), self.random.choice(NAMES)
        producer, values = self.producer_of(name), self.new_values()
        assert producer.next_sequence(TOPIC, number) == self.positions[name, number]
        if self.random.random() < 0.5:
            producer.append(TOPIC, number, values)
        else:
            for value in values:
                producer.send(TOPIC, value, partition=number)
            producer.flush()
        self.values[number] += values
        self.positions[name, number] += len(values)

    def gather_and_lose(self):
        """What was gathered and never appended is in no count after the producer is gone."""
        name = self.random.choice(NAMES)
        producer = self.producer_of(name)
        producer.send(TOPIC, b"lost", partition=0)
        assert producer.next_sequence(TOPIC, 0) == self.positions[name, 0] + 1
        del self.producers[name]
        newer = self.store.producer(name=name)
        assert newer.next_sequence(TOPIC, 0) == self.positions[name, 0]
        newer.close()

    def send_again(self):
        """The newest batch of a partition is answered with the offsets of its first write."""
        for number, (producer_id, values, base_offset) in self.last_batch.items():
            again = (
                engine_of(self.store)
                .partition(TOPIC, number)
                .append_columns(values, producer_id=producer_id, producer_epoch=0, base_sequence=0)
            )
            assert (again.duplicate, again.base_offset) == (True, base_offset)

    def checkpoint(self):
        for number in range(PARTITIONS):
            partition = engine_of(self.store).partition(TOPIC, number)
            partition.producer_state.persist()
        parts_of(self.store).files.state_log.persist()
        parts_of(self.store).checkpointer.write_offsets()

    def retain(self):
        where = TopicPartition(TOPIC, self.random.randrange(PARTITIONS))
        partition = engine_of(self.store).partition(*where)
        config = {"retention.bytes": self.random.choice([0, 3000]), "retention.ms": -1}
        if self.random.random() < 0.3:
            config["retention.ms"] = 1
        later_ms = int(time.time() * 1000) + 1000
        apply_retention(partition, parts_of(self.store).files.names, config, later_ms)

    def end(self):
        if self.random.random() < 0.5:
            self.store.close()
        else:
            abandon(self.store)
        lost = self.random.choice(["", "", "lmdb", "snapshots", "indexes", "checkpoints"])
        path = self.store.path
        if lost == "lmdb":
            shutil.rmtree(path / "state" / "lmdb")
        pattern = {"snapshots": "t-*/*.snapshot", "indexes": "t-*/*index", "checkpoints": "*point"}
        for one in path.glob(pattern.get(lost, "nothing")):
            one.unlink()
        self.begin()

    def look(self):
        for number in range(PARTITIONS):
            start = self.store.partition(TOPIC, number).log_start_offset
            assert values_of(self.store, TOPIC, number) == self.values[number][start:]
        assert self.store.verify() == []


@pytest.mark.parametrize("seed", short_form(range(12), 0, 1, 2, 3, 4))
def test_a_store_lives_as_its_model(open_store, seed):
    life = Life(open_store, seed)
    steps = [
        (life.append, 4),
        (life.append_under_a_name, 6),
        (life.gather_and_lose, 1),
        (life.send_again, 1),
        (life.checkpoint, 2),
        (life.retain, 1),
        (life.end, 2),
        (life.look, 1),
    ]
    choices, weights = zip(*steps, strict=True)
    for _ in range(STEPS):
        life.random.choices(choices, weights)[0]()
    life.end()
    life.look()
    for (name, number), position in life.positions.items():
        assert life.store.producer(name=name).next_sequence(TOPIC, number) == position


def test_a_working_directory_that_is_gone_is_named(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(StoreError, match="looking for store: No such file"):
        eoslog.open("store", create=True)
