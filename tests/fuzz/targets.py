"""What bytes from outside are given to: each target takes them and returns, or raises an error that
is documented. Anything else is a fault: another exception, a dead process, an answer that is wrong,
more time or memory than the size of the bytes explains.

Where there is an encoder, what was decoded is encoded and decoded again, and must be the same.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path

from eoslog.bindings.record_batch import BatchEncoder, crc32c, decode_records, iter_batches
from eoslog.bindings.shared_page import SharedPage
from eoslog.bindings.transaction_record import (
    decode_transaction_value,
    encode_transaction_value,
    transaction_key,
    transactional_id_of,
)
from eoslog.common.json_text import loads_json
from eoslog.common.prepared_transaction import parse_token
from eoslog.errors import CorruptRecordError, EoslogError
from eoslog.fs.checkpoint_file import read_checkpoint, write_checkpoints
from eoslog.fs.identity_files import (
    META_PROPERTIES,
    PARTITION_METADATA,
    read_meta_properties,
    read_partition_metadata,
    write_meta_properties,
    write_partition_metadata,
)
from eoslog.groups.records import (
    decode_members_key,
    decode_members_value,
    decode_offset_key,
    decode_offset_value,
    encode_members_key,
    encode_members_value,
    encode_offset_key,
    encode_offset_value,
)
from eoslog.inspect.file_dump import dump_file
from eoslog.inspect.record_decoders import decode_offset_record, decode_transaction_record
from eoslog.session.store_session import SessionFile
from eoslog.staging.application import ApplicationRecord
from eoslog.staging.job import job_of_record
from eoslog.staging.message import StagedMessage
from eoslog.storage.clean_close import read_last_stop
from eoslog.storage.topic_registry import TopicRegistry
from eoslog.transactions.named_producers import NamedIdentity
from eoslog.transactions.unresolved_transactions import UnresolvedTransactions
from eoslog.upgrade import read_topics

Target = Callable[[bytes], None]

TARGETS: dict[str, Target] = {}
# A batch's fields, as `native/include/record_batch_layout.h` names them.
_LENGTH_AT, _LENGTH_COVERS_FROM = 8, 12
_CRC_AT, _CRC_COVERS_FROM = 17, 21
_BATCH_HEADER_BYTES = 61


def target(*documented: type[Exception]) -> Callable[[Target], Target]:
    """A target that may raise these errors besides those of `eoslog.errors`."""

    def made(function: Target) -> Target:
        def call(data: bytes) -> None:
            try:
                function(data)
            except (EoslogError, *documented):
                return

        TARGETS[function.__name__] = call
        return call

    return made


@cache
def folder() -> Path:
    """Where files stand that are decoded, in memory if that can be."""
    found = folder_of(os.getpid())
    found.mkdir(exist_ok=True)
    atexit.register(shutil.rmtree, found, ignore_errors=True)
    return found


def folder_of(process_id: int) -> Path:
    """The folder of a process, which it does not remove itself if it dies."""
    memory = Path("/dev/shm")
    parent = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    return parent / f"eoslog-fuzz-{process_id}"


def written(name: str, data: bytes) -> Path:
    path = folder() / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def with_sums(data: bytes) -> bytes:
    """The bytes as batches back to back whose lengths fit and whose checksums are right.

    Else nearly all that a fuzzer makes would end at the first checksum.
    """
    mended = bytearray(data)
    at = 0
    while len(mended) - at >= _BATCH_HEADER_BYTES:
        (length,) = struct.unpack_from(">i", mended, at + _LENGTH_AT)
        end = at + _LENGTH_COVERS_FROM + length
        if not at + _BATCH_HEADER_BYTES <= end <= len(mended):
            end = len(mended)
            struct.pack_into(">i", mended, at + _LENGTH_AT, end - at - _LENGTH_COVERS_FROM)
        crc = crc32c(mended[at + _CRC_COVERS_FROM : end])
        struct.pack_into(">I", mended, at + _CRC_AT, crc)
        at = end
    return bytes(mended)


# Batches and records.


@target()
def batches(data: bytes) -> None:
    """Record batches back to back, as a file or a producer hands them over."""
    check_batches(data)


@target()
def batches_with_sums(data: bytes) -> None:
    check_batches(with_sums(data))


@target()
def records(data: bytes) -> None:
    """The records alone, in a batch whose header says how many there are."""
    count = len(data) and data[0]
    body = data[1:]
    header = struct.pack(
        ">qiibIhiqqqhii", 0, 49 + len(body), 0, 2, 0, 0, count - 1, 1000, 1000, -1, -1, -1, count
    )
    check_batches(with_sums(header + body))


def check_batches(data: bytes) -> None:
    for header in iter_batches(data):
        one = data[header.position_bytes : header.position_bytes + header.batch_bytes]
        repr(header), header.compression, header.last_offset
        try:
            found = decode_records(one)
        except CorruptRecordError:
            continue
        assert len(found) == header.record_count
        if found and not header.is_control:
            check_encoded_again(found)


def check_encoded_again(found: list) -> None:
    """Records that were decoded can be encoded, and are the same then.

    Headers with a name that is no text were shown with another one, and times in a batch are
    counted from its first.
    """
    first_ms = found[0].timestamp_ms
    if not all(
        record.timestamp_ms >= 0 and abs(record.timestamp_ms - first_ms) < 1 << 62
        for record in found
    ):
        return
    encoded = BatchEncoder(0).encode_columns(
        [record.value for record in found],
        [record.key for record in found],
        [record.timestamp_ms for record in found],
        [list(record.headers) for record in found],
        timestamp_ms=0,
    )
    again = decode_records(encoded)
    names = ("timestamp_ms", "key", "value", "headers")
    assert [[getattr(one, name) for name in names] for one in again] == [
        [getattr(one, name) for name in names] for one in found
    ]


# Records of the internal logs.


@target()
def transaction_value(data: bytes) -> None:
    """The value of a transactional id's record."""
    found = decode_transaction_value(data)
    said = {name: value for name, value in found.items() if name != "version"}
    again = decode_transaction_value(encode_transaction_value(version=1, **said))
    # Partitions of one topic stand together when they are written.
    for one in (again, found):
        one["partitions"] = one["partitions"] and sorted(one["partitions"])
        del one["version"]
    assert again == found


