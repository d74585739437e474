"""Staged jobs of a store. Most stores have none: what handles them is loaded when it has work.

There is none for an opening, a close and the background thread while no application has a record,
no process has set the flag of undone jobs, and there is no directory of staged files.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from eoslog.common.clock import ExpiryClock
from eoslog.common.topic_name import VERSION_TOPIC
from eoslog.common.topic_partition import TopicPartition
from eoslog.fs.os_errors import named_os_errors
from eoslog.groups.offsets import GroupOffsets
from eoslog.groups.records import OffsetKey
from eoslog.staging.undone_flag import UndoneFlag
from eoslog.storage.engine import Engine
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.state_key import APPLICATION

if TYPE_CHECKING:
    from eoslog.staging.commit import StagedCommits

# A group with an application's name shows the application's newest version here. The version is in
# the application's record only: Kafka's tools cannot describe a group that has an offset of a topic
# that does not exist.
VERSION_PARTITION = TopicPartition(VERSION_TOPIC, 0)


class StagedJobs:
    """The staged jobs of one store; `commits` decides and completes them."""

    def __init__(
        self,
        engine: Engine,
        state_log: CompactedLog,
        group_offsets: GroupOffsets,
        none_is_open: Callable[[], bool],
        expiry_clock: ExpiryClock,
    ) -> None:
        """`none_is_open()` is True only if no transaction is undecided; staged files expire by
        `expiry_clock`.
        """
        self._engine = engine
        self._state_log = state_log
        self._parts = (engine, state_log, group_offsets, none_is_open, expiry_clock)
        self._noted: Callable[[], None] = lambda: None
        self._flag = UndoneFlag(engine.session.shared)
        self._made: dict[str, StagedCommits] = {}
        group_offsets.ask_staged(self._hold_back, self._find_applications)

    @property
    def commits(self) -> "StagedCommits":
        """The part that handles jobs; made when it is first asked for."""
        found = self._made.get("commits")
        if found is None:
            from eoslog.staging.commit import StagedCommits

            made = StagedCommits(*self._parts)
            made.leftovers.watch(self._noted)
            found = self._made.setdefault("commits", made)  # That of one thread, if two make it.
        return found

    def watch_leftovers(self, noted: Callable[[], None]) -> None:
        """Have `noted()` called when there is something to clear; call it now if there is."""
        self._noted = noted
        if self._has_files():
            self.commits.leftovers.watch(noted)

    def roll_forward(self) -> None:
        """See `StagedCommits`."""
        if self._made or self._is_any_known():
            self.commits.roll_forward()

    def renew_groups(self) -> None:
        """See `StagedCommits`."""
        if self._is_any_known():
            self.commits.renew_groups()

    def recover_dead_peers(self) -> None:
        """See `StagedCommits`."""
        if self._flag.is_set:
            self.commits.recover_dead_peers()

    def clear_leftovers(self, enough: Callable[[], bool]) -> bool:
        """See `StagedCommits`. Return True if files are left that this process is to remove."""
        if not self._made:
            return False
        self.commits.clear_leftovers(enough)
        return self.commits.leftovers.any_trash

    def sweep(self, enough: Callable[[], bool]) -> None:
        """See `StagedCommits`."""
        if self._made or self._is_any_known() or self._has_files():
            self.commits.sweep(enough)

    def versions(self, groups: Iterable[str]) -> dict[str, int]:
        """See `StagedCommits`."""
        return self.commits.versions(groups) if self._state_log.names(APPLICATION) else {}

    def producer_ids(self) -> frozenset[int]:
        """See `StagedCommits`."""
        return self.commits.producer_ids() if self._made else frozenset()

    def _is_any_known(self) -> bool:
        return self._flag.is_set or bool(self._state_log.names(APPLICATION))

    def _has_files(self) -> bool:
        path = self._engine.paths.staging
        with named_os_errors(f"looking at {path}"):
            return path.is_dir()

    def _hold_back(self, key: OffsetKey) -> bool:
        is_any = self._flag.is_set
        return is_any and self.commits.pending.undone.hold_back(key)

    def _find_applications(self) -> Callable[[str], bool]:
        if not self._state_log.names(APPLICATION):
            return lambda _: False
        return self.commits.find_applications()
