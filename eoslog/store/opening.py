"""`eoslog.open`, and what becomes of a store that is still open when the interpreter ends."""

import atexit
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Never

from eoslog.common.durability import check_durability
from eoslog.common.other_clients import refuse_parameters
from eoslog.store.store import Store

_opened: "weakref.WeakSet[Store]" = weakref.WeakSet()


def open(
    path: str | os.PathLike[str],
    *,
    create: bool = False,
    durability: str | None = "commit",
    config: Mapping[str, object] | None = None,
    **others: Never,
) -> Store:
    """Open the store in the directory `path`; with `create`, make one if it is absent or empty.

    `durability` says what survives a power cut; all that was appended survives the death of this
    process in any case:

    - "commit" (default): what `Producer.flush()`, `Partition.flush()` or a commit returned for;
    - "always": every append, when it returns;
    - "process": nothing is waited for;
    - None: as the processes say that have the store open, or "commit" if there are none: until one
      that comes later asks for what it wants.

    `config` takes the store's settings under Kafka's broker names ("log.retention.ms"), which are
    the defaults of its topics, and eoslog's own ("eoslog.checkpoint.interval.ms").

    Many processes of one host may have a store open, with one durability and the same defaults of
    topics; each opens it once, and its threads share the object. A fork leaves the store to the
    parent: the child opens it again. On a network file system one process at a time has a store
    open. A store still open when the interpreter exits is closed then.

    Raises NotAStoreError, StoreVersionError (written by a newer eoslog), StoreInUseError (says by
    whom, and why it cannot be joined), StoreReadOnlyError, StoreFullError, StoreFailedError,
    CorruptRecordError (the list of topics, or a record of the internal log), InvalidConfigError,
    ValueError, TypeError.
    """
    if others:
        refuse_parameters("open", others)
    known = None if durability is None else check_durability(durability)
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"path {text!r}: a str or a Path is expected, not {type(text).__name__}")
    if not text:
        raise ValueError("path is empty: it must name the store's directory")
    if "\0" in text:
        raise ValueError(f"path {text!r}: it holds a null character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"path {os.fsencode(path)!r}: it must be UTF-8") from error
    return Store(Path(path), config)._open(create, known, _opened.add)


@atexit.register
def _close_what_is_open() -> None:
    for store in list(_opened):
        store.close()
