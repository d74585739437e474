"""A log that is closed while threads read it, and another one that is made where it was."""

from __future__ import annotations

import threading

from partition_files import PartitionFiles
from reference_model import batch_codec as codec

from eoslog.errors import LogClosedError

ROUNDS = 150
BATCHES = 20
READERS = 3
OLD, NEW = b"old", b"new"


def make(root, value) -> PartitionFiles:
    files = PartitionFiles(root)
    files.open()
    for _ in range(BATCHES):
        files.log.append_batch(codec.simple_batch([value]))
    return files


def read_on(log, found) -> None:
    offset = 0
    try:
        while True:
            records, following, _ = log.fetch_next(offset, 5, 1 << 20, False)
            found.update(record.value for record in records)
            offset = following % log.log_end_offset
    except LogClosedError:
        return
    except Exception as error:  # Whatever it is, it is no answer.
        found.add(repr(error))


def test_nobody_reads_the_file_of_the_next_one(tmp_path):
    """Topics are deleted and made anew under the same name, by any process, at any time."""
    other = make(tmp_path / "other", NEW)
    other.close(clean=False)
    new_file = other.path(0).read_bytes()
    for number in range(ROUNDS):
        files = make(tmp_path / str(number), OLD)
        found = set()
        what = (files.log, found)
        readers = [threading.Thread(target=read_on, args=what) for _ in range(READERS)]
        for reader in readers:
            reader.start()
        prepared = tmp_path / "prepared"
        prepared.write_bytes(new_file)
        prepared.replace(files.path(0))
        files.log.close(clean=False)
        for reader in readers:
            reader.join()
        assert found <= {OLD}, f"round {number}"
