"""Errors of the operating system as errors of the store."""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from eoslog.errors import (
    CorruptRecordError,
    EoslogError,
    OutOfMemoryError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreReadOnlyError,
)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_NOT_OPENED = frozenset({errno.ENOENT, errno.EMFILE, errno.ENFILE})


@contextmanager
def named_os_errors(what: str) -> Iterator[None]:
    """Turn an OSError inside the block into StoreFullError, StoreReadOnlyError or StoreFailedError.

    `what` is the work, for the message: "writing data/meta.properties"; the file is added where
    `what` does not name it. A missing file, or too many open files, is a StoreError, and a lack of
    memory an OutOfMemoryError: the disk was not written to yet. A caller that expects a
    FileNotFoundError catches it inside the block. An OSError without a number is
    not the operating system's, but a signal handler's (its TimeoutError, say), and goes on as it
    is.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        reason = f"{what}: {error.strerror or error} (errno {error.errno})"
        if error.filename is not None and str(error.filename) not in what:
            reason = f"{reason}: {error.filename}"
        if error.errno in _FULL:
            raise StoreFullError(reason) from error
        if error.errno in _READ_ONLY:
            raise StoreReadOnlyError(reason) from error
        if error.errno == errno.ENOMEM:
            raise OutOfMemoryError(reason) from error
        if error.errno in _NOT_OPENED:
            raise StoreError(reason) from error
        raise StoreFailedError(reason) from error


@contextmanager
def as_if_in(shown: Mapping[Path, Path]) -> Iterator[None]:
    """Have errors name, instead of a copy, the path that it is shown as; of paths in one another
    the longest counts.
    """
    try:
        yield
    except EoslogError as error:
        for copy in sorted(shown, key=lambda path: len(str(path)), reverse=True):
            old, new = str(copy), str(shown[copy])
            error.args = tuple(
                one.replace(old, new) if isinstance(one, str) else one for one in error.args
            )
            if isinstance(error, CorruptRecordError):
                error.path = error.path.replace(old, new)
        raise
