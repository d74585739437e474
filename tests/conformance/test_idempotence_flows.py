"""The four flows of an idempotent producer, told by name, on a partition of its own.

A to F are batches of one producer: A is sequences 0-2, B 3-5 and so on, three records each.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from partition_files import all_records
from reference_model import batch_codec as codec
from reference_model.log_model import LogModel
from reference_model.producer_model import ModelError
from store_copies import copy_store

import eoslog
from eoslog.errors import OutOfOrderSequenceError, ProducerFencedError
from eoslog.store.store import engine_of

PRODUCER_ID = 77
RECORDS_PER_BATCH = 3
TOPIC = "flows"
NOW_MS = time.time_ns() // 1_000_000  # A producer of long ago is forgotten by each opening.


def batch(name: str) -> bytes:
    index = ord(name) - ord("A")
    values = [f"{name}{number}".encode() for number in range(RECORDS_PER_BATCH)]
    return codec.simple_batch(
        values,
        producer_id=PRODUCER_ID,
        producer_epoch=0,
        base_sequence=index * RECORDS_PER_BATCH,
        timestamp_ms=NOW_MS,
    )


def expected_offset(name: str) -> int:
    return (ord(name) - ord("A")) * RECORDS_PER_BATCH


class Sender:
    """Sends by name to a log and to the model beside it, and compares each answer."""

    def __init__(self, files) -> None:
        self.files = files
        self.log = files.open()
        self.model = LogModel()

    def send(self, name: str) -> tuple[int, bool]:
        result = self.log.append_batch(batch(name))
        model = self.model.append_batch(batch(name))
        assert (result.base_offset, result.last_offset, result.duplicate) == (
            model.base_offset,
            model.last_offset,
            model.duplicate,
        )
        return result.base_offset, result.duplicate

    def refused(self, name: str) -> OutOfOrderSequenceError:
        end = self.log.log_end_offset
        with pytest.raises(OutOfOrderSequenceError) as caught:
            self.log.append_batch(batch(name))
        with pytest.raises(ModelError, match="OutOfOrderSequenceError"):
            self.model.append_batch(batch(name))
        assert caught.value.outcome == "not_appended"
        assert caught.value.code == 45
        assert self.log.log_end_offset == end
        return caught.value

    def stored(self) -> str:
        """Names of the batches in the log, in order."""
        values = [record.value.decode() for record in all_records(self.log)]
        names = [value[0] for value in values[::RECORDS_PER_BATCH]]
        assert values == [f"{n}{number}" for n in names for number in range(RECORDS_PER_BATCH)]
        return "".join(names)

    def reopen(self, *, clean: bool) -> None:
        self.log = self.files.reopen(clean=clean, keep_rows=True)


class StoreSender(Sender):
    """The same through a store; an unclean stop is a copy of its files while it is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = eoslog.open(path, create=True)
        self.store.create_topic(TOPIC)
        self.log = engine_of(self.store).partition(TOPIC, 0)
        self.model = LogModel()

    def reopen(self, *, clean: bool) -> None:
        if clean:
            self.store.close()
        else:
            killed = self.path.with_name(self.path.name + "-killed")
            copy_store(self.path, killed)
            self.store.close()
            self.path = killed
        self.store = eoslog.open(self.path)
        self.log = engine_of(self.store).partition(TOPIC, 0)


@pytest.fixture
def bindings_sender(make_partition):
    return Sender(make_partition())


@pytest.fixture(params=["bindings", "store"])
def sender(request, make_partition, tmp_path):
    if request.param == "bindings":
        yield Sender(make_partition())
        return
    sender = StoreSender(tmp_path / "store")
    yield sender
    sender.store.close()


def test_flow_success(sender):
    for name in "ABCDE":
        assert sender.send(name) == (expected_offset(name), False)
    assert sender.stored() == "ABCDE"


@pytest.mark.parametrize("restart", [None, "clean", "unclean"])
def test_flow_lost_acknowledgements(sender, restart):
    """D and E were written, their answers lost: sent again, they get the same offsets."""
    for name in "ABCDE":
        sender.send(name)
    if restart:
        sender.reopen(clean=restart == "clean")
    for name in "DE":
        assert sender.send(name) == (expected_offset(name), True)
    assert sender.send("F") == (expected_offset("F"), False)
    assert sender.stored() == "ABCDEF"


