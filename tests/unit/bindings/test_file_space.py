"""Hints about a file that is being written: none of them changes what is in it."""

from __future__ import annotations

import os

import pytest

from eoslog.bindings.file_space import begin_writeback, reserve_behind

MIB = 1 << 20


def test_reserved_space_is_behind_the_end_of_the_file(tmp_path):
    with (tmp_path / "file").open("wb", buffering=0) as file:
        file.write(b"begin")
        if not reserve_behind(file.fileno(), 5, 8 * MIB):
            pytest.skip("this file system reserves nothing")
        found = os.fstat(file.fileno())
        assert found.st_size == 5
        assert found.st_blocks * 512 >= 8 * MIB
        file.write(b" and end")
        os.ftruncate(file.fileno(), 13)
        assert os.fstat(file.fileno()).st_blocks * 512 < MIB
    assert (tmp_path / "file").read_bytes() == b"begin and end"


def test_what_cannot_be_reserved_is_no_error(tmp_path):
    with (tmp_path / "file").open("wb") as file:
        assert not reserve_behind(file.fileno(), 0, 1 << 60)
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        assert not reserve_behind(descriptor, 0, 10)
    finally:
        os.close(descriptor)


def test_early_writeback_changes_nothing(tmp_path):
    with (tmp_path / "file").open("wb", buffering=0) as file:
        file.write(bytes(MIB))
        begin_writeback(file.fileno(), 0, MIB)
        begin_writeback(file.fileno(), MIB, MIB)
    assert (tmp_path / "file").read_bytes() == bytes(MIB)


@pytest.mark.parametrize("hint", [reserve_behind, begin_writeback])
@pytest.mark.parametrize("numbers", [(-1, 0, 1), (1, -1, 1), (1, 0, 0)])
def test_numbers_that_no_file_has_are_refused(hint, numbers):
    with pytest.raises(ValueError, match="descriptor"):
        hint(*numbers)
