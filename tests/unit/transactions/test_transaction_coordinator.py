"""Initializing, fencing, ending, timing out and looking at transactional ids.

Names begin with the scenario they are of. What a single entry does is in test_transaction_entry.py.
"""

import json
import threading
import time

import pytest
from coordinated_store import ID, SMALL, TIMEOUT_MS, CoordinatedStore, batches_of
from transaction_files import fill_up, full_disk

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.record_batch import decode_records
from eoslog.common import clock
from eoslog.common.prepared_transaction import PreparedTransaction
from eoslog.errors import (
    ConcurrentTransactionsError,
    CorruptRecordError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    StoreError,
    StoreFullError,
    TransactionalIdNotFoundError,
    TransactionCoordinatorFencedError,
    UnknownTopicOrPartitionError,
)
from eoslog.inspect.durable_bounds import read_durable_bounds
from eoslog.session.paths import StorePaths
from eoslog.storage.producer_id_range import FIRST_PRODUCER_ID as FIRST
from eoslog.storage.producer_id_range import STAGED_PRODUCER_ID_MIN
from eoslog.store.store import abandon, parts_of
from eoslog.transactions.entries import ENTRIES_KEPT
from eoslog.transactions.owner import TransactionOwner
from eoslog.transactions.state_key import (
    DURABILITY,
    PRODUCER_ID_BLOCK,
    state_key,
    state_partition_of,
)
from eoslog.transactions.timeouts import abort_timed_out, expire_ids

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
NOW_MS = 10_000_000_000
ROOM_BYTES = 60  # Less than a record of a transaction needs.


@pytest.fixture
def at(open_store):
    return CoordinatedStore(open_store())


# P. Producer ids.


def ids_of(at, count):
    return [parts_of(at.store).files.producer_ids.take() for _ in range(count)]


def blocks_of(at):
    partition = parts_of(at.store).files.partitions.state_partition(0)
    return [
        record.offset
        for record in partition.fetch_records(0, 1000, 1 << 20)[0]
        if record.key[:2] == PRODUCER_ID_BLOCK.to_bytes(2, "big")
    ]


def test_p01_first_ids(at):
    assert ids_of(at, 3) == [FIRST, FIRST + 1, FIRST + 2]


def test_p03_a_block_is_recorded_before_its_first_id(at):
    assert ids_of(at, 1000) == list(range(FIRST, FIRST + 1000))
    assert len(blocks_of(at)) == 1
    assert ids_of(at, 1) == [FIRST + 1000]
    assert len(blocks_of(at)) == 2


