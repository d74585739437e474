"""Leftovers of jobs that are over: staged files, and producer ids that the partitions know.

Neither is worth a commit's time: a file takes as long to remove as it is large, a directory some
milliseconds. So a commit moves the files away, by one rename for a run, and from then on nobody
finds them; the background thread removes them, and so does the store's close. What a process left
when it died, the next one that opens the store removes so, or a sweep.

Order: what says that a job is complete is on disk before its ids are forgotten. A power cut before
that may bring the job back as decided, and may have taken its files: the ids tell that all of it is
in.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from eoslog.errors import EoslogError
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import DIRECTORY_MODE
from eoslog.staging.staged_application import ApplicationRecord
from eoslog.staging.staged_job import StagedJob
from eoslog.staging.staged_message import StagedMessage
from eoslog.staging.staged_names import (
    TRASH_DIRECTORY,
    attempt_path,
    directory_name,
    run_generation,
    run_path,
)
from eoslog.staging.staged_sweep import (
    application_directories,
    is_decided,
    leads_elsewhere,
    outdated_runs,
    removable_runs,
    remove_if_empty,
    remove_manifests,
    remove_tree,
)
from eoslog.storage.engine import Engine
from eoslog.transactions.state_log import StateLog

# How long a task may write on after its job is over, for its files to be swept at once.
ZOMBIES_GONE_S = 3600.0

_log = logging.getLogger(__name__)
_MOVE_CHANCES = 3


class Leftovers:
    """Leftovers of complete jobs of one store.

    The caller holds the lock of staged jobs, but for `clear` and what only asks.
    """

    def __init__(self, engine: Engine, state_log: StateLog) -> None:
        self._engine = engine
        self._state_log = state_log
        self._staging_path = engine.paths.staging
        self._trash = self._staging_path / TRASH_DIRECTORY
        self._noted: Callable[[], None] = lambda: None
        self._lock = threading.RLock()
        self._clearing = threading.RLock()
        self._complete: list[StagedJob] = []  # Their ids are still known.
        with named_os_errors(f"looking at {self._trash}"):
            self._moved = self._trash.is_dir()  # Of a process that died.
        # Directories of applications from which something was put away.
        self._emptied: set[Path] = set()
        # Runs that are over, and since when: late files of their zombies are swept at any age.
        self._over: dict[Path, float] = {}

    def watch(self, noted: Callable[[], None]) -> None:
        """Have `noted()` called when there is something to clear, and now if there is."""
        self._noted = noted
        if self.any:
            noted()

    @property
    def any(self) -> bool:
        """True if there is something to clear."""
        return self._moved or bool(self._complete) or bool(self._emptied)

    def producer_ids(self) -> set[int]:
        """Return the ids that the partitions must not forget yet."""
        with self._lock:
            return {one for job in self._complete for one in job.all_producer_ids}

    # What a job leaves.

    def leave(self, job: StagedJob, run_id: str) -> None:
        """A job is complete: have its files gone, and later the ids. While there are files, the ids
        keep out a second copy.
        """
        if run_generation(run_id) is None:
            self._put_run_away(job.run_path)
        else:
            for path in {one.path.parent for one in job.files}:
                self.put_away(path)
            if not leads_elsewhere(job.run_path, self._staging_path):
                remove_manifests(job.run_path)
        self._put_outdated_away(job.app_id)
        with self._lock:
            self._complete.append(job)
        self._noted()

    def discard(self, app_id: str, run_id: str | None, messages: Sequence[StagedMessage]) -> None:
        """Have what was staged gone for a version that needs it no more."""
        if run_id is None:
            return
        if run_generation(run_id) is None:
            self._put_run_away(run_path(self._staging_path, app_id, run_id))
        else:
            for message in messages:
                self.put_away(attempt_path(self._staging_path, app_id, run_id, message.attempt))
        self._put_outdated_away(app_id)

    def put_away(self, path: Path) -> None:
        """Have a directory gone from its place, and removed later; none that a link leads to."""
        if leads_elsewhere(path, self._staging_path):
            return
        if self._trash.is_symlink():
            remove_tree(path, self._staging_path)
            return
        for _ in range(_MOVE_CHANCES):
            try:
                path.rename(self._trash / os.urandom(16).hex())
                break
            except FileNotFoundError:
                if not path.is_dir():
                    return  # It is gone already.
                self._make_trash()
            except OSError:
                # Not to be moved: what can be removed is, the rest is swept.
                remove_tree(path, self._staging_path)
                return
        self._moved = True
        self._noted()

    def _put_outdated_away(self, app_id: str) -> None:
        """Have what any run staged for versions of a source that are in gone."""
        record = ApplicationRecord.read(self._state_log, app_id)
        if record is not None:
            for path in outdated_runs(self._staging_path / record.name, record):
                self._put_run_away(path)

    def _put_run_away(self, path: Path) -> None:
        self._over[path] = time.monotonic()
        self._emptied.add(path.parent)
        self.put_away(path)

    def _make_trash(self) -> None:
        try:
            self._trash.mkdir(DIRECTORY_MODE)
        except OSError:
            return  # It is there by now, or the move will say what is wrong.

    # Removing it.

    def clear(self) -> None:
        """Remove what was put away, and have ids forgotten; without the lock of staged jobs.

        On return nothing is left of what there was before, whoever removed it. What cannot be
        removed is swept, and ids expire by themselves. Raises StoreFailedError if the store's files
        were replaced: those there now are not ours.
        """
        with self._clearing:
            if not self.any:
                return
            self._engine.check_files()
            with self._lock:
                jobs = list(self._complete)
            over = [job for job in jobs if self._is_complete_on_disk(job)]
            self.empty_trash()
            for job in over:
                self._forget_ids(job)
            with self._lock:
                self._complete = [job for job in self._complete if job not in over]

    def remove_emptied(self) -> None:
        """Remove directories of applications that have nothing staged any more."""
        emptied, self._emptied = self._emptied, set()
        for path in emptied:
            remove_if_empty(path)

    def empty_trash(self, of_others: bool = False) -> None:
        """Remove what was put away by this process, or by `of_others` too."""
        if self._moved or of_others:
            self._moved = False
            remove_tree(self._trash, self._staging_path)

    def remove_run(self, path: Path) -> int:
        """Remove now what a run staged; how many files went."""
        self._over[path] = time.monotonic()
        removed = remove_tree(path, self._staging_path)
        remove_if_empty(path.parent)
        return removed

    def sweep(self, oldest_ms: int) -> None:
        """Remove what nobody needs any more, whoever left it; what nobody decided if nothing was
        written in it since a time.
        """
        for application_path in application_directories(self._staging_path):
            record = ApplicationRecord.read_by_name(self._state_log, application_path.name)
            runs = removable_runs(application_path, record, oldest_ms)
            if runs and record is not None:
                # Else a power cut could bring a job back whose list of files is gone.
                self._sync_record(record.name)
            for path in runs:
                remove_tree(path, self._staging_path)
            remove_if_empty(application_path)
        self._sweep_zombies()
        self.empty_trash(of_others=True)

    def _sweep_zombies(self) -> None:
        for path, since_s in list(self._over.items()):
            record = ApplicationRecord.read_by_name(self._state_log, path.parent.name)
            if is_decided(path.name, record):
                continue  # The run's name was used once more.
            remove_tree(path, self._staging_path)
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
        """Have an application's newest record on disk, if anything is to be there."""
        if self._engine.syncs:
            self._state_log.sync(name)

    def _forget_ids(self, job: StagedJob) -> None:
        for where, producer_ids in job.producer_ids.items():
            try:
                partition = self._engine.find_partition(where)
                if partition is not None and partition.topic_id == job.topic_ids[where.topic]:
                    partition.forget_adopted(producer_ids)
            except EoslogError as error:
                # They expire by themselves; the job is complete.
                _log.warning("%s: %s", where, error)
        for one in job.offsets:
            try:
                offsets_partition = self._engine.partitions.offsets_partition(one.number)
                offsets_partition.forget_adopted([one.producer_id])
            except EoslogError as error:
                _log.warning("offsets of groups, partition %d: %s", one.number, error)
