"""`eoslog.open`, and what becomes of a store that is still open when the interpreter ends."""

import atexit
import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Never

from eoslog.common.durability import REMEMBERED, Durability, Remembered, check_durability
from eoslog.common.other_clients import refuse_parameters
from eoslog.errors import EoslogError, StoreReopenedError
from eoslog.fs.identity_files import META_PROPERTIES
from eoslog.fs.new_directory import check_finished
from eoslog.session.lock import OPENING_TIMEOUT_S
from eoslog.store.files import AS_USUAL, TO_READ
from eoslog.store.parts import StoreParts
from eoslog.store.store import Store

_log = logging.getLogger(__name__)
_opened: "weakref.WeakSet[StoreParts]" = weakref.WeakSet()


def is_store(path: Path) -> bool:
    """Return True if there is a store, whatever its state."""
    return (path / META_PROPERTIES).exists()


def open(
    path: str | os.PathLike[str],
    *,
    create: bool = False,
    durability: str | None = REMEMBERED,
    config: Mapping[str, object] | None = None,
    read_only: bool = False,
    **others: Never,
) -> Store:
    """Open the store in a directory; with `create`, make one if it is absent or empty.

    All that was appended survives the death of this process. Many processes of one host may have a
    store open, with one durability and the same defaults of topics; each opens it once, and its
    threads share the object. A fork leaves the store to the parent: the child opens it again. On a
    network file system one process at a time has a store open. A store that is open when the
    interpreter exits is closed then.

    Parameters
    ----------
    path : str or PathLike
        The store's directory.
    create : bool
        True: create the store if the directory is absent or empty.
    durability : {"remembered", "commit", "always", "process"} or None
        What survives a power cut. "commit": what `Producer.flush()`, `Store.flush()` or a
        commit returned for. "always": every append that returned. "process": nothing is waited for.
        "remembered": what the store was created with ("commit" if nothing was given), or was given
        to `alter_config`; if processes have the store open, theirs, unless they asked for a weaker
        one. None: that of the processes that have the store open; the remembered one if there are
        none, until a later one asks for another.
    config : mapping, optional
        Kafka's broker settings ("log.retention.ms"), which are the defaults of the store's topics,
        and eoslog's own ("eoslog.checkpoint.interval.ms"). They go before what the store remembers:
        what its creator gave here, and `alter_config`.
    read_only : bool
        True: read the store, and create, write, lock and sync nothing in it; every call that writes
        raises StoreReadOnlyError. Nothing else may be given but the path. A store that processes
        have open is followed, and they are not held up. One whose processes were killed is shown
        as the next opening finds it, which is worked out in memory.

    Raises
    ------
    NotAStoreError
        There is no store, or the directory has other files.
    StoreVersionError
        A newer eoslog wrote the store.
    StoreInUseError
        Another process has it open in a way that cannot be joined; the message says which, and why.
    CorruptRecordError
        The list of topics or a record of the internal log is damaged.
    StoreReadOnlyError, StoreFullError, StoreFailedError
        The disk refuses.
    RecoveryNeededError
        With `read_only`: the power went while the store was open.
    InvalidConfigError, ValueError, TypeError
        An argument is wrong.
    """
    if others:
        refuse_parameters("open", others)
    known: Durability | Remembered | None = None
    if durability is not None:
        known = REMEMBERED if durability == REMEMBERED else check_durability(durability)
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"path must be a str or a Path, got {type(text).__name__} ({text!r})")
    if not text:
        raise ValueError("path is empty: it must name the store's directory")
    if "\0" in text:
        raise ValueError(f"path {text!r} has a null character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"path {os.fsencode(path)!r} must be UTF-8") from error
    if read_only and (create or durability != REMEMBERED or config is not None):
        raise ValueError("read_only goes with no create, no durability and no config")
    mode = TO_READ if read_only else AS_USUAL
    return _opened_store(lambda: StoreParts(Path(path), config, mode), create, known)


def _opened_store(
    make: Callable[[], StoreParts], create: bool, known: Durability | Remembered | None
) -> Store:
    until_s = time.monotonic() + OPENING_TIMEOUT_S
    while True:
        parts = make()
        check_finished(parts.files.paths.shown)
        try:
            return parts.open(create, known, _store_of)
        except StoreReopenedError:  # By a process, in the midst of opening it to be read.
            if time.monotonic() > until_s:
                raise


def _store_of(parts: StoreParts) -> Store:
    _opened.add(parts)
    return Store(parts)


@atexit.register
def _close_what_is_open() -> None:
    for parts in list(_opened):
        try:
            parts.close()
        except EoslogError as error:
            path = parts.files.paths.shown
            _log.error("closing %s as the interpreter ends: %s", path, error)