def test_p06_an_allocation_that_fails_gives_no_id_and_a_later_one_goes_on(at, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(parts_of(at.store).files.state_log, "append", full)
        for _ in range(2):
            with pytest.raises(StoreFullError):
                ids_of(at, 1)
    assert ids_of(at, 1) == [FIRST]


def test_p10_there_are_no_ids_left(at):
    log = parts_of(at.store).files.state_log
    log.append(PRODUCER_ID_BLOCK, "", {"next_producer_id": STAGED_PRODUCER_ID_MIN - 1000})
    assert ids_of(at, 1) == [STAGED_PRODUCER_ID_MIN - 1000]
    ids_of(at, 999)
    for _ in range(2):
        with pytest.raises(StoreError, match="none left"):
            ids_of(at, 1)


@pytest.mark.parametrize("second", [2999, 0, -1, "3001", None])
def test_p08_p11_a_block_that_does_not_rise_is_refused_on_reading(open_store, store_path, second):
    store = open_store()
    for block in (3000, second):
        parts_of(store).files.state_log.append(PRODUCER_ID_BLOCK, "", {"next_producer_id": block})
    abandon(store)
    with pytest.raises(CorruptRecordError, match="block of producer ids at offset 1"):
        eoslog.open(store_path)


def test_p11_a_block_that_rises_is_read(open_store):
    store = open_store()
    # The same one twice is a copy, as compaction makes it.
    for block in (FIRST + 3000, FIRST + 3000, FIRST + 3001):
        parts_of(store).files.state_log.append(PRODUCER_ID_BLOCK, "", {"next_producer_id": block})
    abandon(store)
    assert parts_of(open_store()).files.producer_ids.take() == FIRST + 3001


def full(*_arguments, **_named):
    raise StoreFullError("no space, as the test has it")


# I. Initializing.


def test_i01_without_an_id_every_producer_is_another(at):
    first, second = (at.store.producer() for _ in range(2))
    for producer in (first, second):
        producer.append("a", 0, [b"x"])
    assert first.producer_id != second.producer_id
    assert first.producer_epoch == second.producer_epoch == 0
    assert at.store.transactions() == []


@pytest.mark.parametrize("wrong", ["", "x" * 481, "\ud800"])
def test_i02_an_id_that_is_none(at, wrong):
    with pytest.raises(InvalidRequestError):
        at.init(wrong)
    assert parts_of(at.store).files.partitions.existing_state_partitions() == []


def test_i02_an_id_is_a_text(at):
    with pytest.raises(TypeError):
        at.init(b"my-txn")


def test_the_longest_id_survives(open_store):
    long = "é" * 240
    at = CoordinatedStore(open_store())
    at.end(at.begun("a-0", transactional_id=long))
    at.store.close()
    assert CoordinatedStore(open_store()).init(long).producer_epoch == 2


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_i04_a_timeout_out_of_range(at, timeout_ms):
    with pytest.raises(InvalidTransactionTimeoutError, match=r"transaction\.max\.timeout\.ms"):
        at.init(timeout_ms=timeout_ms)
    assert at.init(timeout_ms=900_000).entry.timeout_ms == 900_000


@pytest.mark.parametrize("expected", [(7, -1), (-1, 3)])
def test_half_of_an_expected_identity_is_refused(at, expected):
    with pytest.raises(InvalidRequestError):
        at.init(expected=expected)


def test_i07_first_init(at):
    ids_of(at, 7)
    found = at.init()
    assert (found.producer_id, found.producer_epoch, found.prepared) == (FIRST + 7, 0, None)
    assert at.identity() == (FIRST + 7, 0, -1, -1)
    (record,) = at.records()
    assert (record["state"], record["partitions"], record["start_ms"]) == ("Empty", None, -1)
    assert (record["timeout_ms"], record["last_producer_epoch"]) == (TIMEOUT_MS, -1)


def test_i08_second_init_replaces_the_timeout_too(at):
    at.init()
    assert at.init(timeout_ms=5000).producer_epoch == 1
    assert at.identity() == (FIRST, 1, -1, -1)
    assert at.entry().timeout_ms == 5000


@pytest.mark.parametrize("state", ["Empty", "CompleteAbort", "CompleteCommit"])
def test_i10_init_of_a_settled_id(at, state):
    at.record(state=state, producer_epoch=5, last_producer_epoch=4)
    found = at.init()
    assert (found.producer_id, found.producer_epoch) == (7, 6)
    assert at.identity() == (7, 6, -1, -1)


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort"])
def test_i11_init_while_a_decision_cannot_be_completed(at, monkeypatch, state):
    at.record(state=state, producer_epoch=5, last_producer_epoch=4, partitions=[("a", 0)])
    with monkeypatch.context() as patch:
        patch.setattr(parts_of(at.store).files.partitions, "find_for_transaction", full)
        for _ in range(2):
            with pytest.raises(ConcurrentTransactionsError, match="as the test has it"):
                at.init()
    assert at.identity() == (7, 5, 4, -1)
    assert at.states() == [state]
    assert at.init().producer_epoch == 6
    assert at.states() == [state, state.replace("Prepare", "Complete"), "Empty"]
    assert at.markers("a-0") == [(7, 5, state.removeprefix("Prepare").upper())]


def test_i13_init_waits_for_whoever_works_on_the_id(at):
    at.init()
    results = []
    with at.entry().lock:
        thread = threading.Thread(target=lambda: results.append(at.init().producer_epoch))
        thread.start()
        thread.join(0.05)
        assert not results
    thread.join()
    assert results == [1]


def test_i14_init_aborts_an_open_transaction(at):
    at.record(state="CompleteCommit", producer_epoch=4)
    older = at.begun("a-0", "b-1")
    assert at.entry().producer_epoch == 5
    found = at.init()
    assert (found.producer_id, found.producer_epoch) == (7, 7)
    assert at.states()[2:] == ["Ongoing", "Ongoing", "PrepareAbort", "CompleteAbort", "Empty"]
    for place in ("a-0", "b-1"):
        assert at.markers(place) == [(7, 6, "ABORT")]
        assert at.committed(place) == []
    with pytest.raises(ProducerFencedError):
        at.write(older, "a-0")
    with pytest.raises(ProducerFencedError):
        at.end(older)


def test_i16_a_fence_that_cannot_be_written_leaves_the_epoch(at):
    older = at.begun("a-0")
    partition = parts_of(at.store).files.state_log.partition_of(ID)
    fill_up(partition.log, ROOM_BYTES)
    with full_disk():
        for _ in range(3):
            with pytest.raises(StoreError):
                at.init()
            assert at.identity()[:2] == (FIRST, 0)
            assert at.entry().state == "Ongoing"
    assert at.init().producer_epoch == 2
    assert at.markers("a-0") == [(FIRST, 1, "ABORT")]
    assert older.producer_epoch == 0


@pytest.mark.parametrize("reason", ["init", "timeout", "abort"])
def test_i18_v18_a_fence_at_the_last_epoch_rotates(at, reason):
    at.record(state="Empty", producer_epoch=32765)
    older = at.begun("a-0")
    assert older.producer_epoch == 32766
    if reason == "timeout":
        assert abort_timed_out(at.coordinator, older.entry.start_ms + TIMEOUT_MS + 1) == 1
        assert at.identity() == (FIRST, 0, 32766, 7)
    if reason == "abort":
        at.store.abort_transaction(ID)
    found = at.init()
    assert found.producer_id == FIRST
    assert found.producer_epoch == {"init": 1, "timeout": 1, "abort": 2}[reason]
    assert at.markers("a-0") == [(7, 32767, "ABORT")]
    at.write(found, "a-0", value=b"after")
    at.end(found)
    assert at.committed("a-0") == [b"after"]


def test_i20_rotation_without_an_expected_identity(at):
    at.record(state="CompleteCommit", producer_epoch=32766, last_producer_epoch=32765)
    assert at.init()[1:3] == (FIRST, 0)
    assert at.identity() == (FIRST, 0, -1, 7)


def test_i21_i23_rotation_with_an_expected_identity(at):
    at.record(state="Empty", producer_epoch=32766)
    assert at.init(expected=(7, 32766))[1:3] == (FIRST, 0)
    assert at.identity() == (FIRST, 0, 32766, 7)
    # The answer was lost: the same again.
    assert at.init(expected=(7, 32766))[1:3] == (FIRST, 0)
    with pytest.raises(ProducerFencedError):
        at.init(expected=(7, 32765))
    assert at.identity() == (FIRST, 0, 32766, 7)


@pytest.mark.parametrize(
    ("known", "expected", "after"),
    [
        ((7, 10, 9), (7, 10), (7, 11, 10, -1)),  # I25
        ((7, 11, 10), (7, 10), (7, 11, 10, -1)),  # I26
        ((7, 11, 10), (7, 9), None),  # I28
        ((7, 11, 10), (7, 12), None),
        ((7, 10, -1), (8, 3), None),  # I30
        ((7, 10, -1), (7, 9), None),
        ((7, 32766, 32765), (7, 32765), (7, 32766, 32765, -1)),
    ],
)
def test_i25_to_i30_expected_identities(at, known, expected, after):
    producer_id, epoch, last = known
    at.record(producer_id=producer_id, producer_epoch=epoch, last_producer_epoch=last)
    if after is None:
        with pytest.raises(ProducerFencedError, match=f"epoch {expected[1]} is not the newest"):
            at.init(expected=expected)
        assert at.identity() == (*known, -1)
        assert at.states() == ["Empty"]
    else:
        assert at.init(expected=expected)[1:3] == after[:2]
        assert at.identity() == after


def test_i31_an_expected_identity_of_an_id_that_expired(at):
    assert at.init(expected=(7, 10))[1:3] == (FIRST, 0)


def test_i36_one_new_and_one_that_goes_on(at):
    at.record(producer_epoch=10)
    assert at.init(expected=(7, 10)).producer_epoch == 11
    assert at.init().producer_epoch == 12
    with pytest.raises(ProducerFencedError):
        at.init(expected=(7, 10))
    with pytest.raises(ProducerFencedError):
        at.init(expected=(7, 11))


def test_an_expected_identity_with_its_own_transaction_open(at):
    begun = at.begun("a-0")
    with pytest.raises(ProducerFencedError):
        at.init(expected=(FIRST, 3))
    assert at.entry().state == "Ongoing"
    for _ in range(2):  # Asked again, the answer is the same.
        assert at.init(expected=(FIRST, begun.producer_epoch))[1:3] == (FIRST, 2)
    assert at.markers("a-0") == [(FIRST, 1, "ABORT")]


def test_owners_are_told_who_took_over(at):
    first = TransactionOwner.here()
    at.init(owner=first)
    first.check()
    second = TransactionOwner(99, "elsewhere", "T-1", 0)
    at.init(owner=second)
    with pytest.raises(
        ProducerFencedError,
        match="'my-txn' was initialized again, with epoch 1, by process 99 on elsewhere, thread "
        "'T-1', at 1970-01-01",
    ):
        first.check()
    second.check()
    explained = first.explain(InvalidProducerEpochError("epoch 0"))
    assert isinstance(explained, InvalidProducerEpochError)
    assert "epoch 0; transactional id" in str(explained)
    assert "process 99" in at.store.describe_transaction(ID).owner
    at.coordinator.release(at.entry(), first)
    assert at.store.describe_transaction(ID).owner is not None
    at.coordinator.release(at.entry(), second)
    assert at.store.describe_transaction(ID).owner is None


def test_many_threads_initialize_one_id(at):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(at.init().producer_epoch)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(8))


# A. Partitions.


def test_a13_an_unknown_topic_adds_nothing(at):
    at.init()
    for where in (("x", 0), ("a", 2), ("__transaction_state", 0)):
        with pytest.raises(UnknownTopicOrPartitionError):
            at.coordinator.part_of(*where)
    assert at.entry().state == "Empty"


def test_a15_a_groups_partition(at):
    begun = at.init()
    part = at.coordinator.part_of("__consumer_offsets", state_partition_of("my-group"))
    with begun.entry.lock:
        begun.entry.add_partitions(FIRST, 0, [part])
    assert begun.entry.partitions == [("__consumer_offsets", 12)]


# V. Ending.


def test_v01_v02_ten_transactions(at):
    going_on = at.init()
    for number in range(10):
        assert going_on.producer_epoch == number
        at.write(going_on, "a-0", value=b"%d" % number)
        going_on = at.end(going_on)
    assert at.identity() == (FIRST, 10, 9, -1)
    assert at.markers("a-0") == [(FIRST, number + 1, "COMMIT") for number in range(10)]
    assert at.committed("a-0") == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("commit", [True, False])