@target(ValueError)
def transaction_key_bytes(data: bytes) -> None:
    transactional_id = transactional_id_of(data)
    if transactional_id is not None:
        assert transaction_key(transactional_id) == data


@target()
def offset_key(data: bytes) -> None:
    """The key of a group's committed offset."""
    found = decode_offset_key(data)
    if found is not None:
        assert decode_offset_key(encode_offset_key(*found)) == found


@target()
def offset_value(data: bytes) -> None:
    found = decode_offset_value(data)
    if len(found.metadata.encode()) <= 32_767:
        again = decode_offset_value(encode_offset_value(found))
        if found.expire_timestamp_ms != -1:
            found = found._replace(leader_epoch=-1)
        assert again == found


@target()
def members_key(data: bytes) -> None:
    group = decode_members_key(data)
    if group is not None:
        assert encode_members_key(group) == data


@target()
def members_value(data: bytes) -> None:
    """What is kept of a group's members."""
    found = decode_members_value(data)
    if found is not None:
        assert decode_members_value(encode_members_value(found)) == found


@target()
def shown_records(data: bytes) -> None:
    """Keys and values of both internal logs, as `eoslog dump` shows them."""
    if len(data) < 2:
        return
    key_bytes = int.from_bytes(data[:2], "big") % len(data)
    key, value = data[2 : 2 + key_bytes], data[2 + key_bytes :]
    for decode in (decode_transaction_record, decode_offset_record):
        try:
            for shown in decode(key, value):
                json.dumps(shown, default=repr)
        except EoslogError:
            continue


# Small files of a store.


@target()
def meta_properties(data: bytes) -> None:
    path = written(f"meta/{META_PROPERTIES}", data).parent
    found = read_meta_properties(path)
    write_meta_properties(path, found)
    assert read_meta_properties(path) == found


@target()
def checkpoint(data: bytes) -> None:
    path = written("checkpoint", data)
    found = read_checkpoint(path)
    assert len(found) <= len(data)
    write_checkpoints({path: found}, sync=False)
    assert read_checkpoint(path) == found


@target()
def partition_metadata(data: bytes) -> None:
    path = written(f"partition/{PARTITION_METADATA}", data).parent
    found = read_partition_metadata(path)
    assert found is not None
    write_partition_metadata(path, found)
    assert read_partition_metadata(path) == found


