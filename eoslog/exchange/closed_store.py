"""Copies of a store that no process has open, into a directory that is being built."""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from eoslog.bindings.unforked_file import UnforkedFile
from eoslog.common.arguments import path_of
from eoslog.common.topic_name import INTERNAL_TOPICS
from eoslog.errors import InvalidRequestError, StoreInUseError
from eoslog.fs.new_directory import check_finished
from eoslog.fs.offline_log import OfflineLog
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import FILE_MODE, make_directories
from eoslog.inspect.store_copy import copy_store
from eoslog.session.lock import FILE_NAME as LOCK_NAME
from eoslog.session.lock import StoreLock
from eoslog.session.paths import StorePaths
from eoslog.storage.clean_close import read_last_stop
from eoslog.storage.topic_registry import partition_directories

Progress = Callable[[int, int], object]


def resolved(given: object, what: str) -> Path:
    """Return an argument as a path without links: where it leads is compared. Raises TypeError,
    ValueError or StoreError.
    """
    path = path_of(given, what)
    with named_os_errors(f"looking for {path}"):
        return path.resolve()


def check_apart(source: Path, target: Path) -> None:
    """Raise InvalidRequestError if one of two directories contains the other."""
    if target == source or source in target.parents or target in source.parents:
        raise InvalidRequestError(
            f"destination {target} and store {source} must not contain each other"
        )


def copy_closed_store(
    source: Path, copy: Path, *, link: bool = False, progress: Progress | None = None
) -> None:
    """Copy a store while no process has it open, to an empty directory or none. Not synced.

    With `link` sealed segments are linked where the file system can. `progress` is called with the
    bytes copied and the total. Raises NotAStoreError, StoreInUseError, StoreFullError, OSError.
    """
    check_finished(source)
    paths = StorePaths(source)
    with _kept_closed(paths):
        sealed = _sealed_files(paths) if link else frozenset()
        left_out = (paths.spares, paths.kept_journals, paths.cut)
        copied = _Counted(_bytes_below(source, left_out) if progress else 0, progress)
        copy_store(
            source,
            copy,
            leaves_out=left_out,
            may_link=lambda path: path in sealed,
            count=copied.add,
        )


@contextmanager
def _kept_closed(paths: StorePaths) -> Iterator[None]:
    """Keep all processes from opening the store within the block. Raises StoreInUseError if one
    has it open.
    """
    if os.access(paths.root, os.W_OK):
        make_directories(paths.state)
        lock = StoreLock(paths.state, joining=False)
        try:
            yield
        finally:
            lock.release()
        return
    # A read-only medium, or another user's store. It may be writable elsewhere, so its lock counts;
    # a store without the file was never open.
    path = paths.state / LOCK_NAME
    if not path.exists():
        yield
        return
    file = UnforkedFile(path, os.O_RDONLY, FILE_MODE)
    try:
        if not file.lock(exclusive=True, wait=False):
            raise StoreInUseError(f"{paths.root} is open, and nothing can be written to it here")
        yield
    finally:
        file.close()


class _Counted:
    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._done = 0
        self._progress = progress

    def add(self, size_bytes: int) -> None:
        self._done += size_bytes
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)


def _bytes_below(path: Path, left_out: Collection[Path]) -> int:
    files = (
        one
        for one in path.rglob("*")
        if one.is_file() and not any(parent in left_out for parent in one.parents)
    )
    return sum(one.stat().st_size for one in files)


def _sealed_files(paths: StorePaths) -> frozenset[Path]:
    """Return the segments of users' topics to which nothing is written any more, not even by a
    recovery.
    """
    unrecovered = read_last_stop(paths.clean_marker, paths.unrecovered).unrecovered
    if unrecovered is None:
        return frozenset()
    return frozenset(
        path
        for where, directory in partition_directories(paths.root)
        if where.topic not in INTERNAL_TOPICS and where not in unrecovered
        for path in OfflineLog(directory).segments[:-1]
    )