def test_v04_a_repeated_end(at, commit):
    begun = at.begun("a-0")
    at.end(begun, commit)
    before = at.states()
    assert at.end(begun, commit)[1:3] == (FIRST, 1)
    with pytest.raises(InvalidTxnStateError):
        at.end(begun, not commit)
    assert at.states() == before


def test_v08_v09_ends_of_nothing(at):
    going_on = at.end(at.begun("a-0"))
    with pytest.raises(InvalidTxnStateError):
        at.end(going_on)
    assert at.end(going_on, commit=False)[1:3] == (FIRST, 2)
    assert at.states()[-2:] == ["PrepareAbort", "CompleteAbort"]
    assert at.records()[-2]["partitions"] in ([], None)
    assert at.markers("a-0") == [(FIRST, 1, "COMMIT")]


def test_v11_ends_of_an_empty_id(at):
    going_on = at.init()
    with pytest.raises(InvalidTxnStateError):
        at.end(going_on)
    assert at.end(going_on, commit=False)[1:3] == (FIRST, 1)


@pytest.mark.parametrize("commit", [True, False])
def test_v12_the_last_epoch_rotates(at, commit):
    at.record(producer_epoch=32765)
    begun = at.begun("a-0")
    going_on = at.end(begun, commit)
    assert going_on[1:3] == (FIRST, 0)
    assert at.identity() == (FIRST, 0, 32766, 7)
    prepared = at.records()[-2]
    assert (prepared["producer_id"], prepared["producer_epoch"]) == (7, 32767)
    assert prepared["next_producer_id"] == FIRST
    assert at.markers("a-0") == [(7, 32767, "COMMIT" if commit else "ABORT")]
    assert at.end(begun, commit)[1:3] == (FIRST, 0)  # Asked again.
    with pytest.raises(InvalidProducerIdMappingError):
        at.write(begun, "a-0")
    at.write(going_on, "a-0")
    assert at.end(going_on)[1:3] == (FIRST, 1)
    # Once all is synced the partition forgets the old id.
    assert at.partition("a-0").producer(7) is not None
    parts_of(at.store).files.transaction_recovery.advance()
    assert at.partition("a-0").producer(7) is None
    assert at.partition("a-0").producer(FIRST) is not None


def test_v14_no_id_for_the_rotation(at, monkeypatch):
    at.record(producer_epoch=32765)
    begun = at.begun("a-0")
    with monkeypatch.context() as patch:
        patch.setattr(parts_of(at.store).files.state_log, "append", full)
        for _ in range(2):
            with pytest.raises(StoreFullError):
                at.end(begun)
            assert at.entry().state == "Ongoing"
    assert at.end(begun)[1:3] == (FIRST, 0)


def test_v17_late_data_of_an_ended_transaction(at):
    begun = at.begun("a-0")
    going_on = at.end(begun)
    with pytest.raises(ProducerFencedError):
        at.write(begun, "a-0")
    log = at.partition("a-0").log
    with pytest.raises(InvalidProducerEpochError):
        log.append_columns(
            [b"late"],
            timestamp_ms=1,
            producer_id=FIRST,
            producer_epoch=0,
            base_sequence=1,
            transactional=True,
        )
    assert log.log_end_offset == 2
    assert going_on.producer_epoch == 1


# S. Records, expiry, lists.


@pytest.mark.parametrize("stop", ["close", "abandon", "abandon persisted"])
def test_s01_s02_the_last_record_of_an_id_holds(open_store, stop):
    at = CoordinatedStore(open_store())
    for state in ("Ongoing", "PrepareCommit", "CompleteCommit"):
        at.record(state=state, producer_epoch=3)
    at.record("gone")
    at.raw_record(None, "gone")
    end(at.store, stop)
    at = CoordinatedStore(open_store())
    assert [one.transactional_id for one in at.store.transactions()] == [ID]
    assert at.entry().state == "CompleteCommit"
    assert at.states() == ["Ongoing", "PrepareCommit", "CompleteCommit"]
    with pytest.raises(TransactionalIdNotFoundError):
        at.store.describe_transaction("gone")
    assert at.init("gone")[1:3] == (FIRST, 0)


def end(store, stop):
    if stop == "close":
        store.close()
        return
    if "persisted" in stop:
        parts_of(store).files.state_log.persist()
    abandon(store)


@pytest.mark.parametrize("stop", ["close", "abandon", "abandon persisted"])
def test_s04_a_decision_is_completed_on_opening(open_store, stop):
    at = CoordinatedStore(open_store())
    at.record(state="PrepareCommit", producer_epoch=4, partitions=[("a", 0), ("b", 1)])
    end(at.store, stop)
    at = CoordinatedStore(open_store())
    for place in ("a-0", "b-1"):
        assert at.markers(place) == [(7, 4, "COMMIT")]
    assert at.states() == ["PrepareCommit", "CompleteCommit"]
    assert parts_of(at.store).files.transaction_recovery.left == set()


@pytest.mark.parametrize("stop", ["close", "abandon", "abandon persisted"])
def test_s06_s07_an_open_transaction_is_aborted_on_opening(open_store, stop):
    """Its process is gone: nobody waits for its timeout."""
    at = CoordinatedStore(open_store())
    at.begun("a-0")
    end(at.store, stop)
    at = CoordinatedStore(open_store())
    assert at.entry().state == "CompleteAbort"
    assert at.markers("a-0") == [(FIRST, 1, "ABORT")]
    assert at.partition("a-0").last_stable_offset == 2


@pytest.mark.parametrize("stop", ["close", "abandon", "abandon persisted"])
@pytest.mark.parametrize(
    "damaged", [b"", b"\0", b"\0\x63" + b"\1" * 30, b"\0\1" + b"\1" * 30], ids=range(4)
)
def test_s09_a_damaged_record_harms_its_own_id_alone(open_store, damaged, stop):
    at = CoordinatedStore(open_store())
    at.record("before", state="CompleteCommit")
    offset = at.raw_record(damaged)
    at.record("after", state="PrepareCommit", producer_id=9, partitions=[("a", 0)])
    end(at.store, stop)
    at = CoordinatedStore(open_store())
    path = at.store.path / f"__transaction_state-{state_partition_of(ID)}"
    for call in (at.init, lambda: at.store.describe_transaction(ID), at.entry):
        with pytest.raises(CorruptRecordError) as raised:
            call()
        assert (raised.value.path, raised.value.position_bytes) == (str(path), offset)
    assert [one.transactional_id for one in at.store.transactions()] == ["after", "before"]
    assert at.entry("after").state == "CompleteCommit"
    assert at.init("before").producer_epoch == 1
    parts_of(at.store).files.transaction_recovery.retry()
    parts_of(at.store).files.transaction_recovery.advance()


def test_s13_s15_s16_expiry(at):
    for state in ("Empty", "CompleteCommit", "CompleteAbort"):
        at.record(state, state=state, last_update_ms=NOW_MS - WEEK_MS)
    for state in ("Ongoing", "PrepareCommit", "PrepareAbort"):
        at.record(state, state=state, last_update_ms=NOW_MS - 8 * DAY_MS, partitions=[("a", 0)])
    at.record("young", last_update_ms=NOW_MS - WEEK_MS + 1)
    at.entry("CompleteAbort")  # One is in memory, the others are not.
    assert expire(at) == 3
    listed = [one.transactional_id for one in at.store.transactions()]
    assert listed == ["Ongoing", "PrepareAbort", "PrepareCommit", "young"]
    assert at.states("Empty") == ["Empty", "tombstone"]
    with pytest.raises(TransactionalIdNotFoundError):
        at.store.describe_transaction("CompleteCommit")
    assert expire(at) == 0
    assert at.init("Empty")[1:3] == (FIRST, 0)


