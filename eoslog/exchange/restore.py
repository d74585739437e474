"""`eoslog.restore`: a backup takes the place of a store that was lost.

The backup is only read, and stays. Its copy gets ids of its own and goes on with producer ids that
the lost store never gives out, though it may live on elsewhere: docs/backup.md says why. It is
built beside its place, see `fs/new_directory`: a crash leaves no store.
"""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from eoslog.common.arguments import check_synchronous
from eoslog.common.topic_name import INTERNAL_TOPICS
from eoslog.errors import StoreError
from eoslog.exchange.closed_store import Progress, check_apart, copy_closed_store, resolved
from eoslog.fs.identity_files import new_id, read_meta_properties, write_meta_properties
from eoslog.fs.new_directory import new_directory
from eoslog.fs.os_errors import as_if_in, named_os_errors
from eoslog.session.group_access import keep_group_access
from eoslog.session.paths import StorePaths
from eoslog.storage.kept_journals import remove_kept_journals
from eoslog.store.parts import opened_parts

# No store gives out so many producer ids: what a restored one gives out lies beyond.
_IDS_PASSED_MIN = 1 << 40
# Two stores that are restored from one backup begin somewhere in so many ids.
_IDS_SPREAD = 1 << 53


@dataclass(frozen=True)
class StoreRestore:
    """Result of a restore; `first_producer_id` is the first that the store will give out."""

    path: Path
    cluster_id: str
    topics: int
    partitions: int
    first_producer_id: int


def restore(
    copy: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> StoreRestore:
    """Make a store of a backup, to work with in the place of the lost one; durable on return.

    It has new ids, and gives out producer ids that the lost store never does. The backup is not
    changed.

    Parameters
    ----------
    copy : str or PathLike
        The backup; no process may have it open.
    path : str or PathLike
        The store's directory, which does not exist, or is empty.
    progress : callable, optional
        Called with the bytes copied and the total.

    Raises
    ------
    StoreError
        `path` holds something; or the disk refuses (StoreFullError and others).
    StoreInUseError, NotAStoreError, StoreVersionError, CorruptRecordError
        The backup cannot be read.
    InvalidRequestError, ValueError, TypeError
        An argument is wrong.
    """
    if progress is not None:
        check_synchronous(progress, "progress")
    source, target = resolved(copy, "copy"), resolved(path, "path")
    check_apart(source, target)
    identity = read_meta_properties(source)._replace(cluster_id=new_id(), directory_id=new_id())
    with (
        new_directory(target, StoreError) as new,
        named_os_errors(f"restoring {source} to {target}"),
    ):
        built = new.workspace
        copy_closed_store(source, built, progress=progress)
        write_meta_properties(built, identity)
        with as_if_in({built: target}), opened_parts(built) as parts:
            first_producer_id = parts.files.producer_ids.pass_over(
                _IDS_PASSED_MIN + secrets.randbelow(_IDS_SPREAD)
            )
            topics = parts.files.registry.all()
        remove_kept_journals(StorePaths(built))
        keep_group_access(StorePaths(source), StorePaths(built))
        new.publish(built)
    users = [one for one in topics if one.name not in INTERNAL_TOPICS]
    return StoreRestore(
        target,
        identity.cluster_id,
        len(users),
        sum(one.partitions for one in users),
        first_producer_id,
    )
