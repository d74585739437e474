"""Leftovers of jobs that are over: staged files, and producer ids that the partitions know.

A commit does not wait for their removal: that of a file takes the longer the larger it is, that of
a directory some milliseconds. A commit moves the files to the trash, with one rename for a run. The
background thread removes them, some at a time, and so does the store's close, for a moment. What is
left then, or by a process that died, the next opening of the store or a sweep removes.

Order: the record of a complete job is on disk before its ids are forgotten. A power cut before that
may bring the job back as decided, without its files: the ids show that all of it is in. The ids do
not wait for the removal: no decision finds what is in the trash.

A sweep removes staged files that no decision needs any more. It follows no link, whose target is
not the store's; only the staging directory itself may be a link. Tasks may be writing at the same
time. Files that appear while a directory is being removed stay until the next sweep. A task whose
directory was removed gets an error when it creates or closes a file.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from eoslog.bindings.thread_lock import ThreadLock
from eoslog.errors import EoslogError
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import make_directory
from eoslog.staging.application import PREPARED, ApplicationRecord
from eoslog.staging.job import StagedJob
from eoslog.staging.message import StagedMessage
from eoslog.staging.names import (
    MANIFESTS,
    TRASH_DIRECTORY,
    attempt_path,
    directory_name,
    run_generation,
    run_path,
)
from eoslog.staging.source import is_version_in
from eoslog.storage.engine import Engine
from eoslog.transactions.compacted_log import CompactedLog

# After its job is over, a task that writes on for so long has its files swept at once.
ZOMBIES_GONE_S = 3600.0

_log = logging.getLogger(__name__)
_MOVE_CHANCES = 3


def never() -> bool:
    """Return False: what is to be removed is removed to its end."""
    return False


class Leftovers:
    """Leftovers of complete jobs of one store.

    The caller holds the lock of staged jobs, except for `clear` and the queries.
    """

    def __init__(self, engine: Engine, state_log: CompactedLog) -> None:
        self._engine = engine
        self._state_log = state_log
        self._staging_path = engine.paths.staging
        self._trash = self._staging_path / TRASH_DIRECTORY
        self._noted: Callable[[], None] = lambda: None
        self._lock = ThreadLock()
        self._clearing = ThreadLock()
        self._complete: list[StagedJob] = []  # Their ids are still known.
        with named_os_errors(f"looking at {self._trash}"):
            self._moved = self._trash.is_dir()  # By a process that died.
        # Directories of applications from which runs were moved.
        self._emptied: set[Path] = set()
        # Runs that are over, and since when: late files of their tasks are swept at any age.
        self._over: dict[Path, float] = {}

    def watch(self, noted: Callable[[], None]) -> None:
        """Have `noted()` called when there is something to clear; call it now if there is."""
        self._noted = noted
        if self.any:
            noted()

    @property
    def any(self) -> bool:
        """True if there is something to clear."""
        return self._moved or bool(self._complete) or bool(self._emptied)

    @property
    def any_trash(self) -> bool:
        """True if files are left that this process is to remove."""
        return self._moved

    def producer_ids(self) -> set[int]:
        """Return the ids that the partitions must not forget yet."""
        with self._lock:
            return {one for job in self._complete for one in job.all_producer_ids}

    # What a job leaves.

    def leave(self, job: StagedJob, run_id: str) -> None:
        """Move the files of a complete job to the trash, and forget its ids later.

        While there are files, the ids keep out a second copy.
        """
        self._put_staged_away(job.app_id, run_id, {one.path.parent for one in job.files})
        if run_generation(run_id) is not None:
            _remove_manifests(job.run_path, self._staging_path)
        with self._lock:
            self._complete.append(job)
        self._noted()

    def discard(self, app_id: str, run_id: str | None, messages: Iterable[StagedMessage]) -> None:
        """Move the staged files of a version that is in to the trash."""
        if run_id is not None:
            self._sync_record(directory_name(app_id, "app_id"))
            staging = self._staging_path
            attempts = [attempt_path(staging, app_id, run_id, one.attempt) for one in messages]
            self._put_staged_away(app_id, run_id, attempts)

    def _put_staged_away(self, app_id: str, run_id: str, attempts: Iterable[Path]) -> None:
        """Move a run that is for one job to the trash, or these attempts of another run; and all
        runs for versions of a source that are in.
        """
        if run_generation(run_id) is None:
            self._put_run_away(run_path(self._staging_path, app_id, run_id))
        else:
            for path in attempts:
                self.put_away(path)
        record = ApplicationRecord.read(self._state_log, app_id)
        if record is not None:
            for path in outdated_runs(self._staging_path / record.name, record):
                self._put_run_away(path)

    def put_away(self, path: Path) -> None:
        """Move a directory to the trash, which is emptied later; not if a link leads to it."""
        if _leads_elsewhere(path, self._staging_path):
            return
        if self._trash.is_symlink():
            remove_tree(path, self._staging_path)
            return
        for _ in range(_MOVE_CHANCES):
            try:
                path.rename(self._trash / os.urandom(16).hex())
            except FileNotFoundError:
                if not path.is_dir():
                    return  # It was removed before.
                with suppress(OSError):  # It exists by now, or another one is emptying it.
                    make_directory(self._trash)
                continue
            except OSError:
                break
            self._moved = True
            self._noted()
            return
        # It cannot be moved: remove what can be removed. A sweep removes the rest.
        remove_tree(path, self._staging_path)

    def _put_run_away(self, path: Path) -> None:
        self._over[path] = time.monotonic()
        self._emptied.add(path.parent)
        self.put_away(path)

    # Removing it.

    def clear(self, enough: Callable[[], bool] = never) -> None:
        """Forget ids of complete jobs and empty the trash; without the lock of staged jobs.

        On return no leftover of before the call is there, unless `enough()`, which is called before
        each removal, was true. Files that cannot be removed are swept later, and ids expire. Raises
        StoreFailedError if the store's files were replaced: the present ones are not ours.
        """
        with self._clearing:
            if not self.any:
                return
            self._engine.check_files()
            with self._lock:
                jobs = list(self._complete)
            over = [job for job in jobs if _is_away(job) and self._is_complete_on_disk(job)]
            for job in over:
                self._forget_ids(job)
            with self._lock:
                self._complete = [job for job in self._complete if job not in over]
            self.empty_trash(enough)

    def remove_emptied(self) -> None:
        """Remove empty directories of applications from which runs were moved."""
        emptied, self._emptied = self._emptied, set()
        for path in emptied:
            remove_if_empty(path)

    def empty_trash(self, enough: Callable[[], bool] = never, *, of_others: bool = False) -> None:
        """Empty the trash if this process, or with `of_others` any other, moved files there. Once
        `enough()` the rest is left to the next call.
        """
        if self._moved or of_others:
            self._moved = False
            remove_tree(self._trash, self._staging_path, enough)
            if enough():
                self._moved = True

    def remove_run(self, path: Path) -> int:
        """Remove the files of a run now; return how many were removed."""
        self._sync_record(path.parent.name)
        self._over[path] = time.monotonic()
        removed = remove_tree(path, self._staging_path)
        remove_if_empty(path.parent)
        return removed

    def sweep(self, oldest_ms: int, enough: Callable[[], bool] = never) -> None:
        """Remove leftovers of any process, and undecided runs without a write since a time. Once
        `enough()` the rest is left to the next sweep.
        """
        for application_path in application_directories(self._staging_path):
            record = ApplicationRecord.read_by_name(self._state_log, application_path.name)
            runs = _removable_runs(application_path, record, oldest_ms)
            if runs:
                self._sync_record(application_path.name)
            for path in runs:
                remove_tree(path, self._staging_path, enough)
            remove_if_empty(application_path)
        self._sweep_zombies(enough)
        self.empty_trash(enough, of_others=True)

    def _sweep_zombies(self, enough: Callable[[], bool]) -> None:
        for path, since_s in list(self._over.items()):
            record = ApplicationRecord.read_by_name(self._state_log, path.parent.name)
            if is_decided(path.name, record):
                continue  # The run's name was used again.
            remove_tree(path, self._staging_path, enough)
            if time.monotonic() - since_s > ZOMBIES_GONE_S:
                del self._over[path]

    def _is_complete_on_disk(self, job: StagedJob) -> bool:
        try:
            self._sync_record(directory_name(job.app_id, "app_id"))
        except EoslogError as error:
            _log.warning("application %r: its producer ids are kept: %s", job.app_id, error)
            return False
        return True

    def _sync_record(self, name: str) -> None:
        """Sync an application's newest record, if the durability asks for syncs.

        Else a power cut could bring back a job whose list of files was removed.
        """
        if self._engine.syncs:
            self._state_log.sync(name)

    def _forget_ids(self, job: StagedJob) -> None:
        for where, producer_ids in job.producer_ids.items():
            try:
                partition = self._engine.find_partition(where)
                if partition is not None and partition.topic_id == job.topic_ids[where.topic]:
                    partition.producer_state.forget_adopted(producer_ids)
            except EoslogError as error:
                # The ids expire; the job is complete.
                _log.warning("%s: %s", where, error)
        for one in job.offsets:
            try:
                offsets_partition = self._engine.partitions.offsets_partition(one.number)
                offsets_partition.producer_state.forget_adopted([one.producer_id])
            except EoslogError as error:
                _log.warning("offsets of groups, partition %d: %s", one.number, error)


# Runs that are over, and the removal of their files.


def _is_away(job: StagedJob) -> bool:
    """True if no decision can find the job's files: they were moved or removed."""
    return not any(os.path.lexists(one.path) for one in job.files)


