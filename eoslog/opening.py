"""`eoslog.open`, and what becomes of a store that is still open when the interpreter ends."""

import atexit
import os
import weakref
from collections.abc import Mapping
from pathlib import Path

from eoslog.durability import check_durability
from eoslog.store import Store

_opened: "weakref.WeakSet[Store]" = weakref.WeakSet()


def open(
    path: str | os.PathLike[str],
    *,
    create: bool = False,
    durability: str = "commit",
    config: Mapping[str, object] | None = None,
) -> Store:
    """Open the store in the directory `path`; with `create`, make one if it is absent or empty.

    `durability` says what survives a power cut; all that was appended survives the death of this
    process in any case:

    - "commit" (default): what `Producer.flush()`, `Partition.flush()` or a commit returned for;
    - "always": every append, when it returns;
    - "process": nothing is waited for.

    `config` takes the store's settings under Kafka's broker names ("log.retention.ms"), which are
    the defaults of its topics, and eoslog's own ("eoslog.checkpoint.interval.ms").

    One process at a time has a store open; its threads share the object. A fork leaves the store to
    the parent. A store still open when the interpreter exits is closed then.

    Raises NotAStoreError, StoreVersionError (written by a newer eoslog), StoreInUseError (says by
    whom), StoreReadOnlyError, StoreFullError, StoreFailedError, CorruptRecordError (the list of
    topics, or a record of the internal log), InvalidConfigError, ValueError.
    """
    store = Store(Path(path), create, check_durability(durability), config)
    _opened.add(store)
    return store


@atexit.register
def _close_what_is_open() -> None:
    for store in list(_opened):
        store.close()
