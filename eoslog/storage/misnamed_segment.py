"""A segment whose file has another offset's name, as recovery finds it, which cuts it all off."""

import os
from dataclasses import dataclass
from pathlib import Path

from eoslog.bindings.file_descriptor import open_regular
from eoslog.bindings.record_batch import BatchHeader
from eoslog.fs.log_at_rest import BATCH_FRONT, batch_at
from eoslog.fs.os_errors import named_os_errors

# So many zeros at the end of what is cut off may have been left out.
_ZEROS_MAX = 1 << 20


@dataclass(frozen=True)
class MisnamedSegment:
    """The file of `base_offset` began with a whole batch of `first_offset`, which is below that."""

    base_offset: int
    first_offset: int
    kept: Path

    def __str__(self) -> str:
        return (
            f"the segment of offset {self.base_offset} began with the records of offset "
            f"{self.first_offset}: its file was renamed, or put in from elsewhere, by somebody "
            f"else; what was in it is kept as {self.kept}"
        )


def misnamed_segment(kept: Path, base_offset: int) -> MisnamedSegment | None:
    """Whether what a recovery cut off from the beginning of a segment on was never of that segment.

    `kept` is the directory of what was cut off. A torn write is no whole batch, and what an earlier
    life left in the file has no lower offset: no file is used for a later segment.
    """
    with named_os_errors(f"reading what was cut off in {kept}"):
        newest = max(
            kept.glob(f"{base_offset:020d}.log.0.*"),
            key=lambda path: path.stat().st_mtime_ns,
            default=None,
        )
        if newest is None:
            return None
        with open(newest, "rb", opener=open_regular) as file:
            front = file.read(BATCH_FRONT.size)
            if len(front) < BATCH_FRONT.size:
                return None
            first_offset, length = BATCH_FRONT.unpack(front)
            bytes_max = os.fstat(file.fileno()).st_size + _ZEROS_MAX
            if not (0 <= first_offset < base_offset and 0 < length < bytes_max):
                return None
            batch = front + file.read(length).ljust(length, b"\0")
    if not isinstance(batch_at(batch, 0, first_offset), BatchHeader):
        return None
    return MisnamedSegment(base_offset, first_offset, newest)
