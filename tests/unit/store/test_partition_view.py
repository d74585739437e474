"""The public view of a partition: what it shows of the engine's log, and how it ends."""

import pytest
from background_work import do_background_work
from harness.fork import in_child
from reference_model import batch_codec as codec

from eoslog import Store
from eoslog.errors import ForkedProcessError, LogClosedError
from eoslog.store.store import engine_of

PROPERTIES = [
    "high_watermark",
    "last_stable_offset",
    "log_end_offset",
    "log_start_offset",
    "size_bytes",
]
CALLS = {
    "aborted_transactions": (0, 1 << 40),
    "append_batch": (codec.simple_batch([b"value"]),),
    "offset_for_timestamp": (0, "read_committed"),
    "open_transactions": (),
    "producers": (),
    "read": (0, 1 << 20, "read_committed"),
    "segments": (),
    "verify": (),
}
NAMES = sorted(["topic_id", "topic_partition", *PROPERTIES, *CALLS])


@pytest.fixture
def partition(store):
    store.create_topic("t")
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    for number in range(2):
        producer.begin_transaction()
        producer.append("t", 0, [b"%d" % number])
        producer.abort_transaction()
    producer.begin_transaction()
    producer.append("t", 0, [b"of an open transaction"])
    return store.partition("t", 0)


def test_it_has_the_names_of_the_contract_and_no_others(partition):
    assert [name for name in dir(partition) if not name.startswith("_")] == NAMES


def test_it_shows_what_the_engine_has(store, partition):
    log = engine_of(store).partition("t", 0)
    for name in ["topic_id", "topic_partition", *PROPERTIES]:
        assert getattr(partition, name) == getattr(log, name), name
    assert [partition.log_start_offset, partition.last_stable_offset] == [0, 4]
    assert [partition.log_end_offset, partition.high_watermark] == [5, 5]
    for name in ("open_transactions", "producers", "segments"):
        found = getattr(partition, name)()
        assert found and str(found) == str(getattr(log, name)()), name
    assert len(partition.aborted_transactions(0, 9)) == 2
    assert partition.read(0) == log.read(0) != b""
    assert len(partition.read(0, isolation_level="read_committed")) < len(partition.read(0))
    assert partition.offset_for_timestamp(0) == log.offset_for_timestamp(0)
    assert partition.append_batch(codec.simple_batch([b"value"])).base_offset == 5
    assert partition.verify() == []


def test_it_says_which_it_is(store, partition):
    assert repr(partition) == "<eoslog.Partition t-0, offsets 0 to 5>"
    store.close()
    assert repr(partition) == "<eoslog.Partition t-0, closed>"


def refused(partition, error):
    for name in PROPERTIES:
        with pytest.raises(error):
            getattr(partition, name)
    for name, arguments in CALLS.items():
        with pytest.raises(error):
            getattr(partition, name)(*arguments)
    assert partition.topic_partition == ("t", 0)
    assert partition.topic_id


@pytest.mark.parametrize("end", [Store.close, lambda store: store.delete_topic("t")])
def test_it_ends_with_the_store_and_with_the_topic(store, partition, end):
    end(store)
    refused(partition, LogClosedError)


def test_it_is_of_no_use_in_a_forked_child(partition):
    in_child(lambda: refused(partition, ForkedProcessError))


def test_a_producer_that_expired_in_the_store_may_begin_again(open_store):
    store = open_store(producer__id__expiration__ms=1, log__initial__task__delay__ms=1 << 40)
    store.create_topic("t")
    partition = store.partition("t", 0)
    first = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    for offset in (0, 1):
        batch = codec.simple_batch(
            [b"value"], timestamp_ms=1_700_000_000_000 + 10 * offset, **first
        )
        assert partition.append_batch(batch).last_offset == offset
        do_background_work(store)
        assert partition.producers() == []
    assert partition.verify() == []