@target()
def topics_file(data: bytes) -> None:
    path = written("topics/topics.json", data).parent
    shared = SharedPage(str(path / "shared"), bytes(16), create=True)
    found = TopicRegistry.load(path, path, shared)
    for topic in found.all():
        # A name is a part of a path.
        assert topic.name not in (".", "..") and "/" not in topic.name and "\0" not in topic.name
        assert 1 <= topic.partitions <= 100_000


@target()
def older_topics(data: bytes) -> None:
    path = written("older/topics.log", data).parent
    (path / "topics.json").write_text('{"version": 2, "topics": "topics.log"}')
    read_topics(path)


@target()
def session_file(data: bytes) -> None:
    found = SessionFile.read(written("session.json", data))
    if found is not None:
        str(found)
        found.write(folder() / "session-again.json")
        assert SessionFile.read(folder() / "session-again.json") == found


@target()
def clean_close_marker(data: bytes) -> None:
    path = written("marker", data)
    repr(read_last_stop(path, folder() / "none"))
    repr(read_last_stop(folder() / "none", path))


@target()
def unresolved_transactions_file(data: bytes) -> None:
    path = written("unresolved/unended.json", data).parent
    unresolved = UnresolvedTransactions(path, b"\x01" * 16)
    for where, decisions in unresolved.read().items():
        assert isinstance(where.topic, str) and isinstance(where.partition, int)
        for of, decision in decisions.items():
            assert all(isinstance(number, int) for number in (*of, *decision))
    unresolved.renews()


# What tasks hand over.


@target(TypeError, ValueError)
def staged_message(data: bytes) -> None:
    """A task's message, as JSON: Spark's drivers get such."""
    said = loads_json(data)
    if isinstance(said, dict):
        message = StagedMessage(**said)
        for file in message.files:
            assert "/" not in file.name and "\0" not in file.name
            assert file.name not in (".", "..")
        assert StagedMessage(**asdict(message)) == message
        repr((message.records, message.bytes))


class OneState:
    """A state log in which every key has the same record."""

    def __init__(self, state: object) -> None:
        self._state = state

    def get(self, record_type: int, name: str) -> object:
        return self._state


@target(ValueError)
def application_record(data: bytes) -> None:
    """The record of an application and of the job that it decided, as the state log has it."""
    state = loads_json(data)
    if not isinstance(state, dict):
        return
    found = ApplicationRecord.read_by_name(OneState(state), "application")
    repr(found.shown)
    if found.job is not None:
        run = Path("/staging/application/run")
        job = job_of_record(found.app_id, found.version, run, found.job)
        for one in job.files:
            assert one.path.parent.parent == run and ".." not in one.path.parts
        repr((job.records, job.producer_ids, job.offset_keys))


@target(ValueError)
def named_producer_record(data: bytes) -> None:
    state = loads_json(data)
    if isinstance(state, dict):
        found = NamedIdentity.of_state("name", state)
        again = json.loads(json.dumps(found.state()))
        assert NamedIdentity.of_state("name", again) == found


@target(ValueError)
def token(data: bytes) -> None:
    producer_id, producer_epoch = parse_token(data.decode())
    assert f"{producer_id}:{producer_epoch}" == data.decode()


# Files of a partition, as `eoslog dump` reads them.


def dumped(name: str, data: bytes, *, deep: bool = False) -> None:
    for fields in dump_file(written(f"dump/{name}", data), deep=deep):
        repr(fields)


@target()
def dumped_log(data: bytes) -> None:
    dumped("00000000000000000000.log", with_sums(data), deep=True)
    dumped("00000000000000000000.log", data, deep=True)


@target()
def dumped_indexes(data: bytes) -> None:
    for suffix in (".index", ".timeindex", ".txnindex"):
        try:
            dumped("00000000000000000007" + suffix, data)
        except CorruptRecordError:
            continue


@target()
def dumped_snapshot(data: bytes) -> None:
    dumped("00000000000000000007.snapshot", snapshot_with_sum(data))


def snapshot_with_sum(data: bytes) -> bytes:
    """A snapshot whose checksum is right."""
    if len(data) < 10:
        return data
    return data[:2] + struct.pack(">I", crc32c(data[6:])) + data[6:]