def _removable_runs(
    application_path: Path, record: ApplicationRecord | None, oldest_ms: int
) -> list[Path]:
    """Return the runs of an application that are over, or without decision and recent write."""
    return [
        path
        for path in _subdirectories(application_path)
        if not is_decided(path.name, record)
        and (_is_over(path.name, record) or _last_written_ms(path) <= oldest_ms)
    ]


def outdated_runs(application_path: Path, record: ApplicationRecord) -> list[Path]:
    """Return the runs whose names show that they are for a version that is in."""
    return [
        path
        for path in _subdirectories(application_path)
        if not is_decided(path.name, record) and _is_outdated(path.name, record)
    ]


def _is_outdated(run_name: str, record: ApplicationRecord) -> bool:
    return is_version_in(run_name, record.version, record.count)


def is_decided(run_name: str, record: ApplicationRecord | None) -> bool:
    """True if the run has a job that is decided and not complete."""
    return (
        record is not None
        and record.state == PREPARED
        and record.run_id is not None
        and run_name == directory_name(record.run_id, "run_id")
    )


def _is_over(run_name: str, record: ApplicationRecord | None) -> bool:
    """True if no file of the run can be decided any more."""
    if record is None or record.run_id is None:
        return False
    if record.has_overtaken(run_name) or _is_outdated(run_name, record):
        return True
    # A run that the caller named is for one job, whose decision names it.
    its_own = run_name == directory_name(record.run_id, "run_id")
    return its_own and run_generation(run_name) is None and record.state != PREPARED


