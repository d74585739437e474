"""Internal logs of a broker: groups of other kinds, open transactions, what is refused."""

import struct

import pytest
from broker_directory import BrokerDirectory, batch, control_batch
from reference_model import batch_codec

from eoslog.bindings.record_batch import crc32c
from eoslog.bindings.transaction_record import encode_transaction_value
from eoslog.errors import CorruptRecordError, StoreError, UnsupportedCompressionTypeError
from eoslog.exchange.internal_logs import (
    OpenTransactionalId,
    OtherGroup,
    open_transactional_ids,
    other_groups,
)
from eoslog.transactions.state_key import transaction_key


def key(kind, group, rest=b""):
    encoded = group.encode()
    return struct.pack(">hh", kind, len(encoded)) + encoded + rest


def members(protocol_type, version=3):
    encoded = protocol_type.encode()
    head = struct.pack(">hh", version, len(encoded)) + encoded
    return head + struct.pack(">ihhqi", 1, -1, -1, -1, 0)


def state(name, producer_id=5, version=1):
    return encode_transaction_value(
        version=version,
        producer_id=producer_id,
        producer_epoch=0,
        timeout_ms=1000,
        state=name,
        partitions=None if name == "Empty" else [("t", 0)],
        last_update_ms=0,
        start_ms=0,
    )


def partition(tmp_path, *batches, name="__consumer_offsets-0"):
    return BrokerDirectory(tmp_path / f"of-{name}").partition(name, b"".join(batches))


def test_groups_of_other_kinds_are_found_by_what_is_left_of_them(tmp_path):
    directory = partition(
        tmp_path,
        batch([(key(3, "new"), b"\0"), (key(5, "new", b"\0\1m"), b"\0"), (key(11, "share"), b"x")]),
        batch([(key(17, "streams"), b"x"), (key(16, "regex"), b"x"), (key(40, "later"), b"x")], 3),
        batch([(key(3, "gone"), b"x"), (key(3, "gone"), None), (key(15, "half"), b"x")], 6),
        batch([(key(2, "classic"), members("consumer")), (key(2, "gone"), None)], 9),
        batch([(key(2, "connect"), members("connect")), (key(2, "v9"), members("", 9))], 11),
        control_batch(1, 13),
        batch([None, (b"\0", b"x")], 14),
    )
    assert other_groups([directory]) == [
        OtherGroup("connect", "connect"),
        OtherGroup("half", "share"),
        OtherGroup("later", "record type 40"),
        OtherGroup("new", "consumer"),
        OtherGroup("regex", "consumer"),
        OtherGroup("share", "share"),
        OtherGroup("streams", "streams"),
        OtherGroup("v9", "version 9 of a group's members"),
    ]


def test_transactions_that_were_open(tmp_path):
    one = partition(
        tmp_path,
        batch([(transaction_key("a"), state("Ongoing")), (transaction_key("b"), state("Empty"))]),
        batch([(transaction_key("a"), state("CompleteCommit"))], 2),
        batch([(transaction_key("c"), state("PrepareAbort", 6))], 3),
        batch([(transaction_key("d"), state("Ongoing")), (transaction_key("d"), None)], 4),
        batch([(struct.pack(">h", 1002) + b"app", b"{}")], 6),
        name="__transaction_state-0",
    )
    other = partition(
        tmp_path,
        batch([(transaction_key("e"), state("PrepareCommit", 7, 0))]),
        name="__transaction_state-1",
    )
    assert open_transactional_ids([one, other]) == [
        OpenTransactionalId("c", 6, "PrepareAbort"),
        OpenTransactionalId("e", 7, "PrepareCommit"),
    ]


@pytest.mark.parametrize("look", [other_groups, open_transactional_ids])
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_batches_are_refused(tmp_path, look, codec):
    packed = batch_codec.compress_batch(batch([(key(3, "g"), b"x")]), codec)
    directory = partition(tmp_path, packed)
    with pytest.raises(UnsupportedCompressionTypeError) as caught:
        look([directory])
    assert caught.value.path == str(directory)


def test_records_that_cannot_be_read_are_named(tmp_path):
    directory = partition(tmp_path, batch([(struct.pack(">hh", 3, 50), b"x")]))
    with pytest.raises(CorruptRecordError, match=r"record at offset 0: .*ends within its group"):
        other_groups([directory])
    wrong = bytearray(batch([(key(3, "g"), b"x")], 7))
    wrong[61] = 0x7E  # The record's length; the checksum is right.
    struct.pack_into(">I", wrong, 17, crc32c(bytes(wrong[21:])))
    directory = partition(tmp_path, bytes(wrong), name="__consumer_offsets-1")
    with pytest.raises(CorruptRecordError, match="the batch at offset 7: ") as failed:
        other_groups([directory])
    assert failed.value.path == str(directory)
    state_directory = partition(
        tmp_path, batch([(transaction_key("a"), b"\0\7")]), name="__transaction_state-0"
    )
    with pytest.raises(CorruptRecordError, match="the record at offset 0"):
        open_transactional_ids([state_directory])


def test_an_id_that_is_too_long_is_named(tmp_path):
    long = b"x" * 481
    directory = partition(
        tmp_path, batch([(struct.pack(">hh", 0, len(long)) + long, state("Empty"))])
    )
    with pytest.raises(StoreError, match="longer than the 480 bytes"):
        open_transactional_ids([directory])
