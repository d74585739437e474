"""Undone staged jobs: decided or just being decided, and not complete; for all processes.

The page that processes share has a flag for it, made of two counters. It is set before a job's
first partition is held, and reset when nothing is left undone; both under the lock of staged jobs.
So whoever takes that lock and finds it set looks at what others left: the applications' records
tell which jobs are decided. A partition that is held for none of them was held by a process that
died before its decision.
"""

from collections.abc import Iterator
from pathlib import Path

from eoslog.bindings.shared_page import COUNTER_STAGED_BEGUN, COUNTER_STAGED_SETTLED, SharedPage
from eoslog.errors import EoslogError
from eoslog.groups.offset_records import OffsetKey
from eoslog.staging.staged_application import PREPARED, ApplicationRecord
from eoslog.staging.staged_pending import job_of_application
from eoslog.staging.staged_sweep import application_directories
from eoslog.transactions.state_log import StateLog


class UndoneJobs:
    """Undone jobs of one store. Without a shared page there is no other process to tell: it is
    never set.
    """

    def __init__(self, staging_path: Path, state_log: StateLog, shared: SharedPage | None) -> None:
        self._staging_path = staging_path
        self._state_log = state_log
        self._shared = shared

    @property
    def any(self) -> bool:
        """True if there may be such jobs, of any process."""
        if self._shared is None:
            return False
        # In this order: while it is set and reset it may look set, and never reset.
        settled = self._shared.counter(COUNTER_STAGED_SETTLED)
        return self._shared.counter(COUNTER_STAGED_BEGUN) != settled

    def begin(self) -> None:
        """Note that there is one now. The caller holds the lock."""
        if self._shared is not None and not self.any:
            self._shared.raise_counter(COUNTER_STAGED_BEGUN)

    def settle(self) -> None:
        """Note that there is none any more. The caller holds the lock."""
        if self._shared is not None and self.any:
            self._shared.raise_counter(COUNTER_STAGED_SETTLED)

    def prepared(self) -> Iterator[ApplicationRecord]:
        """The applications that have a job which is decided and not complete.

        Each of them has a directory, whether or not its job has files.
        """
        for path in application_directories(self._staging_path):
            record = ApplicationRecord.read_by_name(self._state_log, path.name)
            if record is not None and record.state == PREPARED:
                yield record

    def hold_back(self, key: OffsetKey) -> bool:
        """True if such a job commits this offset."""
        return self.any and any(key in self._offset_keys(record) for record in self.prepared())

    def _offset_keys(self, record: ApplicationRecord) -> frozenset[OffsetKey]:
        try:
            job = job_of_application(self._staging_path, record)
        except EoslogError:
            return frozenset()  # Its list of files is gone: it was completed just now.
        return job.offset_keys