def application_directories(staging_path: Path) -> list[Path]:
    """Return the directories of all applications that have one."""
    return [path for path in _subdirectories(staging_path) if path.name != TRASH_DIRECTORY]


def _subdirectories(path: Path) -> list[Path]:
    """Return the directories in a directory; none if it was removed."""
    return [path / one.name for one in _listed(path) if one.is_dir(follow_symlinks=False)]


def _last_written_ms(run_path: Path) -> int:
    """Return when something in a run was last written, in milliseconds."""
    newest_ns = 0
    for path in (run_path, *_entries(run_path)):
        with named_os_errors(f"looking at {path}"):
            try:
                newest_ns = max(newest_ns, path.lstat().st_mtime_ns)
            except FileNotFoundError:
                continue
    return newest_ns // 1_000_000


def _leads_elsewhere(path: Path, staging_path: Path) -> bool:
    """True if a path, or a directory above it below the staging directory, is a link."""
    below = path.relative_to(staging_path).parts
    with named_os_errors(f"looking at {path}"):
        return any(
            staging_path.joinpath(*below[:depth]).is_symlink() for depth in range(1, len(below) + 1)
        )


def remove_tree(path: Path, staging_path: Path, enough: Callable[[], bool] = never) -> int:
    """Remove a directory as far as possible, unless a link leads there; return the file count. Once
    `enough()` the rest is left.
    """
    return 0 if _leads_elsewhere(path, staging_path) else _remove_tree(path, enough)


def _remove_tree(path: Path, enough: Callable[[], bool]) -> int:
    removed = 0
    try:
        with os.scandir(path) as entries:
            found = list(entries)
        for entry in found:
            if enough():
                return removed
            if entry.is_dir(follow_symlinks=False):
                removed += _remove_tree(path / entry.name, enough)
            else:
                (path / entry.name).unlink(missing_ok=True)
                removed += 1
        path.rmdir()
    except OSError:
        # It was removed, or a task writes to it, or it is not ours: the next sweep tries again.
        return removed
    return removed


def _remove_manifests(run: Path, staging_path: Path) -> None:
    """Remove the lists of a run's files; called while no job of the run is pending."""
    if not _leads_elsewhere(run, staging_path):
        with suppress(OSError):
            for path in run.glob(MANIFESTS):
                path.unlink(missing_ok=True)


def remove_if_empty(path: Path) -> None:
    """Remove a directory if it is empty."""
    with suppress(OSError):
        path.rmdir()


def _entries(path: Path) -> Iterator[Path]:
    for entry in _listed(path):
        yield path / entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(path / entry.name)


def _listed(path: Path) -> list[os.DirEntry[str]]:
    """List a directory; empty if it was removed."""
    with named_os_errors(f"reading {path}"):
        try:
            with os.scandir(path) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []
