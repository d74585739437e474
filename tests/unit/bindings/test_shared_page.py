"""The page that a store's processes share, in the file system."""

import errno
import os
from pathlib import Path

import pytest

from eoslog.bindings.shared_page import SharedPage

SESSION = bytes(range(16))
DESCRIPTORS = Path("/proc/self/fd")


def test_a_new_file_that_gets_no_name_is_closed_and_removed(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = tmp_path / "shared"
    opened = len(list(DESCRIPTORS.iterdir()))
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", refuse)
        with pytest.raises(OSError, match="Input/output error"):
            SharedPage(str(path), SESSION, create=True)
    assert len(list(DESCRIPTORS.iterdir())) == opened
    assert list(tmp_path.iterdir()) == []
    SharedPage(str(path), SESSION, create=True).close()
    assert SharedPage.read_session(str(path)) == SESSION