def expire(at, now_ms=NOW_MS):
    return expire_ids(at.coordinator, parts_of(at.store).files.state_log, now_ms, WEEK_MS)


def test_s13_a_producer_whose_id_expired_is_refused(at):
    begun = at.init()
    assert expire(at, at.entry().last_update_ms + WEEK_MS) == 1
    assert begun.entry.state == "Dead"
    with pytest.raises(InvalidProducerIdMappingError):
        at.write(begun, "a-0")
    again = at.init()
    assert again[1:3] == (FIRST + 1, 0)
    assert again.entry is not begun.entry


@pytest.mark.parametrize("stop", ["close", "abandon", "abandon persisted"])
def test_s18_many_ids_expire_and_stay_away(open_store, stop):
    at = CoordinatedStore(open_store())
    for number in range(100):
        at.record(f"id-{number}", last_update_ms=0)
    parts_of(at.store).files.state_log.persist()
    assert expire(at) == 100
    end(at.store, stop)
    at = CoordinatedStore(open_store())
    assert at.store.transactions() == []
    assert at.init("id-7")[1:3] == (FIRST, 0)


def test_s20_filters(at):
    at.record("e", producer_id=7)
    at.record("c", state="CompleteCommit", producer_id=8)
    at.record("o", state="Ongoing", producer_id=9)
    at.record("p", state="PrepareAbort", producer_id=10)

    def listed(**filters):
        return [one.transactional_id for one in at.store.transactions(**filters)]

    assert listed() == ["c", "e", "o", "p"]
    assert listed(states=["Ongoing"]) == ["o"]
    assert listed(producer_ids=[7, 9]) == ["e", "o"]
    assert listed(states=["Ongoing", "Empty"], producer_ids=[9, 10]) == ["o"]
    assert listed(states=[], producer_ids=[]) == ["c", "e", "o", "p"]
    with pytest.raises(ValueError, match="named Foo"):
        listed(states=["Foo", "Ongoing"])
    with pytest.raises(ValueError, match="Dead"):
        listed(states=["Dead"])


def test_s20_only_what_is_open_for_long(at):
    at.record("old", state="Ongoing", start_ms=1)
    at.begun("a-0", transactional_id="new")
    at.record("none")
    found = at.store.transactions(duration_ms=60_000)
    assert [one.transactional_id for one in found] == ["old"]
    assert len(at.store.transactions(duration_ms=0)) >= 1


def test_s22_a_pattern_is_for_the_whole_id(at):
    for name in ("app-1", "app-2", "other"):
        at.record(name)
    assert len(at.store.transactions(pattern="app-.*")) == 2
    assert at.store.transactions(pattern="app") == []
    with pytest.raises(InvalidRequestError, match="regular expression"):
        at.store.transactions(pattern="(")


def test_s23_o02_describe(at):
    at.record(state="Ongoing", producer_epoch=3, start_ms=1000, partitions=[("a", 0), ("b", 1)])
    at.record("empty", producer_id=8)
    found = at.store.describe_transaction(ID)
    assert found.transaction_duration_ms > 1_700_000_000_000
    assert found == eoslog.transactions.admin.TransactionDescription(
        coordinator_id=0,
        transactional_id=ID,
        producer_id=7,
        producer_epoch=3,
        transaction_state="Ongoing",
        transaction_timeout_ms=TIMEOUT_MS,
        current_transaction_start_time_ms=1000,
        transaction_duration_ms=found.transaction_duration_ms,
        topic_partitions=(TopicPartition("a", 0), TopicPartition("b", 1)),
        prepared=False,
        owner=None,
    )
    empty = at.store.describe_transaction("empty")
    assert (empty.current_transaction_start_time_ms, empty.transaction_duration_ms) == (None, None)
    with pytest.raises(TransactionalIdNotFoundError, match="no transactional id 'x'"):
        at.store.describe_transaction("x")
    with pytest.raises(InvalidRequestError):
        at.store.describe_transaction("")


@pytest.mark.parametrize("name", ["a", "é", "日本", "😀", "txn-1", "my-txn", "polygenelubricants"])
def test_s27_records_stand_in_kafkas_partition(at, name):
    expected = {"a": 47, "é": 33, "日本": 47, "😀": 49, "txn-1": 10, "my-txn": 45}.get(name, 0)
    at.init(name)
    assert expected in parts_of(at.store).files.partitions.existing_state_partitions()
    assert at.states(name) == ["Empty"]


def test_only_used_ids_stay_in_memory(at, monkeypatch):
    monkeypatch.setattr("eoslog.transactions.entries.ENTRIES_KEPT", 3)
    assert ENTRIES_KEPT == 10_000
    kept = at.begun("a-0", transactional_id="open")
    for number in range(10):
        name = f"id-{number}"
        at.coordinator.release(at.init(name).entry, at.coordinator.entries.owner_of(name))
    owned = at.init("owned")
    parts_of(at.store).files.state_log.persist()
    known = {entry.transactional_id for entry in at.coordinator.entries.known()}
    assert len(known) == 3
    assert {"open", "owned"} <= known
    assert at.init("id-0").producer_epoch == 1
    assert at.end(kept).producer_epoch == 1
    assert owned.entry is at.entry("owned")


def test_ids_are_listed_page_by_page_from_the_index_and_what_is_newer(at, monkeypatch):
    monkeypatch.setattr("eoslog.transactions.compacted_log._KEYS_PER_LOOK", 4)
    names = [f"{number:03}" for number in range(30)]
    for number in range(0, 30, 2):
        at.record(names[number])
    parts_of(at.store).files.state_log.persist()
    for number in range(1, 30, 3):
        at.record(names[number])
    at.raw_record(None, names[4])
    expected = sorted({*names[0::2], *names[1::3]} - {names[4]})
    listed = parts_of(at.store).files.state_log.transactions
    assert [name for name, _ in listed()] == expected
    parts_of(at.store).files.state_log.persist()
    assert [name for name, _ in listed()] == expected
    assert parts_of(at.store).files.state_log.undecided_transactions() == []


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"\0",
        b"\0\0",
        b"\0\0\0",
        b"\0\0\0\2a",
        b"\0\0\0\1\xff",
        b"\0\1\0\1a",
        b"\3\xe7a",
        b"\xff\xffa",
    ],
)
def test_keys_of_no_known_type_are_passed_over(open_store, key):
    at = CoordinatedStore(open_store())
    at.end(at.begun("a-0"))
    for value in (b"?", None, b"?"):
        parts_of(at.store).files.state_log.partition_of(ID).append_columns([value], [key])
    abandon(at.store)
    at = CoordinatedStore(open_store())
    assert [one.transactional_id for one in at.store.transactions()] == [ID]
    assert at.init()[1] in (FIRST, FIRST + 1000)
    for _ in range(2):
        assert at.store.verify() == []
        at.store.close()  # What the index knows by then it is asked for.
        at = CoordinatedStore(open_store())


