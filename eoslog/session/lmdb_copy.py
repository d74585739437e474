"""A copy of an LMDB file, made without its locks, beside whatever process writes to it.

LMDB never writes over a page that the newest snapshot needs. A write transaction with the number n
takes pages that the transactions up to n - 2 freed: none of the snapshot n - 2, and some of the
snapshot n - 3 (`mdb_page_alloc`, `mdb_find_oldest`; readers only hold more back). So while the
newest number in the file's heads is at most one higher after the copy than before it, no
transaction began that takes a page of the snapshot that was the newest then. Both heads are copied
first, and they name it; they are read again, since one of them may just be written.
"""

import os
import struct
from pathlib import Path

from eoslog.bindings.file_descriptor import FileDescriptor
from eoslog.fs.private_files import FILE_MODE

TRIES = 5
_MAGIC = 0xBEEFC0DE
# Of a head: the page's own 16 bytes, magic, version, address and size of the map, two databases of
# 48 bytes (the first 4 of them are the size of a page), the last page, the transaction.
_HEAD = struct.Struct("<16xIIQQI44x48xQQ")
_PIECE_BYTES = 1 << 20


def copy_lmdb(source: Path, target: Path) -> bool:
    """Copy the file to one that is not there yet; False if that did not come to a sound copy, and
    there is none. Raises OSError.
    """
    for _ in range(TRIES):
        with (
            FileDescriptor(source, os.O_RDONLY) as data,
            FileDescriptor(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC, FILE_MODE) as copy,
        ):
            before = _heads(data)
            position = 0
            while piece := os.pread(data, _PIECE_BYTES, position):
                _write(copy, piece, position)
                position += len(piece)
            is_whole = _heads(copy) == before
            if is_whole and newest_transaction(_heads(data)) <= newest_transaction(before) + 1:
                return True
    target.unlink()
    return False


def _heads(descriptor: int) -> list[bytes]:
    """Read both heads; what is shorter is none."""
    first = os.pread(descriptor, _HEAD.size, 0)
    if len(first) < _HEAD.size:
        return []
    page_bytes = _HEAD.unpack(first)[4]
    return [first, os.pread(descriptor, _HEAD.size, page_bytes)]


def bytes_of_heads(path: Path) -> int:
    """Return the bytes of an LMDB file's two heads, a page each; 0 if the first one is none.

    The kernel's pages where the file was made may be larger or smaller than those here.
    """
    with FileDescriptor(path, os.O_RDONLY) as data:
        first = os.pread(data, _HEAD.size, 0)
    if len(first) < _HEAD.size:
        return _HEAD.size
    fields = _HEAD.unpack(first)
    return 2 * int(fields[4]) if fields[0] == _MAGIC else 0


def newest_transaction(heads: list[bytes]) -> int:
    """Return the number of the newest transaction that the heads of an LMDB file name."""
    whole = (_HEAD.unpack(head) for head in heads if len(head) == _HEAD.size)
    return max((int(fields[-1]) for fields in whole if fields[0] == _MAGIC), default=0)


def _write(descriptor: int, piece: bytes, position: int) -> None:
    while piece:
        written = os.pwrite(descriptor, piece, position)
        piece, position = piece[written:], position + written
