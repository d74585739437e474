"""A look at a broker's internal logs before they are imported: what cannot be, and what was open.

The logs are read as far as they are whole: where one is damaged its opening in the store says so.
Of a key the newest record counts, and none after a tombstone.
"""

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from eoslog.bindings.record_batch import Record, decode_records
from eoslog.bindings.transaction_record import decode_transaction_value
from eoslog.common.record_fields import FieldCursor
from eoslog.errors import CorruptRecordError, StoreError, UnsupportedCompressionTypeError
from eoslog.fs.offline_log import OfflineLog
from eoslog.groups.records import decode_members_key, decode_members_value
from eoslog.transactions.state_key import NAME_BYTES_MAX, is_transaction_key, transactional_id_of

# Records of newer kinds of groups begin with a type, and then the group, as all of this log do.
_MEMBERS_TYPE = 2
_MEMBERS_VERSION_MAX = 3
_FIRST_NEW_TYPE = 3
_KINDS = {"consumer": (*range(3, 9), 16), "share": range(9, 16), "streams": range(17, 24)}
_COMPRESSION_BITS = 7
_KEY_TYPE = struct.Struct(">h")
_OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")


class OtherGroup(NamedTuple):
    """A group whose records, but for the committed offsets, have no meaning here, and its kind."""

    group: str
    kind: str


class OpenTransactionalId(NamedTuple):
    """A transactional id with a transaction that was not complete, and how far it was."""

    transactional_id: str
    producer_id: int
    state: str


def other_groups(directories: Iterable[Path]) -> list[OtherGroup]:
    """Find the groups of other kinds in partitions of `__consumer_offsets`, sorted.

    Raises UnsupportedCompressionTypeError or CorruptRecordError, with the directory.
    """
    found: set[OtherGroup] = set()
    for directory, record in _newest(directories):
        with _of_what(directory, f"the record at offset {record.offset}"):
            other = _other_group(record)
        if other is not None:
            found.add(other)
    return sorted(found)


def open_transactional_ids(directories: Iterable[Path]) -> list[OpenTransactionalId]:
    """Find the transactions that were open in partitions of `__transaction_state`, sorted.

    Raises UnsupportedCompressionTypeError or CorruptRecordError, with the directory; StoreError for
    an id that is too long for a store.
    """
    found = []
    for directory, record in _newest(directories):
        key = record.key or b""
        if not is_transaction_key(key):
            continue
        transactional_id = transactional_id_of(key)
        if len(transactional_id.encode()) > NAME_BYTES_MAX:
            raise StoreError(
                f"the transactional id {transactional_id[:40]!r}... is longer than the "
                f"{NAME_BYTES_MAX} bytes that a store can index"
            )
        with _of_what(directory, f"the record at offset {record.offset}"):
            fields = decode_transaction_value(record.value or b"")
        if fields["state"] in _OPEN_STATES:
            state = str(fields["state"])
            found.append(OpenTransactionalId(transactional_id, int(fields["producer_id"]), state))
    return sorted(found)


@contextmanager
def _of_what(directory: Path, what: str) -> Iterator[None]:
    """A block whose errors name the directory, and what in it cannot be read."""
    try:
        yield
    except CorruptRecordError as error:
        raise CorruptRecordError(str(directory), 0, f"{what}: {error.reason}") from error


def _newest(directories: Iterable[Path]) -> Iterator[tuple[Path, Record]]:
    """Yield the newest record of each key that has one, and where it is; a key is in one of the
    directories.
    """
    for directory in directories:
        newest: dict[bytes, Record] = {}
        for record in _records(directory):
            key = record.key or b""
            newest.pop(key, None)
            if record.value is not None:
                newest[key] = record
        for record in newest.values():
            yield directory, record


def _records(directory: Path) -> Iterator[Record]:
    for header, batch in OfflineLog(directory).batches():
        if header.attributes & _COMPRESSION_BITS:
            raise UnsupportedCompressionTypeError(str(directory), 0, header.compression)
        if not header.is_control:
            with _of_what(directory, f"the batch at offset {header.base_offset}"):
                records = decode_records(batch)
            yield from records


def _other_group(record: Record) -> OtherGroup | None:
    """The group of a record that has no meaning here."""
    key, value = record.key or b"", record.value or b""
    if len(key) < _KEY_TYPE.size:
        return None
    (key_type,) = _KEY_TYPE.unpack_from(key)
    if key_type == _MEMBERS_TYPE:
        group = decode_members_key(key)
        if group is None or decode_members_value(value) is not None:
            return None
        return OtherGroup(group, _protocol_type(value))
    if key_type < _FIRST_NEW_TYPE:
        return None
    cursor = FieldCursor(key, "the key")
    cursor.int16("type")
    return OtherGroup(cursor.string("group"), _kind_of(key_type))


def _kind_of(key_type: int) -> str:
    for kind, types in _KINDS.items():
        if key_type in types:
            return kind
    return f"record type {key_type}"


def _protocol_type(value: bytes) -> str:
    """Use of a group of the older protocol, as Kafka Connect's "connect"."""
    cursor = FieldCursor(value, "the value")
    version = cursor.int16("version")
    if version > _MEMBERS_VERSION_MAX:
        return f"version {version} of a group's members"
    return cursor.string("protocol type")
