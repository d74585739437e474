"""Work of the background thread for the other processes that may have the store open.

- It takes in what they appended, so that this process stays close to their ends, and closes
  topics that they deleted.
- It ends what dead processes left: their open transactions, their staged jobs, their places among
  the readers of LMDB, their memberships of groups.
- One of them has the lead, and does what is to be done once for the whole store. The lead is the
  lock of a file that is held until the thread ends: when the process dies, another one takes it.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from eoslog.bindings.shared_page import COUNTER_TOPICS
from eoslog.errors import EoslogError, LogClosedError
from eoslog.fs.file_lock import UpgradableLock
from eoslog.staging.on_demand import StagedJobs
from eoslog.storage.journal_replay import DeadJournals
from eoslog.storage.opened_partitions import ROWS_BEHIND_MAX
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.files import StoreFiles

if TYPE_CHECKING:
    from eoslog.producer.producer import Producer

LEAD_FILE_NAME = "lead.lock"
# How often it asks whether a process has come, or a topic was changed: others follow that within a
# second.
ASK_S = 0.5
# How often a process looks after the others; and one that is alone after what it left itself.
LOOK_S = 1.0
LOOK_ALONE_S = 5.0


class PeerMonitor:
    """The other processes of a store, for its background thread; only that one calls it."""

    def __init__(
        self,
        files: StoreFiles,
        staged: StagedJobs,
        live_producers: "Callable[[], list[Producer]]",
        note: Callable[[UnifiedLog], None],
        keep: Callable[[Exception, str], None],
    ) -> None:
        """`note` receives partitions with something to persist, `keep` receives errors."""
        self._files = files
        self._staged = staged
        self._live_producers = live_producers
        self._note = note
        self._keep = keep
        self._session = files.session
        self.dead_journals = DeadJournals(
            files.paths,
            files.session.slots.alive,
            files.registry.all,
            files.partitions.find_of_any_topic,
        )
        self._lead: UpgradableLock | None = None
        self._leads = False
        self._looked_s = -LOOK_ALONE_S
        self._arrivals = self._topic_changes = -1
        self._followed = -1  # As of which change all partitions were followed.
        self.any = False

    @property
    def interval_s(self) -> float:
        """Interval after which `is_due` must be asked again."""
        return min(ASK_S, LOOK_S, LOOK_ALONE_S)

    def is_due(self) -> bool:
        """True if it is time to look after the other processes. Costs next to nothing."""
        if self._news() != (self._arrivals, self._topic_changes):
            return True
        return time.monotonic() >= self._looked_s + (LOOK_S if self.any else LOOK_ALONE_S)

    def _news(self) -> tuple[int, int]:
        return self._session.arrivals, self._session.shared.counter(COUNTER_TOPICS)

    def leads(self) -> bool:
        """True if this process does what one of them must do for the whole store."""
        if self._lead is None:
            self._lead = UpgradableLock(self._files.paths.state / LEAD_FILE_NAME)
        if not self._leads:
            self._leads = self._lead.try_alone()
        return self._leads

    def end(self) -> None:
        """The thread ends: another process may take the lead."""
        self._leads = False
        if self._lead is not None:
            self._lead.close()
            self._lead = None

    def look(self) -> None:
        """Follow the other processes, and end what dead ones left. Any other error goes to `keep`.

        Raises StoreFailedError if the store's files were replaced.
        """
        # First: one that comes from here on is found by the next look.
        self._looked_s = time.monotonic()
        self._arrivals, self._topic_changes = self._news()
        self._files.engine.check_files()
        slots = self._session.slots
        try:
            dead = bool(slots.dead())
            self.any = dead or bool(slots.others())
        except EoslogError as error:
            self._keep(error, "looking for other processes")
            return
        if self.any:
            self._follow_all(dead)
        # Of this process too: a commit that was interrupted may have decided one. Before the
        # transactions: the recovery of those forgets the dead.
        self._attempt(self._staged.recover_dead_peers, "settling staged jobs")
        if self.any:
            self._settle_all()

    def _follow_all(self, dead: bool) -> None:
        """Learn what others wrote, deleted and left."""
        self._attempt(self._notice_changes, "looking for topics that were changed")
        # First: what changes from here on is followed by the next look.
        changes = self._session.changes
        if dead or changes != self._followed:
            self._followed = changes
            for partition in self._files.partitions.opened():
                self._follow(partition)
        self._attempt(self._files.state_log.look_after, "following the state log")
        if dead:
            self._attempt(self._take_over, "looking at what a process left")
            self._attempt(self.dead_journals.retire, "retiring journals of dead processes")

    def _settle_all(self) -> None:
        """End what is open of processes that died. Groups first, as above."""
        self._attempt(self._files.group_members.look_after_members, "looking after groups")
        coordinator = self._files.transactions
        self._attempt(coordinator.recover_dead_peers, "settling transactions of dead processes")
        self._attempt(coordinator.entries.look_after_owners, "looking at owners of transactions")

    def _notice_changes(self) -> None:
        self._files.topics.notice_changes(self._live_producers())

    def _follow(self, partition: UnifiedLog) -> None:
        try:
            partition.refresh()
            producers = partition.producer_state
            producers.load_incomplete()
            if partition.log.producer_count > producers.cached_max:
                # Nothing is appended here: nothing else would make room.
                producers.persist(behind_max=ROWS_BEHIND_MAX)
        except LogClosedError:
            return  # It was deleted.
        except EoslogError as error:
            self._followed = -1  # Again with the next look.
            self._keep(error, str(partition.topic_partition))

    def _take_over(self) -> None:
        """A process died: what it appended and did not write down is as good as written here."""
        self._files.lmdb.free_dead_readers()
        for partition in self._files.partitions.opened():
            if partition.producer_state.persisted_offset != partition.log_end_offset:
                self._note(partition)

    def _attempt(self, work: Callable[[], object], what: str) -> None:
        try:
            work()
        except Exception as error:  # Whatever it is: the rest has its turn.
            self._keep(error, what)