@pytest.mark.parametrize("record_type", [1001, 1002, 1004, 1010])
def test_a_name_that_is_no_text_is_looked_at(open_store, record_type):
    """The key of a record of our own that another program wrote."""
    at = CoordinatedStore(open_store())
    at.end(at.begun("a-0"))
    log, key = parts_of(at.store).files.state_log, record_type.to_bytes(2, "big") + b"\xff"
    value = b'{"version": 1, "state": "complete", "spans": []}'
    log.partition_of(ID).append_columns([value], [key])
    abandon(at.store)
    at = CoordinatedStore(open_store())
    assert parts_of(at.store).files.state_log.names(record_type) == ["\ufffd"]
    assert at.store.verify() == []
    at.store.close()
    assert read_durable_bounds(StorePaths(at.store.path), {}).jobs == {}
    at = CoordinatedStore(open_store())
    assert at.store.verify() == []


# Timeouts.


def test_a_transaction_times_out_after_its_timeout_and_not_before(at):
    owner = TransactionOwner.here()
    begun = at.init(owner=owner)
    assert abort_timed_out(at.coordinator, 1 << 50) == 0  # Empty has no timeout.
    at.write(begun, "a-0")
    assert abort_timed_out(at.coordinator, begun.entry.start_ms + TIMEOUT_MS) == 0
    assert abort_timed_out(at.coordinator, begun.entry.start_ms + TIMEOUT_MS + 1) == 1
    assert at.states()[-2:] == ["PrepareAbort", "CompleteAbort"]
    assert at.markers("a-0") == [(FIRST, 1, "ABORT")]
    with pytest.raises(ProducerFencedError, match="after its timeout of 60000 ms"):
        owner.check()
    with pytest.raises(ProducerFencedError):
        at.write(begun, "a-0")
    assert abort_timed_out(at.coordinator, 1 << 50) == 0
    assert at.init().producer_epoch == 2


def test_a_prepared_transaction_does_not_time_out(at):
    begun = at.begun("a-0")
    with begun.entry.lock:
        begun.entry.prepare(FIRST, 0)
    assert abort_timed_out(at.coordinator, 1 << 50) == 0
    assert at.end(begun).producer_epoch == 1


def test_the_background_thread_times_out_and_expires(open_store, monkeypatch):
    store = open_store(
        transaction__abort__timed__out__transaction__cleanup__interval__ms=10,
        transaction__remove__expired__transaction__cleanup__interval__ms=10,
        log__initial__task__delay__ms=0,
    )
    at = CoordinatedStore(store)
    at.init("idle")
    begun = at.init()
    at.write(begun, "a-0")
    # Weeks go by, and not before: a moment that the test stands still must not do it.
    monkeypatch.setattr(parts_of(store).expiry_clock, "now_ms", weeks_later(clock.now_ms))
    monkeypatch.setattr(clock, "now_ms", weeks_later(clock.now_ms))

    def counts():
        names = ("transactions_timed_out", "transactional_ids_expired")
        return tuple(store.metrics()["checkpointer"][name] for name in names)

    deadline_s = time.monotonic() + 60
    while counts() != (1, 2) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert counts() == (1, 2)
    assert at.markers("a-0") == [(begun.producer_id, 1, "ABORT")]
    assert store.transactions() == []


def weeks_later(now_ms):
    return lambda: now_ms() + 2 * WEEK_MS


# K. Markers.


def test_k01_each_partition_gets_one_marker(at):
    at.store.create_topic("c", partitions=5, config=SMALL)
    places = [f"c-{number}" for number in range(5)]
    at.end(at.begun(*places, *places))
    for place in places:
        assert at.markers(place) == [(FIRST, 1, "COMMIT")]
        assert at.committed(place) == [b"x", b"x"]


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("commit", [True, False])
def test_k03_a_deleted_topic_is_left_out(at, commit, anew):
    begun = at.begun("a-0", "b-1")
    at.store.delete_topic("a")
    if anew:
        at.store.create_topic("a", config=SMALL)
    at.end(begun, commit)
    assert at.entry().state == ("CompleteCommit" if commit else "CompleteAbort")
    assert at.markers("b-1") == [(FIRST, 1, "COMMIT" if commit else "ABORT")]
    if anew:
        assert at.committed("a-0") == []
        assert at.partition("a-0").open_transactions() == []


def test_k03_a_topic_deleted_while_the_store_was_closed_for_its_decision(open_store):
    at = CoordinatedStore(open_store())
    at.record(state="PrepareCommit", producer_epoch=4, partitions=[("gone", 0), ("b", 1)])
    at.store.close()
    at = CoordinatedStore(open_store())
    assert at.entry().state == "CompleteCommit"
    assert at.markers("b-1") == [(7, 4, "COMMIT")]


def coordinator_epochs(at, place, producer_id=FIRST):
    """What the markers of a producer say, in the log's order, and what the partition remembers."""
    written = [
        int.from_bytes(decode_records(data)[0].value[2:6], "big")
        for header, data in batches_of(at.partition(place))
        if header.is_control and header.producer_id == producer_id
    ]
    return written, at.partition(place).producer(producer_id).coordinator_epoch


def test_k07_the_coordinators_epoch_stays_0_over_any_number_of_openings(open_store):
    for _ in range(3):
        at = CoordinatedStore(open_store())
        at.end(at.begun("a-0"))
        at.store.close()
    at = CoordinatedStore(open_store())
    assert coordinator_epochs(at, "a-0") == ([0, 0, 0], 0)


# How a transaction ends after a broker's marker with coordinator epoch 5 is in its partition.


def commits(at):
    at.end(at.begun("a-0"))


def aborts(at):
    at.end(at.begun("a-0"), commit=False)


def is_fenced(at):
    at.begun("a-0")
    at.init()


def is_terminated(at):
    at.begun("a-0")
    at.store.abort_transaction(ID)


