"""Interrupts (Ctrl-C) of a flush, and of the call after it: a name's records are counted once."""

import pytest
from crash.interrupted_lines import interrupted_at

import eoslog

FILES = (
    "/eoslog/producer/producer.py",
    "/eoslog/producer/identity.py",
    "/eoslog/producer/sequenced_partition.py",
    "/eoslog/storage/unified_log.py",
    "/eoslog/storage/partition_producers.py",
    "/eoslog/transactions/named_producers.py",
)


def is_ours(frame):
    return frame.f_code.co_filename.endswith(FILES)


def interrupted(line, call):
    """Whether the call has so many lines; it is interrupted before that one."""
    with interrupted_at(line, is_ours):
        try:
            call()
        except KeyboardInterrupt:
            return True
    return False


@pytest.fixture
def store(tmp_path):
    with eoslog.open(tmp_path / "store", create=True, durability="process") as store:
        store.create_topic("orders")
        yield store


def test_whatever_is_interrupted_the_records_are_counted_once(store):
    producer = store.producer(name="importer", config={"linger.ms": 60_000})
    partition = store.partition("orders", 0)
    first, lines = 0, []
    while True:
        first += 1
        second = 0
        while True:
            second += 1
            for _ in range(3):
                producer.send("orders", b"one", partition=0)
            was_cut = interrupted(first, producer.flush)
            # Every third step has the call after it interrupted, too, at each of its lines.
            if first % 3 or not interrupted(second, lambda: producer.next_sequence("orders", 0)):
                break
            assert producer.next_sequence("orders", 0) >= partition.log_end_offset
        lines.append(second)
        producer.flush()
        assert producer.next_sequence("orders", 0) == partition.log_end_offset
        if not was_cut:
            break
    assert len(lines) > 20
    assert max(lines) > 10
