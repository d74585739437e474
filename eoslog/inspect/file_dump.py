"""Read the files of a partition without a store, one by one, as Kafka's dump tool shows them.

The fields, their names and their order are those of Kafka's log dump; what is not set is None.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eoslog.common.segment_name import base_offset_of
from eoslog.fs.locked_file_reader import open_locked
from eoslog.inspect.index_dump import dump_abort_index, dump_offset_index, dump_time_index
from eoslog.inspect.log_dump import dump_log
from eoslog.inspect.record_decoders import Decoder
from eoslog.inspect.snapshot_dump import dump_snapshot

Fields = dict[str, Any]

_READERS = {
    ".index": dump_offset_index,
    ".timeindex": dump_time_index,
    ".txnindex": dump_abort_index,
    ".snapshot": dump_snapshot,
}
# Their entries are relative to the offset in their name.
_NEEDS_ITS_OFFSET = (".index", ".timeindex")


def dump_file(
    path: Path, *, deep: bool = False, decoder: Decoder | None = None
) -> Iterator[Fields]:
    """The entries of one file, in the order they stand there.

    A `.log` gives its batches, with `deep` each followed by its records, whose keys and values the
    decoder reads; `.index`, `.timeindex`, `.txnindex` and `.snapshot` give their entries. Raises
    ValueError for another kind of file and for an index whose name has no offset, at once;
    CorruptRecordError with the place for bytes that are neither, when it comes to them.
    """
    if path.suffix != ".log" and path.suffix not in _READERS:
        raise ValueError(f"{path}: not a .log, .index, .timeindex, .txnindex or .snapshot file")
    if path.suffix in _NEEDS_ITS_OFFSET:
        base_offset_of(path)
    return _entries(path, deep, decoder)


def _entries(path: Path, deep: bool, decoder: Decoder | None) -> Iterator[Fields]:
    with open_locked(path) as file:
        if file.size_bytes == 0:
            return
        if path.suffix == ".log":
            yield from dump_log(path, file, deep=deep, decoder=decoder)
        else:
            yield from _READERS[path.suffix](path, file.read(0, file.size_bytes))
