"""Descriptors that objects of C own."""

import os

import pytest
from harness.fork import in_child

from eoslog.bindings.file_descriptor import FileDescriptor


class Interrupted:
    """A path whose reading is interrupted."""

    def __fspath__(self):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (None, TypeError),
        (5, TypeError),
        ("a\0", ValueError),
        ("/no/such/file", FileNotFoundError),
        (Interrupted(), KeyboardInterrupt),
    ],
)
def test_one_that_is_not_opened_closes_nothing(tmp_path, path, error):
    def work():
        # A file of another owner may have the first number.
        with (tmp_path / "file").open("wb") as file:
            os.dup2(file.fileno(), 0)
        with pytest.raises(error):
            FileDescriptor(path, os.O_RDONLY)
        return os.fstat(0).st_ino == (tmp_path / "file").stat().st_ino

    assert in_child(work)
