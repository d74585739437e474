"""The files of a partition that no process has open, read as they are; nothing is changed.

What recovery would find is found here without it: where the whole batches end, and what
follows them.

Nothing is mapped. On tmpfs a hole that is read through a map takes a page, and after the batches
of a store that was put back sparsely all is holes: without room each would be a SIGBUS.
"""

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from eoslog.bindings.file_descriptor import open_regular
from eoslog.bindings.record_batch import BatchHeader, iter_batches
from eoslog.bindings.snapshot_files import SEGMENT_NAME
from eoslog.errors import CorruptRecordError
from eoslog.fs.os_errors import named_os_errors

BATCH_FRONT = struct.Struct(">qi")  # Base offset, and the length of what follows these two.
# What may come before the magic byte of a batch of this store: the last four are its epoch.
_MAGIC_AT = 16
_HEADER_BYTES = 61
_TERMINATOR_BYTES = 17
_BATCH_BYTES_MAX = 1 << 31
_OFFSETS_AHEAD_MAX = 1 << 31
_BLOCK_BYTES = 1 << 20
_READ_BYTES = 8 << 20


class BrokenTail(NamedTuple):
    """Break in a log: the end of its whole batches, if anything but zeros follows it.

    `bytes` are those up to the last that is not zero; `later` are the files after it. `sound` is
    where the first whole batch at or after the break is, and its first offset.
    """

    path: Path
    position_bytes: int
    bytes: int
    offset: int
    reason: str
    later: tuple[Path, ...]
    sound: tuple[Path, int, int] | None


class OfflineLog:
    """Log in a partition's directory, read without opening the store."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def segments(self) -> list[Path]:
        """The segment files, oldest first."""
        with named_os_errors(f"reading {self._directory}"):
            names = sorted(one.name for one in self._directory.iterdir())
        return [self._directory / name for name in names if SEGMENT_NAME.fullmatch(name)]

    @property
    def first_offset(self) -> int:
        """Base offset of the oldest segment; 0 if there is none."""
        return next(map(base_offset_of, self.segments), 0)

    @property
    def end_offset(self) -> int:
        """Offset after the last whole batch of the newest segment."""
        offset = 0
        for path in self.segments[-1:]:
            offset = base_offset_of(path)
            with _FileBytes(path) as data:
                for header, _ in _whole_batches(data, offset):
                    offset = header.last_offset + 1
        return offset

    def batches(self) -> Iterator[tuple[BatchHeader, bytes]]:
        """The whole batches, from the oldest on up to the first that is none, with their bytes."""
        for path in self.segments:
            with _FileBytes(path) as data:
                for header, position in _whole_batches(data, base_offset_of(path)):
                    yield header, data[position : position + header.batch_bytes]

    def broken_tail(self, recovery_point: int, holes_below: int = 0) -> BrokenTail | None:
        """Find the tail that recovery would cut off, which looks at what is not below the recovery
        point.

        Offsets below `holes_below` may be missing, as those that compaction took out are.
        """
        segments = self.segments
        bases = [base_offset_of(path) for path in segments]
        first = max((one for one, base in enumerate(bases) if base <= recovery_point), default=0)
        # A roll may have been cut short just there: the segment before has its zeros still.
        for index in range(max(0, first - 1), len(segments)):
            later = tuple(segments[index + 1 :])
            found = _look(segments[index], later, holes_below)
            if found is not None:
                return found
        return None


def base_offset_of(path: Path) -> int:
    """The offset that a segment is named by."""
    return int(path.name[:20])


def is_whole_segment(path: Path, end_offset: int) -> bool:
    """Return True if a sealed segment's file has whole batches alone, up to an offset."""
    offset = base_offset_of(path)
    with named_os_errors(f"reading {path}"), open(path, "rb", opener=open_regular) as file:
        left = b""
        while block := file.read(_READ_BYTES):
            data = left + block
            whole_bytes = _whole_bytes(data)
            left = data[whole_bytes:]
            if len(left) > _BATCH_BYTES_MAX:
                return False
            try:
                headers = iter_batches(data[:whole_bytes])
            except CorruptRecordError:
                return False
            for header in headers:
                if header.base_offset < offset:
                    return False
                offset = header.last_offset + 1
    return not left and offset <= end_offset


def _whole_bytes(data: bytes) -> int:
    """Return how many bytes the batches take that are whole by their lengths."""
    position = 0
    while len(data) - position >= BATCH_FRONT.size:
        _, length = BATCH_FRONT.unpack_from(data, position)
        batch_bytes = length + BATCH_FRONT.size
        if batch_bytes < _HEADER_BYTES:
            return len(data)  # It is none: its check says so.
        if batch_bytes > len(data) - position:
            break
        position += batch_bytes
    return position