def times_out(at):
    at.begun("a-0")
    assert abort_timed_out(at.coordinator, time.time_ns() // 1_000_000 + TIMEOUT_MS + 1000) == 1


def commits_what_was_prepared(at):
    begun = at.begun("a-0")
    with begun.entry.lock:
        begun.entry.prepare(begun.producer_id, begun.producer_epoch)
    at.store.commit_prepared([PreparedTransaction(ID, begun.producer_id, begun.producer_epoch)])


def hangs(at):
    end = at.partition("a-0").log_end_offset
    at.partition("a-0").log.append_columns(
        [b"x"],
        timestamp_ms=1,
        producer_id=FIRST,
        producer_epoch=9,
        base_sequence=0,
        transactional=True,
    )
    at.store.abort_transaction(topic="a", partition=0, start_offset=end)


@pytest.mark.parametrize("evicted", [False, True])
@pytest.mark.parametrize(
    "end",
    [
        commits,
        aborts,
        is_fenced,
        is_terminated,
        times_out,
        commits_what_was_prepared,
        hangs,
    ],
)
def test_k07_a_brokers_marker_fences_none_of_ours(open_store, end, evicted):
    at = CoordinatedStore(open_store(eoslog__producers__cached__max=1))
    epoch = at.end(at.begun("a-0")).producer_epoch
    at.partition("a-0").append_marker(FIRST, epoch + 1, 5, True)
    at.store.close()
    at = CoordinatedStore(open_store(eoslog__producers__cached__max=1))
    if evicted:
        at.store.producer().append("a", 0, [b"other"])
        at.partition("a-0").producer_state.persist()
        assert at.partition("a-0").log.producer(FIRST) is None
    end(at)
    partition = at.partition("a-0")
    assert partition.last_stable_offset == partition.log_end_offset
    assert coordinator_epochs(at, "a-0") == ([0, 5, 5], 5)
    assert b"x" in at.committed("a-0")
    if end is not hangs:  # Its epoch was never given out.
        assert not at.store.verify()
    # An explicit epoch keeps Kafka's rule.
    with pytest.raises(TransactionCoordinatorFencedError):
        partition.append_marker(FIRST, 20, 4, True)
    partition.append_marker(FIRST, 20, 5, True)


@pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit", "PrepareAbort"])
def test_k07_a_brokers_marker_fences_no_opening(open_store, state):
    at = CoordinatedStore(open_store())
    at.partition("a-0").append_marker(7, 0, 29, True)
    at.partition("a-0").log.append_columns(
        [b"x"], timestamp_ms=1, producer_id=7, producer_epoch=1, base_sequence=0, transactional=True
    )
    epoch = 1 if state == "Ongoing" else 2
    at.record(producer_epoch=epoch, state=state, partitions=[("a", 0)])
    abandon(at.store)
    at = CoordinatedStore(open_store())
    kind = "COMMIT" if state == "PrepareCommit" else "ABORT"
    assert at.markers("a-0") == [(7, 0, "COMMIT"), (7, 2, kind)]
    assert coordinator_epochs(at, "a-0", 7) == ([29, 29], 29)


def test_k07_a_brokers_marker_fences_no_end_of_what_nobody_knows(open_store):
    at = CoordinatedStore(open_store())
    at.partition("a-0").append_marker(7, 0, 29, True)
    at.partition("a-0").log.append_columns(
        [b"x"], timestamp_ms=1, producer_id=7, producer_epoch=1, base_sequence=0, transactional=True
    )
    abandon(at.store)
    at = CoordinatedStore(open_store())
    assert at.partition("a-0").open_transactions() == []
    assert coordinator_epochs(at, "a-0", 7) == ([29, 29], 29)


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_that_a_partition_refuses_is_an_error(open_store, commit):
    """Another coordinator ended the transaction there: what it decided need not be the same."""
    at = CoordinatedStore(open_store())
    producer = at.store.producer(transactional_id=ID)
    producer.init_transactions()
    producer.begin_transaction()
    producer.append("a", 0, [b"x"])
    producer.append("b", 0, [b"x"])
    own = (producer.producer_id, producer.producer_epoch)
    at.partition("a-0").append_marker(own[0], own[1] + 5, 0, not commit)
    with pytest.raises(TransactionCoordinatorFencedError, match="a-0") as raised:
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    assert raised.value.outcome == "unknown"
    assert at.committed("b-0") == ([b"x"] if commit else [])
    with pytest.raises(TransactionCoordinatorFencedError):
        producer.begin_transaction()
    at.store.close()
    at = CoordinatedStore(open_store())
    [problem] = at.store.verify()
    assert "its coordinator decided" in str(problem)


@pytest.mark.parametrize("way", ["store", "producer", "later producer"])
@pytest.mark.parametrize("newer_by", [1, 5])
@pytest.mark.parametrize("commit", [True, False])
def test_a_prepared_transaction_that_ended_otherwise_in_a_partition_is_not_decided(
    open_store, way, newer_by, commit
):
    at = CoordinatedStore(open_store())
    producer = at.store.producer(transactional_id=ID)
    producer.init_transactions()
    producer.begin_transaction()
    producer.append("a", 0, [b"x"])
    producer.append("b", 0, [b"x"])
    own = (producer.producer_id, producer.producer_epoch)
    prepared = producer.prepare_transaction()
    at.partition("a-0").append_marker(own[0], own[1] + newer_by, 0, not commit)
    if way == "later producer":
        producer = at.store.producer(transactional_id=ID)
        producer.init_transactions(keep_prepared=True)
    for _ in range(2):
        with pytest.raises(TransactionCoordinatorFencedError, match=r"in a-0 it is") as raised:
            if way == "store":
                decide = at.store.commit_prepared if commit else at.store.abort_prepared
                decide([prepared])
            else:
                producer.complete_transaction(prepared if commit else None)
        assert raised.value.outcome == "not_appended"
    assert at.store.describe_transaction(ID).prepared
    partition = at.partition("b-0")
    assert [one.first_offset for one in partition.open_transactions()] == [0]
    assert any("never decided" in str(one["reason"]) for one in at.store.verify())


@pytest.mark.parametrize("commit", [True, False])
def test_a_prepared_transaction_that_ended_alike_in_a_partition_is_decided(open_store, commit):
    """After a power cut the decision may be lost, and a marker be there."""
    at = CoordinatedStore(open_store())
    producer = at.store.producer(transactional_id=ID)
    producer.init_transactions()
    for is_aborted in (True, False):
        producer.begin_transaction()
        producer.append("a", 0, [b"x"])
        producer.append("b", 0, [b"x"])
        if is_aborted:
            producer.abort_transaction()
    own = (producer.producer_id, producer.producer_epoch)
    prepared = producer.prepare_transaction()
    at.partition("a-0").append_marker(own[0], own[1] + 1, 0, commit)
    (at.store.commit_prepared if commit else at.store.abort_prepared)([prepared])
    assert at.committed("a-0") == at.committed("b-0") == ([b"x"] if commit else [])
    assert not at.store.verify()


def test_a_refusal_is_told_before_a_full_disk(at):
    begun = at.begun("a-0", "b-0")
    part = at.partition("a-0")
    fill_up(part.log, ROOM_BYTES)
    at.partition("b-0").append_marker(FIRST, 9, 0, False)
    with full_disk(), pytest.raises(TransactionCoordinatorFencedError, match="b-0"):
        at.end(begun)


def test_the_state_log_says_how_durable_a_life_is_where_that_changes(open_store, store_path):
    for durability in ("commit", "commit", "process", "process", "always", "commit"):
        at = CoordinatedStore(open_store(durability=durability))
        at.init()
        at.store.close()
    at = CoordinatedStore(open_store())
    partition = parts_of(at.store).files.partitions.state_partition(0)
    records = partition.fetch_records(0, 1000, 1 << 20)[0]
    found = [json.loads(one.value) for one in records if one.key == state_key(DURABILITY, "")]
    assert [one["durable"] for one in found] == [False, True]


@pytest.mark.parametrize("durable", [True, False])
def test_the_record_of_an_older_version_counts_openings_too(open_store, durable):
    store = open_store()
    parts_of(store).files.state_log.append(
        DURABILITY, "", {"coordinator_epoch": 29, "durable": durable}
    )
    abandon(store)
    at = CoordinatedStore(open_store(durability="commit"))
    at.end(at.begun("a-0"))
    assert coordinator_epochs(at, "a-0") == ([0], 0)
    assert at.coordinator.entries.last_life_was_durable()


def test_k13_sequences_begin_anew_after_the_marker(at):
    begun = at.begun("a-0")
    going_on = at.end(begun, commit=False)
    log = at.partition("a-0").log

    def append(epoch, sequence):
        log.append_columns(
            [b"x"],
            timestamp_ms=1,
            producer_id=FIRST,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )

    with pytest.raises(OutOfOrderSequenceError):
        append(1, 1)
    with pytest.raises(InvalidProducerEpochError):
        append(0, 1)
    at.write(going_on, "a-0")


def test_an_evicted_producer_takes_part(open_store):
    at = CoordinatedStore(open_store(eoslog__producers__cached__max=1))
    going_on = at.end(at.begun("a-0", "b-0"))
    for _ in range(5):
        at.store.producer().append("a", 0, [b"other"])
    for partition in parts_of(at.store).files.partitions.opened():
        if partition.topic == "a":
            partition.producer_state.persist()
    assert at.partition("a-0").log.producer(FIRST) is None
    at.write(going_on, "a-0")
    assert at.end(going_on).producer_epoch == 2
    assert at.committed("a-0") == [b"x", *[b"other"] * 5, b"x"]


# O. What operators do.


def test_o01_o10_list_and_terminate(at):
    owner = TransactionOwner.here()
    begun = at.init(owner=owner)
    at.write(begun, "a-0")
    at.record("other", producer_id=8, state="CompleteCommit")
    listed = at.store.transactions()
    assert [(one.transactional_id, one.producer_id, one.transaction_state) for one in listed] == [
        (ID, FIRST, "Ongoing"),
        ("other", 8, "CompleteCommit"),
    ]
    at.store.abort_transaction(ID)
    assert at.markers("a-0") == [(FIRST, 1, "ABORT")]
    assert at.identity()[:2] == (FIRST, 2)
    with pytest.raises(ProducerFencedError, match="was terminated by process"):
        owner.check()
    with pytest.raises(ProducerFencedError):
        at.write(begun, "a-0")
    at.store.abort_transaction("other")  # Nothing is open: its producer is fenced all the same.
    assert at.identity("other")[:2] == (8, 1)
    with pytest.raises(TransactionalIdNotFoundError):
        at.store.abort_transaction("unknown")


def test_an_id_that_somebody_is_about_to_begin_with_is_not_there_yet(at):
    """Its entry is made before its lock is taken, and its first record is written with the lock."""
    entries = parts_of(at.store).files.transactions.entries
    entries.look_up("new", create=True)
    assert at.store.transactions() == []
    for use in (at.store.describe_transaction, at.store.abort_transaction):
        entries.look_up("new", create=True)
        with pytest.raises(TransactionalIdNotFoundError):
            use("new")
    assert at.init("new") is not None
    assert [one.transactional_id for one in at.store.transactions()] == ["new"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"topic": "a"},
        {"topic": "a", "partition": 0},
        {"transactional_id": ID, "topic": "a"},
        {"transactional_id": ID, "topic": "a", "partition": 0, "start_offset": 0},
    ],
)
def test_an_abort_says_what_it_is_for(at, arguments):
    with pytest.raises(InvalidRequestError):
        at.store.abort_transaction(**arguments)


