"""The databases of a store's LMDB environment: state that can be rebuilt from the log, kept so that
opening need not read it.

Each is written and read by one module, which has the layout of its rows. Every value has its
checksum before it. Nothing here is the truth: an environment that cannot be read is dropped, and
the rows come from the log again; see `LmdbEnvironment`.
"""

import struct
import zlib
from collections.abc import Iterable, Mapping
from itertools import islice, takewhile
from typing import Any

import lmdb

# Of `storage/producer_rows.py`.
PRODUCERS = b"producers"
OPEN = b"open"
HEADS = b"rows"
ABORTS = b"aborts"
# Of `transactions/state_index.py`.
STATE = b"state"
APPLIED = b"applied"
UNDECIDED = b"undecided"
# Of `storage/clean_close.py`.
SESSION = b"session"
# Of `groups/offsets_index.py`.
GROUP_OFFSETS = b"group-offsets"
DATABASES = (PRODUCERS, OPEN, HEADS, ABORTS, STATE, APPLIED, UNDECIDED, SESSION, GROUP_OFFSETS)

_CHECKSUM = struct.Struct(">I")


class CorruptRowError(Exception):
    """A value does not match its checksum."""


class Tables:
    """The databases of the environment within one transaction; values have a checksum there."""

    def __init__(self, transaction: lmdb.Transaction, databases: Mapping[bytes, Any]) -> None:
        self.transaction: Any = transaction  # All that it returns is bytes, and no view of them.
        self._databases = databases

    def has(self, name: bytes, key: bytes) -> bool:
        """True if a key is there, with a value or without."""
        return self.transaction.get(key, db=self._databases[name]) is not None

    def get(self, name: bytes, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is no such key."""
        value = self.transaction.get(key, db=self._databases[name])
        return None if value is None else checked(value)

    def put(self, name: bytes, key: bytes, value: bytes) -> bool:
        """Put a value in; return True if the key is new."""
        return self.transaction.replace(key, sealed(value), db=self._databases[name]) is None

    def mark(self, name: bytes, key: bytes, *, is_there: bool) -> None:
        """Put a key in without a value, or take it out."""
        if is_there:
            self.transaction.put(key, b"", db=self._databases[name])
        else:
            self.transaction.delete(key, db=self._databases[name])

    def delete(self, name: bytes, key: bytes) -> bool:
        """Take a key out; return True if it was there."""
        return bool(self.transaction.delete(key, db=self._databases[name]))

    def change(self, name: bytes, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Put values in; None takes a key out."""
        for key, value in changes:
            if value is None:
                self.delete(name, key)
            else:
                self.put(name, key, value)

    def clear(self, name: bytes) -> None:
        """Take all keys out."""
        self.transaction.drop(self._databases[name], delete=False)

    def count(self, name: bytes) -> int:
        """Return how many keys there are."""
        return int(self.transaction.stat(self._databases[name])["entries"])

    def keys(self, name: bytes, prefix: bytes = b"", count: int | None = None) -> list[bytes]:
        """Return keys that begin with `prefix`, up to `count` of them."""
        with self.transaction.cursor(db=self._databases[name]) as cursor:
            cursor.set_range(prefix)
            keys = cursor.iternext(keys=True, values=False)
            return list(islice(takewhile(lambda key: key.startswith(prefix), keys), count))

    def items(
        self, name: bytes, prefix: bytes, first: bytes, count: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return keys that begin with `prefix` and their values, up to `count`, from `first` on."""
        found = []
        with self.transaction.cursor(db=self._databases[name]) as cursor:
            for key, value in islice(cursor if cursor.set_range(first) else (), count):
                if not key.startswith(prefix):
                    break
                found.append((key, checked(value)))
        return found

    def last_key(self, name: bytes, upper_bound: bytes) -> bytes:
        """Return the last key below a bound; no bytes if there is none."""
        with self.transaction.cursor(db=self._databases[name]) as cursor:
            is_found = cursor.prev() if cursor.set_range(upper_bound) else cursor.last()
            return bytes(cursor.key()) if is_found else b""


def sealed(value: bytes) -> bytes:
    """A value with its checksum before it, as it is put in."""
    return _CHECKSUM.pack(zlib.crc32(value)) + value


def checked(found: bytes) -> bytes:
    """The value that was put in. Where it does not match its checksum, all counts as damaged."""
    value = found[_CHECKSUM.size :]
    if len(found) < _CHECKSUM.size or _CHECKSUM.unpack_from(found)[0] != zlib.crc32(value):
        raise CorruptRowError("a value does not match its checksum")
    return value