class _FileBytes:
    """The bytes of a file as it was when it was opened, read by blocks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.block = (b"", 0)  # What was read last, and where it begins.

    def __enter__(self) -> Self:
        with named_os_errors(f"reading {self._path}"):
            self._file = open(self._path, "rb", buffering=0, opener=open_regular)
            self._file_bytes = os.fstat(self._file.fileno()).st_size
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._file_bytes

    def __getitem__(self, where: slice) -> bytes:
        """Fewer bytes if the file was cut since."""
        begin, end, _ = where.indices(self._file_bytes)
        if begin >= end:
            return b""
        block, block_at = self.block
        if not block_at <= begin <= end <= block_at + len(block):
            with named_os_errors(f"reading {self._path}"):
                block, block_at = self._read(begin, max(end - begin, _BLOCK_BYTES)), begin
            self.block = block, block_at
        return block[begin - block_at : end - block_at]

    def _read(self, position: int, byte_count: int) -> bytes:
        pieces = []
        # The system reads some 2 GiB at once at most.
        while byte_count and (piece := os.pread(self._file.fileno(), byte_count, position)):
            pieces.append(piece)
            position += len(piece)
            byte_count -= len(piece)
        return b"".join(pieces)


def _whole_batches(data: _FileBytes, offset: int) -> Iterator[tuple[BatchHeader, int]]:
    position = 0
    while True:
        # In the block that was read before, as plain bytes: most batches are small.
        block, block_at = data.block
        header = batch_at(block, position - block_at, offset)
        if not isinstance(header, BatchHeader):
            header = batch_at(data, position, offset)
        if not isinstance(header, BatchHeader):
            return
        yield header, position
        position += header.batch_bytes
        offset = header.last_offset + 1


def batch_at(data: _FileBytes | bytes, position: int, offset_min: int) -> BatchHeader | str:
    """The whole batch at a position; in words, why there is none."""
    byte_count = len(data) - position
    if position < 0 or byte_count <= 0:
        return "the file ends here"
    if byte_count < _HEADER_BYTES:
        return f"{byte_count} bytes are there, too few for a batch"
    front = data[position : position + BATCH_FRONT.size]
    if len(front) < BATCH_FRONT.size:
        return "the file ends here"  # It was cut just now.
    base_offset, length = BATCH_FRONT.unpack(front)
    batch_bytes = length + BATCH_FRONT.size
    if not _HEADER_BYTES <= batch_bytes <= min(len(data) - position, _BATCH_BYTES_MAX):
        return f"a batch of {batch_bytes} bytes, and {len(data) - position} are there"
    if not offset_min <= base_offset <= offset_min + _OFFSETS_AHEAD_MAX:
        return f"a batch at offset {base_offset}, and {offset_min} was to follow"
    try:
        (header,) = iter_batches(data[position : position + batch_bytes])
    except CorruptRecordError as error:
        return error.reason
    return header


def _look(path: Path, later: tuple[Path, ...], holes_below: int) -> BrokenTail | None:
    with _FileBytes(path) as data:
        position, offset = 0, base_offset_of(path)
        for header, at in _whole_batches(data, offset):
            position, offset = at + header.batch_bytes, header.last_offset + 1
        next_base = base_offset_of(later[0]) if later else offset
        is_complete = next_base == offset or (
            offset < next_base <= holes_below and position == len(data)
        )
        used = _used_bytes(data, position)
        # After a terminator is what the file held before it was recycled.
        ended = not data[position : position + _TERMINATOR_BYTES].strip(b"\0")
        sound = _misplaced_batch(path, data, position, offset)
        if sound is not None and path.stat().st_nlink > 1:
            ended = True  # A staged file too, whose adoption was cut short, and is done again.
        if is_complete and ended:
            return None
        if used == position:
            reason = f"offset {offset} is missing, the next file begins with another"
        else:
            found = batch_at(data, position, offset)
            reason = found if isinstance(found, str) else "the next file begins with another offset"
        if sound is None:
            sound = _sound_batch(path, data, position + 1, offset)
    for file in later:
        if sound is None:
            with _FileBytes(file) as data:
                sound = _sound_batch(file, data, 0, offset)
    if used == position and sound is None:
        return None  # Empty files of a roll that was cut short: recovery removes them.
    return BrokenTail(path, position, used - position, offset, reason, later, sound)


def _used_bytes(data: _FileBytes, position: int) -> int:
    """Return where the zeros at the end of a file begin, at or after a position."""
    end = len(data)
    while end > position:
        begin = max(position, end - _BLOCK_BYTES)
        kept = data[begin:end].rstrip(b"\0")
        if kept:
            return begin + len(kept)
        end = begin
    return position


def _misplaced_batch(
    path: Path, data: _FileBytes, position: int, offset: int
) -> tuple[Path, int, int] | None:
    """A whole batch with too low a base offset: that fell, since no checksum covers it, or the
    file's name is another one's.
    """
    front = data[position : position + _HEADER_BYTES]
    if len(front) < _HEADER_BYTES:
        return None
    base_offset, _ = BATCH_FRONT.unpack_from(front)
    if base_offset < offset and isinstance(batch_at(data, position, base_offset), BatchHeader):
        return path, position, base_offset
    return None


def _sound_batch(
    path: Path, data: _FileBytes, position: int, offset: int
) -> tuple[Path, int, int] | None:
    """The first whole batch from a position on that a log which broke at an offset may hold."""
    # Offsets so far ahead at most share the upper half of their eight bytes, or the next one's.
    fronts = {struct.pack(">q", one)[:4] for one in (offset, offset + _OFFSETS_AHEAD_MAX)}
    front = b"|".join(re.escape(one) for one in sorted(fronts))
    pattern = re.compile(b"(?=(?:" + front + b").{8}\0\0\0\0\2)", re.DOTALL)
    while position < len(data):
        # With as much of the next block as a batch that begins at the end of this one is known by.
        block = data[position : position + _BLOCK_BYTES + _MAGIC_AT]
        for match in pattern.finditer(block.rstrip(b"\0")):
            found = batch_at(data, position + match.start(), offset)
            if isinstance(found, BatchHeader):
                return path, position + match.start(), found.base_offset
        position += _BLOCK_BYTES
    return None
