"""Decision of the driver: one decision makes all staged files of a job part of the log."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from eoslog.spark.staging import as_messages

if TYPE_CHECKING:
    from eoslog import StagedCommit, Store
    from eoslog.staging.job import OffsetsOfGroups


def commit(
    messages: Iterable[Any],
    *,
    store: "Store | str | os.PathLike[str]",
    app_id: str,
    version: int,
    run_id: str | None = None,
    offsets: "OffsetsOfGroups | None" = None,
) -> "StagedCommit":
    """Make the staged files of all messages part of the log, all at once.

    On return the decision is as durable as the store's durability says. If this process dies after
    the decision, the next opening completes it; before it, nothing of the job is visible.

    Parameters
    ----------
    messages : iterable
        What `stage` yielded, as Spark collected it, in any order.
    store : Store, str or PathLike
        An open store of this process, or its path.
    app_id : str
        The application.
    version : int
        Number of the job in its application, 0 or more. If it, or a later one, is committed
        already, nothing is added.
    run_id : str, optional
        That of the messages. Required if all partitions were empty, so that older runs are fenced.
    offsets : mapping, optional
        Offsets of each group that the same decision commits, as `Store.commit_staged` takes them.

    Returns
    -------
    StagedCommit
        Whether the version was added, and where.

    Raises
    ------
    StagedRunFencedError
        A newer run of the application has taken over.
    StagedCommitError
        A staged file is missing or damaged.
    ValueError, TypeError
        A message was given twice or is none, or there are none and no `run_id`.
    EoslogError
        What a commit of offsets raises. After every error nothing was decided.
    """
    found = as_messages(messages)
    if not found and run_id is None:
        raise ValueError(
            f"version {version} of application {app_id!r} has no messages: if all partitions were "
            "empty, say run_id=, which stage() was given; else they were not collected"
        )
    with opened(store) as log:
        return log.commit_staged(app_id, version, found, run_id=run_id, offsets=offsets)


@contextmanager
def opened(store: "Store | str | os.PathLike[str]") -> "Iterator[Store]":
    """The store itself; a path is opened, and closed at the end."""
    import eoslog

    if isinstance(store, eoslog.Store):
        yield store
        return
    with eoslog.open(store) as log:
        yield log