@pytest.mark.parametrize("restart", [None, "clean", "unclean"])
def test_flow_lost_batch_in_the_middle(sender, restart):
    """C never arrived: D and E are refused until C comes, and then all stand in order."""
    sender.send("A")
    sender.send("B")
    if restart:
        sender.reopen(clean=restart == "clean")
    error = sender.refused("D")
    assert "6" in str(error) and "9" in str(error), "expected and got stand in the message"
    sender.refused("E")
    for name in "CDE":
        assert sender.send(name) == (expected_offset(name), False)
    assert sender.stored() == "ABCDE"


@pytest.mark.parametrize("restart", [None, "clean", "unclean"])
def test_flow_old_batch_beyond_the_window(sender, restart):
    """Six batches are written: the first is no longer remembered, and is refused, not repeated."""
    for name in "ABCDEF":
        sender.send(name)
    if restart:
        sender.reopen(clean=restart == "clean")
    sender.refused("A")
    for name in "BCDEF":
        assert sender.send(name) == (expected_offset(name), True)
    assert sender.stored() == "ABCDEF"


@pytest.mark.parametrize("source", ["snapshot", "log"])
def test_a_restart_without_the_producers_rows(bindings_sender, source):
    """With nothing but a snapshot the last batch is still known; from the log, all five are."""
    sender = bindings_sender
    for name in "ABCDE":
        sender.send(name)
    sender.log = sender.files.reopen(clean=source == "snapshot")
    assert sender.files.restored_from == source
    assert sender.send("E") == (expected_offset("E"), True)
    if source == "log":
        assert sender.send("A") == (expected_offset("A"), True)
    sender.send("F")
    assert sender.stored() == "ABCDEF"


def test_a_new_epoch_starts_at_zero_and_fences(sender):
    for name in "AB":
        sender.send(name)

    def by_epoch(epoch: int, sequence: int) -> bytes:
        return codec.simple_batch(
            [b"x"], producer_id=PRODUCER_ID, producer_epoch=epoch, base_sequence=sequence
        )

    with pytest.raises(OutOfOrderSequenceError):
        sender.log.append_batch(by_epoch(1, 6))
    assert sender.log.append_batch(by_epoch(1, 0)).base_offset == 6
    for sequence in (0, 1, 6):
        with pytest.raises(Exception, match="epoch") as caught:
            sender.log.append_batch(by_epoch(0, sequence))
        assert type(caught.value).__name__ == "InvalidProducerEpochError"
    assert sender.log.append_batch(by_epoch(1, 0)).duplicate
    assert sender.log.log_end_offset == 7


@pytest.mark.parametrize("split", range(1, 8))
def test_sequences_wrap_to_zero(make_partition, split):
    """Batches that end at, cross and begin behind 2**31 - 1."""
    log = make_partition().open()
    first = codec.MAX_SEQUENCE - 3
    counts = [split, 8 - split, 4]
    sequence, offset = first, 0
    for count in counts:
        data = codec.simple_batch(
            [b"v"] * count, producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=sequence
        )
        for duplicate in (False, True):
            result = log.append_batch(data)
            assert (result.base_offset, result.duplicate) == (offset, duplicate)
        sequence = codec.increment_sequence(sequence, count)
        offset += count
    assert log.producer(PRODUCER_ID).last_sequence == 7
    assert log.producer(PRODUCER_ID).batches[0][0] == first


@pytest.mark.parametrize("restart", [None, "clean", "unclean"])
def test_flow_of_a_named_producer(tmp_path, restart):
    """It asks where it stands and goes on there: what was taken is not sent again."""
    path = tmp_path / "store"
    store = eoslog.open(path, create=True)
    store.create_topic(TOPIC)
    producer = store.producer(name="flow")
    for position in range(0, 9, 3):
        assert producer.next_sequence(TOPIC, 0) == position
        producer.append(TOPIC, partition=0, values=[b"%d" % (position + i) for i in range(3)])
    if restart == "unclean":
        copy_store(path, tmp_path / "killed")
        path = tmp_path / "killed"
    if restart:
        store.close()
        store = eoslog.open(path)
    successor = store.producer(name="flow")
    assert successor.next_sequence(TOPIC, 0) == 9
    successor.append(TOPIC, partition=0, values=[b"9"])
    if not restart:
        with pytest.raises(ProducerFencedError):
            producer.append(TOPIC, partition=0, values=[b"late"])
    values = [record.value for record in all_records(engine_of(store).partition(TOPIC, 0))]
    assert values == [b"%d" % number for number in range(10)]
    store.close()
