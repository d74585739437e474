"""What the operating system refuses, as errors of the store."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from eoslog.errors import StoreFailedError, StoreFullError, StoreReadOnlyError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


@contextmanager
def named_os_errors(what: str) -> Iterator[None]:
    """Turn an OSError inside the block into StoreFullError, StoreReadOnlyError or StoreFailedError.

    `what` says what was being done, for the message: "writing data/meta.properties". A file that
    is not there stays a FileNotFoundError: whoever expects that catches it inside the block.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = f"{what}: {error.strerror or error} (errno {error.errno})"
        if error.errno in _FULL:
            raise StoreFullError(reason) from error
        if error.errno in _READ_ONLY:
            raise StoreReadOnlyError(reason) from error
        raise StoreFailedError(reason) from error
