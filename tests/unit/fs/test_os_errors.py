"""What the operating system refuses has a name; what a handler of a signal raises keeps its own."""

import errno
import os
import signal

import pytest

from eoslog.errors import (
    OutOfMemoryError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreReadOnlyError,
)
from eoslog.fs.os_errors import named_os_errors

NAMES = {
    errno.ENOSPC: StoreFullError,
    errno.EDQUOT: StoreFullError,
    errno.EROFS: StoreReadOnlyError,
    errno.EACCES: StoreReadOnlyError,
    errno.ENOMEM: OutOfMemoryError,
    errno.EMFILE: StoreError,
    errno.ENOENT: StoreError,
    errno.EIO: StoreFailedError,
}


@pytest.mark.parametrize(("number", "named"), NAMES.items())
def test_each_refusal_has_its_name(number, named):
    with (
        pytest.raises(named, match="writing a file: ") as caught,
        named_os_errors("writing a file"),
    ):
        raise OSError(number, "no")
    assert type(caught.value) is named


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("verifying t-0", r"^verifying t-0: no \(errno 5\): /s/t-0/0\.log$"),
        ("reading /s/t-0/0.log", r"^reading /s/t-0/0\.log: no \(errno 5\)$"),
    ],
)
def test_the_refused_file_is_named_once(what, told):
    with pytest.raises(StoreFailedError, match=told), named_os_errors(what):
        raise OSError(errno.EIO, "no", "/s/t-0/0.log")


def test_a_handlers_exception_keeps_its_own(open_store, monkeypatch):
    store = open_store("commit")

    def expired(*_):
        raise TimeoutError("the caller's own time is over")

    before = signal.signal(signal.SIGUSR1, expired)
    try:
        monkeypatch.setattr(os, "fsync", lambda _: signal.raise_signal(signal.SIGUSR1))
        with pytest.raises(TimeoutError, match="the caller's own time is over"):
            store.create_topic("orders")
    finally:
        signal.signal(signal.SIGUSR1, before)
