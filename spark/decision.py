"""Decision of the driver: one decision makes all staged files of a job part of the log."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from eoslog.spark.staging import as_messages

if TYPE_CHECKING:
    from eoslog import StagedCommit, Store
    from eoslog.staging.staged_job import OffsetsOfGroups


def commit(
    messages: Iterable[Any],
    *,
    store: "Store | str | os.PathLike[str]",
    app_id: str,
    version: int,
    run_id: str | None = None,
    offsets: "OffsetsOfGroups | None" = None,
) -> "StagedCommit":
    """Make the staged files of all messages part of the log, all at once, and say where they are.

    `messages` are what `stage` yielded, as Spark collected them; the order does not matter.
    `version` (0 or more) counts the jobs of the application `app_id`: when it, or a later one, is
    committed already, nothing is added and the result says so. `run_id` is that of the messages; a
    job whose partitions were all empty has none, and must say it, so that older runs are fenced.
    `offsets` has for each group the offsets that the same decision commits, as
    `Store.commit_staged` takes them: a job that read from the store can say how far.

    On return the decision is as durable as the store's mode says. When this process dies after the
    decision, the next opening completes it; before it, nothing of the job is visible.
    Raises StagedRunFencedError when a newer run of the application has taken over,
    StagedCommitError when a staged file is missing or damaged, ValueError for a message handed in
    twice and for no messages without a run id, TypeError for what are no messages, and what a
    commit of offsets raises: nothing was decided.
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
