"""Replay that leaves out replaced transactions comes to the state that all of the log gives."""

import pytest
from broker_directory import BASE_MS
from hypothesis import given
from hypothesis import strategies as st
from reference_model import batch_codec as codec
from reference_model.batch_codec import ModelRecord

from eoslog import TopicPartition
from eoslog.bindings.record_batch import decode_records, iter_batches
from eoslog.bindings.transaction_batches import iter_unreplaced_batches
from eoslog.groups.members import GroupMembers
from eoslog.groups.offsets_state import GroupOffsetsState
from eoslog.groups.records import (
    MembersKey,
    OffsetKey,
    OffsetValue,
    encode_key,
    encode_value,
)

KEYS = (
    OffsetKey("g", TopicPartition("foo", 0)),
    OffsetKey("g", TopicPartition("foo", 1)),
    OffsetKey("h", TopicPartition("foo", 0)),
    MembersKey("g"),
)
PRODUCERS = st.integers(1, 2)
# What each batch has: keys, and whether a record is a tombstone.
RECORDS = st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), min_size=1, max_size=2)
# Mostly whole transactions: others replace little.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("whole"), PRODUCERS, st.tuples(st.sampled_from(KEYS), st.just(False))),
        st.tuples(st.just("batch"), PRODUCERS, RECORDS),
        st.tuples(st.just("end"), PRODUCERS, st.sampled_from((codec.COMMIT, codec.ABORT))),
        st.tuples(st.just("plain"), st.just(-1), RECORDS),
    ),
    max_size=24,
)


def encoded(records, offset, producer_id):
    found = []
    for number, (key, tombstone) in enumerate(records, offset):
        value = GroupMembers(number) if isinstance(key, MembersKey) else OffsetValue(number)
        found.append(
            ModelRecord(
                number, BASE_MS, encode_key(key), None if tombstone else encode_value(value)
            )
        )
    fields = {}
    if producer_id >= 0:
        fields = {"attributes": codec.TRANSACTIONAL, "producer_id": producer_id}
    return codec.encode_batch(found, base_offset=offset, producer_epoch=0, **fields)


def ended(kind, offset, producer_id):
    return codec.encode_marker(
        kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, offset=offset
    )


def log_of(steps):
    """The batches of some steps, in order."""
    batches, offset = [], 0
    for what, producer_id, how in steps:
        if what in ("batch", "plain", "whole"):
            records = [how] if what == "whole" else how
            batches.append(encoded(records, offset, producer_id))
            offset += len(records)
        if what in ("end", "whole"):
            kind = codec.COMMIT if what == "whole" else how
            batches.append(ended(kind, offset, producer_id))
            offset += 1
    return batches


def replay(state, data, headers):
    for header in headers:
        batch = data[header.position_bytes : header.position_bytes + header.batch_bytes]
        state.replay(header, decode_records(batch))


def what_it_holds(state):
    rows = {row: state.row(row) for row in state.all_rows()}
    open_now = {key: state.open_producers(key) for key in KEYS if isinstance(key, OffsetKey)}
    return rows, open_now, state.groups()


@given(STEPS, st.data())
def test_the_state_is_that_of_all_batches(steps, data):
    batches = log_of(steps)
    # The log is read in pieces, and transactions lie across their borders.
    border = data.draw(st.integers(0, len(batches)))
    whole, left_out = GroupOffsetsState(), GroupOffsetsState()
    for piece in (b"".join(batches[:border]), b"".join(batches[border:])):
        replay(whole, piece, iter_batches(piece))
        replay(left_out, piece, iter_unreplaced_batches(piece))
        assert what_it_holds(left_out) == what_it_holds(whole)


def test_of_equal_transactions_the_first_and_the_last_are_left():
    """Of the first it is not known whether it began there."""
    data = b"".join(log_of([("whole", 1, (KEYS[0], False))] * 100))
    assert [header.base_offset for header in iter_unreplaced_batches(data)] == [0, 1, 198, 199]


K, L, M = KEYS[:3]
OF_K = ("whole", 1, (K, False))
NOT_REPLACED = {
    "other keys": [("whole", 1, (key, False)) for key in (K, L, M) * 2],
    "another producer": [OF_K, OF_K, ("whole", 2, (K, False))],
    "an aborted one": [OF_K, OF_K, ("batch", 1, [(K, False)]), ("end", 1, codec.ABORT)],
    "before an aborted one": [
        *(OF_K, OF_K),
        *(("batch", 1, [(K, False)]), ("end", 1, codec.ABORT)),
        OF_K,
    ],
    "an open one": [OF_K, OF_K, ("batch", 1, [(K, False)])],
    "two batches": [
        *(OF_K, ("batch", 1, [(L, False)]), ("batch", 1, [(K, False)])),
        *(("end", 1, codec.COMMIT), OF_K),
    ],
    "a tombstone": [
        *(OF_K, ("batch", 2, [(K, False)])),
        *(("batch", 1, [(K, True)]), ("end", 1, codec.COMMIT), OF_K),
    ],
}


@pytest.mark.parametrize("steps", NOT_REPLACED.values(), ids=NOT_REPLACED)
def test_what_replaces_nothing(steps):
    data = b"".join(log_of(steps))
    assert len(iter_unreplaced_batches(data)) == len(iter_batches(data))