def hang(at, place="a-0", producer_id=50, timestamp_ms=1000):
    """A transaction that no coordinator knows of."""
    at.partition(place).log.append_columns(
        [b"x"],
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=3,
        base_sequence=0,
        transactional=True,
    )


def test_o05_o07_hanging_transactions_are_found(at):
    now_ms = int(time.time() * 1000)
    at.store.producer().append("a", 0, [b"before"] * 55)
    hang(at)
    hang(at, "b-1", producer_id=51, timestamp_ms=now_ms - 14 * 60_000)
    at.begun("a-0", "a-1")  # Written to long ago, but a transactional id has it.
    (found,) = at.store.find_hanging_transactions()
    assert (found.topic, found.partition, found.start_offset) == ("a", 0, 55)
    assert (found.producer_id, found.producer_epoch, found.coordinator_epoch) == (50, 3, -1)
    assert (found.last_timestamp, found.transactional_id) == (1000, None)
    assert found.duration_minutes == pytest.approx(now_ms // 60_000, abs=2)
    find = at.store.find_hanging_transactions
    assert len(find(10 * 60_000)) == 2
    assert find(10 * 60_000, "b")[0].producer_id == 51
    assert find(10 * 60_000, "b", 0) == []
    with pytest.raises(UnknownTopicOrPartitionError):
        find(0, "x")
    with pytest.raises(InvalidRequestError):
        find(0, None, 1)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("epoch", [0, 32766])
def test_s24_a_decided_transaction_shows_the_partitions_without_its_marker(
    open_store, commit, epoch
):
    at = CoordinatedStore(open_store())
    at.record(producer_epoch=epoch - 1 if epoch else 0)
    begun = at.begun("a-0", "b-0", "b-1")
    places = [TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("b", 1)]
    assert list(at.store.describe_transaction(ID).topic_partitions) == places
    for place in ("a-0", "b-1"):
        fill_up(at.partition(place).log, ROOM_BYTES)
    with full_disk():
        at.end(begun, commit)
        described = at.store.describe_transaction(ID)
    state = "PrepareCommit" if commit else "PrepareAbort"
    assert described.transaction_state == state
    assert list(described.topic_partitions) == [places[0], places[2]]
    [listed] = at.store.transactions(states=[state])
    assert listed.transactional_id == ID
    # Each that gets its marker goes from the list, and so does one that is deleted.
    at.partition("a-0").append_marker(
        begun.producer_id, described.producer_epoch, None, commit, newer_epoch=True
    )
    assert list(at.store.describe_transaction(ID).topic_partitions) == [places[2]]
    at.store.delete_topic("b")
    assert list(at.store.describe_transaction(ID).topic_partitions) == []
    at.coordinator.complete(begun.entry)
    assert at.store.describe_transaction(ID).transaction_state.startswith("Complete")
    assert list(at.store.describe_transaction(ID).topic_partitions) == []


def test_o05_an_ids_finished_transaction_may_hang_elsewhere(at):
    at.end(at.begun("a-1"))
    at.partition("a-0").log.append_columns(
        [b"x"],
        timestamp_ms=1,
        producer_id=FIRST,
        producer_epoch=1,
        base_sequence=0,
        transactional=True,
    )
    (found,) = at.store.find_hanging_transactions()
    assert found.transactional_id == ID


def test_o08_a_hanging_transaction_is_aborted_by_its_offset(at):
    at.store.producer().append("a", 0, [b"before"] * 55)
    hang(at)
    with pytest.raises(InvalidTxnStateError, match="since offset 56; there are 55"):
        at.store.abort_transaction(topic="a", partition=0, start_offset=56)
    assert at.markers("a-0") == []
    at.store.abort_transaction(topic="a", partition=0, start_offset=55)
    assert at.markers("a-0") == [(50, 3, "ABORT")]
    assert at.partition("a-0").last_stable_offset == 57
    assert at.committed("a-0") == [b"before"] * 55
    with pytest.raises(InvalidTxnStateError, match="there are none"):
        at.store.abort_transaction(topic="a", partition=0, start_offset=55)


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_transaction_that_ended_meanwhile_is_not_taken_for_the_next(at, monkeypatch, forgotten):
    """Its producer's next one has the same id, and goes on."""
    first = at.begun("a-0")
    entries = parts_of(at.store).files.transactions.entries
    undecided = entries.undecided
    following = []

    def ended_meanwhile():
        monkeypatch.undo()
        found = undecided()
        at.end(first)
        following.append(at.begun("a-0"))
        return [] if forgotten else found

    monkeypatch.setattr(entries, "undecided", ended_meanwhile)
    with pytest.raises(InvalidTxnStateError, match="since offset 0 has ended"):
        at.store.abort_transaction(topic="a", partition=0, start_offset=0)
    at.end(following[0])
    assert [kind for *_, kind in at.markers("a-0")] == ["COMMIT", "COMMIT"]


def test_a_transaction_under_way_is_aborted_as_a_whole(at):
    at.begun("a-0", "b-1")
    at.store.abort_transaction(topic="b", partition=1, start_offset=0)
    for place in ("a-0", "b-1"):
        assert at.markers(place) == [(FIRST, 1, "ABORT")]
    assert at.identity()[:2] == (FIRST, 2)


# Prepared transactions.


def prepared(at, *places, transactional_id=ID):
    begun = at.begun(*places, transactional_id=transactional_id)
    with begun.entry.lock:
        begun.entry.prepare(begun.producer_id, begun.producer_epoch)
    return PreparedTransaction(
        transactional_id=transactional_id,
        producer_id=begun.producer_id,
        producer_epoch=begun.producer_epoch,
    )


@pytest.mark.parametrize("stop", [None, "close", "abandon", "abandon persisted"])
@pytest.mark.parametrize("commit", [True, False])
def test_a_prepared_transaction_waits_for_its_decision(open_store, commit, stop):
    at = CoordinatedStore(open_store("commit"))
    tokens = [prepared(at, "a-0", "b-1"), prepared(at, "a-0", transactional_id="second")]
    if stop is not None:
        end(at.store, stop)
        at = CoordinatedStore(open_store("commit"))
    assert at.store.describe_transaction(ID).prepared
    assert at.partition("a-0").last_stable_offset == 0
    assert at.store.find_hanging_transactions(0) == []
    decide = at.store.commit_prepared if commit else at.store.abort_prepared
    for _ in range(2):
        decide(tokens)
    assert at.committed("a-0") == ([b"x", b"x"] if commit else [])
    assert at.committed("b-1") == ([b"x"] if commit else [])
    with pytest.raises(InvalidTxnStateError):
        (at.store.abort_prepared if commit else at.store.commit_prepared)(tokens)
    assert at.init().producer_epoch == 2
    with pytest.raises(ProducerFencedError):
        decide(tokens)


def test_only_a_prepared_transaction_can_be_decided_from_outside(at):
    begun = at.begun("a-0")
    token = PreparedTransaction(transactional_id=ID, producer_id=FIRST, producer_epoch=0)
    with pytest.raises(InvalidTxnStateError, match="not prepared"):
        at.store.commit_prepared([token])
    going_on = at.end(begun)
    for epoch, error in ((going_on.producer_epoch, InvalidTxnStateError), (7, ProducerFencedError)):
        token = PreparedTransaction(transactional_id=ID, producer_id=FIRST, producer_epoch=epoch)
        for decide in (at.store.commit_prepared, at.store.abort_prepared):
            with pytest.raises(error):
                decide([token])
    token = PreparedTransaction(transactional_id="none", producer_id=FIRST, producer_epoch=0)
    with pytest.raises(TransactionalIdNotFoundError):
        at.store.abort_prepared([token])
    with pytest.raises(TypeError):
        at.store.commit_prepared(["0:0"])


def test_one_that_cannot_be_decided_does_not_hold_up_the_others(at):
    good = prepared(at, "a-0")
    wrong = PreparedTransaction(transactional_id="none", producer_id=FIRST, producer_epoch=0)
    with pytest.raises(TransactionalIdNotFoundError) as raised:
        at.store.commit_prepared([wrong, good, wrong])
    assert len(raised.value.__notes__) == 1
    assert at.committed("a-0") == [b"x"]


@pytest.mark.parametrize("reopened", [False, True])
def test_init_keeps_a_prepared_transaction_if_asked(open_store, reopened):
    at = CoordinatedStore(open_store())
    owner = TransactionOwner.here()
    at.init(owner=owner)
    token = prepared(at, "a-0")
    if reopened:
        at.store.close()
        at = CoordinatedStore(open_store())
    kept = at.init(keep_prepared=True)
    assert kept.prepared == token
    assert kept[1:3] == (token.producer_id, token.producer_epoch)
    going_on = at.end(kept)
    assert at.committed("a-0") == [b"x"]
    assert going_on.producer_epoch == token.producer_epoch + 1
    assert at.init(keep_prepared=True).prepared is None


def test_init_without_asking_aborts_a_prepared_transaction(at):
    token = prepared(at, "a-0")
    assert at.init().producer_epoch == token.producer_epoch + 2
    with pytest.raises(ProducerFencedError):
        at.store.commit_prepared([token])
    assert at.committed("a-0") == []


def test_keeping_a_prepared_transaction_fences_the_producer_that_prepared_it(at):
    owner = TransactionOwner.here()
    begun = at.init(owner=owner)
    at.write(begun, "a-0")
    with begun.entry.lock:
        begun.entry.prepare(FIRST, 0)
    at.init(keep_prepared=True)
    with pytest.raises(ProducerFencedError, match="initialized again"):
        owner.check()


# Ids at partitions.


def test_a_live_ids_producer_does_not_expire(at):
    going_on = at.end(at.begun("a-0"))
    assert going_on.producer_id in parts_of(at.store).checkpointer.unexpiring_producer_ids()
    partition = at.partition("a-0")
    exempt = parts_of(at.store).checkpointer.unexpiring_producer_ids
    assert partition.producer_state.expire(1 << 50, exempt) == 0
    assert partition.producer_state.expire(1 << 50, frozenset) == 1


def test_an_open_transaction_keeps_its_producer(at):
    at.begun("a-0")
    assert at.partition("a-0").producer_state.expire(1 << 50, frozenset) == 0
    assert len(at.partition("a-0").open_transactions()) == 1


def test_a_reopened_partition_knows_its_open_transactions_among_many_producers(open_store):
    """More rows than fit into memory: those with a transaction open are loaded all the same."""
    settings = {"eoslog__producers__cached__max": 5}
    at = CoordinatedStore(open_store("commit", **settings))
    token = prepared(at, "a-0")
    for _ in range(30):
        at.store.producer().append("a", 0, [b"other"])
    at.store.close()
    at = CoordinatedStore(open_store("commit", **settings))
    partition = at.partition("a-0")
    assert partition.producer_state.restored_from == "rows"
    assert partition.log.evicted_producer_count > 0
    assert [one.producer_id for one in partition.open_transactions()] == [token.producer_id]
    assert partition.last_stable_offset == 0
    at.store.commit_prepared([token])
    assert partition.last_stable_offset == 32
    at.store.close()
    assert parts_of(at.store).files.lmdb.path.exists()
    partition = CoordinatedStore(open_store("commit", **settings)).partition("a-0")
    assert partition.open_transactions() == []


# Everything at once.


def test_threads_with_ids_of_their_own_and_in_common(open_store):
    """Commits, fencing, timeouts, expiry, checkpoints and snapshots at the same time."""
    at = CoordinatedStore(open_store())
    recovery = parts_of(at.store).files.transaction_recovery
    committed, errors, stop = [], [], threading.Event()

    def produce(number):
        try:
            for round_number in range(30):
                shared = round_number % 3 == 0
                begun = at.init("shared" if shared else f"own-{number}")
                value = b"%d-%d" % (number, round_number)
                try:
                    at.write(begun, "a-0", f"b-{number % 2}", value=value)
                    at.end(begun, round_number % 5 != 4)
                except (ProducerFencedError, InvalidProducerEpochError):
                    assert shared
                    continue
                if round_number % 5 != 4:
                    committed.append(value)
        except BaseException as error:
            errors.append(error)

    def look_after():
        jobs = [
            parts_of(at.store).files.state_log.persist,
            recovery.advance,
            recovery.retry,
            at.store.snapshot,
            at.store.transactions,
            lambda: abort_timed_out(at.coordinator, 0),
            lambda: expire(at, 0),
            lambda: at.partition("a-0").producer_state.persist(),
        ]
        try:
            while not stop.is_set():
                for job in jobs:
                    job()
        except BaseException as error:
            errors.append(error)

    producers = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    helpers = [threading.Thread(target=look_after) for _ in range(2)]
    for thread in (*producers, *helpers):
        thread.start()
    for thread in producers:
        thread.join(60)
    stop.set()
    for thread in helpers:
        thread.join(60)
    assert not any(thread.is_alive() for thread in (*producers, *helpers))
    assert errors == []
    assert len(committed) > 60
    assert sorted(at.committed("a-0")) == sorted(committed)
    assert sorted(at.committed("b-0") + at.committed("b-1")) == sorted(committed)
