"""Opening and closing of a store's files, in order.

The first process of a session recovers the store, the last one closes it cleanly; the others attach
to it and detach from it (`store_session`).

Invariants: nothing is written before the store is locked and the trace of its last clean close is
removed; that trace is left again only by a close that synced everything. Opening costs the same
whatever the store holds: partitions are opened, and after an unclean stop recovered, when they are
first used. The steps have numbers in `docs/crash-points.md`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from eoslog.bindings import shared_page
from eoslog.bindings.shared_page import LOCK_COMPACTION, LOCK_LMDB
from eoslog.common.config import OPENING_SETTINGS, parse_config, parse_store_config
from eoslog.common.durability import Durability, Remembered
from eoslog.common.topic_name import TRANSACTION_STATE_TOPIC
from eoslog.errors import EoslogError, StoreInUseError
from eoslog.fs.file_system import boot_id_bytes, raise_open_files
from eoslog.fs.identity_files import META_PROPERTIES
from eoslog.fs.os_errors import named_os_errors
from eoslog.groups.coordinator import GroupCoordinator
from eoslog.groups.offsets import GroupOffsets
from eoslog.groups.offsets_index import GroupOffsetsIndex
from eoslog.session.append_signal import FOLLOWED_LOOK_S, LOOK_AGAIN_S, AppendSignal
from eoslog.session.counters import StoreCounts, read_counts
from eoslog.session.directory import enter_store
from eoslog.session.file_hold import FileHold
from eoslog.session.followed_session import FollowedSession
from eoslog.session.group_access import SETTING as GROUP_SETTING
from eoslog.session.group_access import set_group_access
from eoslog.session.overlay import Overlay
from eoslog.session.paths import StorePaths
from eoslog.session.settings import StoreSettings, read_settings, write_settings
from eoslog.storage.clean_close import (
    forget_last_stop,
    has_lmdb_mark,
    left_sums,
    new_session,
    put_away_changed,
    read_last_stop,
    write_clean_close,
    write_lmdb_mark,
)
from eoslog.storage.engine import Engine
from eoslog.storage.journal_replay import (
    has_journal,
    journal_files,
    refuse_after_power_cut,
    remove_journals,
    replay_journals,
)
from eoslog.storage.kept_journals import remove_kept_journals, sync_kept_journals
from eoslog.storage.legal_holes import LegalHoles
from eoslog.storage.lmdb_environment import DIRECTORY_NAME, LmdbEnvironment
from eoslog.storage.log_opener import LogOpener
from eoslog.storage.offset_checkpoints import OffsetCheckpoints
from eoslog.storage.opened_partitions import OpenedPartitions
from eoslog.storage.partition_directory import remove_orphan_spares
from eoslog.storage.process_journal import ProcessJournal
from eoslog.storage.producer_id_range import FoundProducerIds
from eoslog.storage.spare_files import remove_spares
from eoslog.storage.topic_registry import TopicRegistry, nothing_to_check
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.topics import StoreTopics
from eoslog.transactions.compacted_log import CompactedLog, CompactionPlan
from eoslog.transactions.coordinator import TransactionCoordinator
from eoslog.transactions.named_producers import NamedProducers
from eoslog.transactions.producer_ids import ProducerIds
from eoslog.transactions.recovery import TransactionRecovery
from eoslog.transactions.state_index import StateIndex
from eoslog.upgrade import upgrade_offsets, upgrade_topics

if TYPE_CHECKING:
    from eoslog.transactions.admin import TransactionAdmin

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class OpeningMode(NamedTuple):
    """Steps that an opening of a store has, and what becomes of it.

    `in_background`: timeouts, dead processes, checkpoints and retention are looked after.
    `leaves_open`: transactions of the last processes stay open. `reads_only`: the steps are those
    of any opening, but on an `Overlay` of the store, which is not written to and not closed.
    """

    in_background: bool = True
    leaves_open: bool = False
    reads_only: bool = False


AS_USUAL = OpeningMode()
AS_LEFT = OpeningMode(in_background=False, leaves_open=True)
TO_RECOVER = OpeningMode(in_background=False)
TO_READ = OpeningMode(in_background=False, reads_only=True)


class StoreFiles:
    """The parts of one store that have files. Made, they hold nothing yet: see `enter`."""

    overlay: Overlay | None = None

    def __init__(self, path: Path, config: Mapping[str, object] | None, mode: OpeningMode) -> None:
        self.mode = mode
        # As given: what the store remembers, `enter` adds.
        self._given = parse_config(config, OPENING_SETTINGS, "store")
        with named_os_errors(f"looking for {path}"):  # The working directory may be gone.
            self.paths = StorePaths(path.absolute())

    def enter(
        self,
        create: bool,
        durability: Durability | Remembered | None,
        *,
        on_fork: Callable[[], None],
        is_closed: Callable[[], bool],
        check_open: Callable[[], None],
        check_files: Callable[[], None],
        check_writable: Callable[[], None],
    ) -> None:
        """Take part in the store's session, and make all parts; they have changed nothing yet: see
        `begin`. Whatever this raises, an interrupt (Ctrl-C) too: `give_up` is the caller's then.
        """
        if self.mode.reads_only:
            self.overlay = Overlay(self.paths)
            refuse_after_power_cut(self.paths)
            self.paths = self.overlay.paths
        with named_os_errors(f"opening {self.paths.root}"):
            exists = (self.paths.root / META_PROPERTIES).exists()
        remembered = read_settings(self.own_paths.state) if exists else StoreSettings()
        self.config, _ = parse_store_config({**remembered.config, **self._given})
        if self.config["eoslog.open.files.raise"]:
            raise_open_files()
        self.session, self.identity = enter_store(
            self.paths,
            create,
            durability,
            self._given,
            remembered,
            on_fork,
        )
        found_ids = FoundProducerIds(self.session.shared)
        self._make_storage(found_ids)
        self.engine = Engine(
            self.paths,
            self.session,
            self.config,
            self.durability,
            self.registry,
            self.lmdb,
            self.partitions,
            self.checkpoints,
            self.signal,
            is_closed,
            check_open,
            check_files,
            check_writable,
            self.follows,
        )
        self._make_transactions(found_ids)
        self._make_groups()

    @property
    def own_paths(self) -> StorePaths:
        """Paths of the store itself, also where `paths` are those of an overlay."""
        return self.paths if self.overlay is None else self.overlay.store

    def counts(self) -> StoreCounts:
        """Return the counts of all processes of the store. Raises StoreError."""
        if self.overlay is not None:
            return read_counts(self.own_paths.state)
        return self.session.counters.totals()

    def alter_settings(self, config: Mapping[str, object], durability: Durability | None) -> None:
        """Change what the store remembers. See `Store.alter_config`."""
        state = self.paths.state
        with self.registry.changing_topics():
            before = read_settings(state)
            after = before.altered(config, durability)
            write_settings(state, after)
            if GROUP_SETTING in config:
                # Also if it is so already: a change may have been cut short.
                set_group_access(self.paths, bool(after.config.get(GROUP_SETTING)))
        _log.info("%s: settings altered from %s to %s", self.paths.root, before, after)

    def _make_storage(self, found_ids: FoundProducerIds) -> None:
        shared = self.session.shared
        lmdb_path = self.paths.state / DIRECTORY_NAME
        if self.session.first:
            stop = read_last_stop(self.paths.clean_marker, self.paths.unrecovered)
            put_away_changed(self.paths.root, lmdb_path, stop.sums)
        self.lmdb = LmdbEnvironment(
            lmdb_path,
            shared=self.session.may_be_shared,
            write_turn=lambda: shared.held(LOCK_LMDB, shared_page.LOCK_TIMEOUT_S),
            synced=self.overlay is None,
        )
        self.state_index = StateIndex(self.lmdb)
        if self.session.first:
            upgrade_topics(self.paths.state, self.state_index)
        followed = None if self.overlay is None else self.overlay.followed
        if self.overlay is not None and followed is not None:
            followed.give_counters(shared)
            self.session.slots.follow(self.overlay.store.state)
            self.lmdb.copied_from = self.overlay.copy_lmdb
            self.registry = TopicRegistry.follow(self.overlay.store.state, shared)
        else:
            # By the store's own directories: those of an overlay are filled once they are used.
            self.registry = TopicRegistry.load(self.own_paths.root, self.paths.state, shared)
        # No other process replaces the files of an overlay.
        check = self.session.check if self.overlay is None else nothing_to_check
        self.registry.check_files = check
        self.durability: Durability = self.session.durability
        self.signal = AppendSignal(shared, LOOK_AGAIN_S if followed is None else FOLLOWED_LOOK_S)
        self.file_hold = FileHold(self.paths.controls)
        self.was_stopped_uncleanly = self.had_unrecovered = False
        # No other process replaces those of an overlay; those of a followed store are copied again.
        are_own = self.overlay is not None and followed is None
        self.checkpoints = OffsetCheckpoints(self.paths.root, shared, are_own=are_own)
        if self.session.first and stop.sums:
            self.checkpoints.note_synced()
        self.journal: ProcessJournal | None = None
        if self.durability != "process" and self.overlay is None:
            journal_bytes = self.config["eoslog.journal.bytes"]
            slot = self.session.slots.own
            self.journal = ProcessJournal(
                self.paths, journal_bytes, slot, self.session.check, self.session.counters.page
            )
        holes = LegalHoles(
            self.paths, self.registry, self.checkpoints, self.lmdb, self.state_index.read_applied
        )
        opener = LogOpener(
            self.paths,
            self.checkpoints,
            holes,
            self.lmdb,
            self.config,
            self.durability,
            self.signal,
            self.session.id,
            shared,
            self.journal.journal if self.journal is not None else None,
            self.session.counters.page,
            boot_id_bytes(),
            self.file_hold,
            self.overlay,
        )
        self.partitions = OpenedPartitions(
            opener, self.registry, self.session.topic_defaults, found_ids, check
        )

    def _make_transactions(self, found_ids: FoundProducerIds) -> None:
        shared, slots, durable = self.session.shared, self.session.slots, self.engine.syncs
        self.state_log = CompactedLog(self.partitions, self.state_index, durable, shared)
        self.producer_ids = ProducerIds(
            self.state_log,
            found_ids,
            self.partitions.find_producer_ids,
            slots.note_producer_ids,
        )
        self.transactions = TransactionCoordinator(
            self.state_log,
            self.producer_ids,
            self.partitions,
            durable=durable,
            timeout_max_ms=self.config["transaction.max.timeout.ms"],
            slots=slots,
            shared=shared,
            counters=self.session.counters.page,
        )
        # A dead process is looked after until its journal is gone.
        self.transactions.settle_hooks += [
            lambda slot: not has_journal(self.paths, slot),
            self._fold_dead_counts,
        ]
        self.transaction_recovery = TransactionRecovery(
            self.transactions,
            self.state_log,
            self.partitions,
            self.checkpoints,
            slots=slots,
            shared=shared,
        )
        self.names = NamedProducers(
            self.state_log,
            self.producer_ids,
            self.partitions.find,
            self.registry.id_of,
            slots=slots,
            shared=shared,
            counters=self.session.counters.page,
        )

    def _fold_dead_counts(self, _: bytes) -> bool:
        self.session.counters.fold_dead(sync=self.engine.syncs)
        return True  # Where that failed, a later one takes the page without its slot.

    def _make_groups(self) -> None:
        shared, slots, index = self.session.shared, self.session.slots, GroupOffsetsIndex(self.lmdb)
        self.partitions.watch_restored(index.delete_untrue)
        self.group_offsets = GroupOffsets(
            self.partitions, index, self.config, self.engine.syncs, shared
        )
        self.group_members = GroupCoordinator(
            self.group_offsets,
            self.registry,
            self.looked_at.state,
            slots,
            self.session.counters.page,
            follows=self.follows,
        )
        self.topics = StoreTopics(
            self.paths,
            self.registry,
            self.partitions,
            self.names,
            self.group_offsets,
            self.file_hold,
        )

    @cached_property
    def transaction_admin(self) -> "TransactionAdmin":
        """Administration of the store's transactions, which few processes use."""
        from eoslog.transactions.admin import TransactionAdmin

        return TransactionAdmin(self.transactions, self.state_log, self.partitions)

    @property
    def follows(self) -> bool:
        """True if the store is only read, beside the processes that have it open."""
        return self.overlay is not None and self.overlay.followed is not None

    @property
    def shown_durability(self) -> Durability:
        """Durability of the processes that have the store open; what it remembers if none has."""
        if self.overlay is not None and self.overlay.followed is not None:
            self.overlay.followed.is_taken_up()
            return self.overlay.followed.durability
        return self.durability

    @property
    def looked_at(self) -> StorePaths:
        """The paths of what processes keep for each other to look at."""
        return self.overlay.store if self.overlay is not None and self.follows else self.paths

    @property
    def session_looked_at(self) -> bytes | None:
        """Id of the session of these processes; None if a new one is about to begin."""
        if self.overlay is not None and self.overlay.followed is not None:
            return self.overlay.followed.look()
        return self.session.id

    def begin(self) -> None:
        """Take the store up where the last process left it (O3 to O6), and its transactions; or
        attach to what other processes have open.
        """
        if self.overlay is not None and self.overlay.followed is not None:
            self._begin_following(self.overlay.followed)
            return
        if self.session.first:
            self._take_up()
            self.session.note_run()
            self._begin_journal()
            return
        self.partitions.recover_some(self.session.unrecovered)
        # Nothing is left to be done that others would have to wait for.
        self.opened()
        self.state_log.join()
        self.transaction_recovery.join()
        self._begin_journal()

    def _begin_following(self, followed: FollowedSession) -> None:
        """Read what the processes that have the store open write, which they end themselves."""

        def take_over() -> None:
            self.session.topic_defaults.update(followed.topic_defaults)
            self.partitions.recover_some(followed.unrecovered)

        take_over()
        followed.on_next = take_over
        self.state_log.join()

    def _begin_journal(self) -> None:
        if self.journal is not None:
            self.journal.begin()

    def _take_up(self) -> None:
        self.group_members.heartbeats.forget_all()
        marker, unrecovered = self.paths.clean_marker, self.paths.unrecovered
        last_stop = read_last_stop(marker, unrecovered)
        self.was_stopped_uncleanly = last_stop.unrecovered is None
        if not self.was_stopped_uncleanly:
            # While the trace says that they do not count.
            self._drop_journals()
        # Before anything is written: from here on a crash is an unclean stop.
        forget_last_stop(marker, unrecovered)
        if last_stop.unrecovered is None:
            # Before anything else is looked at.
            remove_kept_journals(self.paths)
            start = self.checkpoints.log_start_offset
            replay_journals(self.paths, self.registry.all(), start)
            self.registry.sync()
            remove_orphan_spares(self.paths, self.registry)
            self.partitions.recover_all()
        else:
            self.partitions.recover_some(last_stop.unrecovered)
        to_recover = self.partitions.unrecovered
        self.had_unrecovered = bool(to_recover)
        self.state_log.load(has_lmdb_mark(self.lmdb, last_stop.session))
        self.transaction_recovery.recover(to_recover, self.was_stopped_uncleanly)
        upgrade_offsets(self.group_offsets.log, self.registry)
        self.checkpoints.reserve()

    def _drop_journals(self) -> None:
        if journal_files(self.paths):
            _log.error(
                "%s: commit journals beside the trace of a clean stop: another program ran on the "
                "store; what they hold does not count",
                self.paths.root,
            )
            remove_journals(self.paths)

    def opened(self) -> None:
        """Let other processes open the store too, or close it: everything is taken up."""
        if self.session.first:
            self.transaction_recovery.let_others_in()
        self.session.opened(self.partitions.unrecovered)

    def compact(self, *partitions: UnifiedLog) -> int:
        """Compact partitions of internal topics; how many segments went. One process compacts at a
        time. An error of one partition does not keep the others from being compacted.

        Raises StoreFullError or StoreFailedError: then nothing was deleted of some of them.
        """
        shared = self.session.shared
        sealed = [one for one in partitions if one.segment_count > 1]
        # Never waited for, so it may be held while the locks of all keys are taken.
        if not sealed or not shared.try_lock(LOCK_COMPACTION):
            return 0  # Where another process compacts: after the next append.
        try:
            with self.file_hold.removing() as may_remove:
                pass  # Not held for so long: a backup would wait.
            # While one is under way it would only make the logs longer.
            return self._compact(sealed) if may_remove else 0
        finally:
            shared.unlock(LOCK_COMPACTION)

    def _compact(self, sealed: Sequence[UnifiedLog]) -> int:
        errors: list[EoslogError] = []

        def attempt(step: Callable[..., _Result], *arguments: object) -> _Result | None:
            try:
                return step(*arguments)
            except EoslogError as error:
                errors.append(error)
                return None

        up_to: dict[UnifiedLog, int] = {}
        of_state = [one for one in sealed if one.topic == TRANSACTION_STATE_TOPIC]
        for plan in (attempt(self._plan_compaction, of_state) or ()) if of_state else ():
            up_to[plan.partition] = attempt(self.state_log.write_forward, plan) or 0
        standing_still = self.transactions.entries.standing_still
        for one in sealed:
            if one.topic != TRANSACTION_STATE_TOPIC:
                groups = self.group_offsets.log
                up_to[one] = attempt(groups.write_forward, one, standing_still) or 0
        with suppress(EoslogError):  # All with one write, or each with its deletion.
            self.checkpoints.raise_starts(
                {one.topic_partition: partial(one.start_without, to) for one, to in up_to.items()}
            )
        deleted = 0
        for one, to in up_to.items():
            gone = (attempt(one.delete_segments, to) or 0) if to else 0
            _log.debug(
                "%s: compacted: what holds below offset %d is written again, %d segments go",
                *(one.topic_partition, to, gone),
            )
            deleted += gone
        raise_first(errors)
        return deleted

    def _plan_compaction(self, of_state: Sequence[UnifiedLog]) -> list[CompactionPlan]:
        self.transaction_recovery.advance()
        return self.state_log.plan_compaction(of_state, self.transaction_recovery.safe_offset)

    def close(self) -> list[EoslogError]:
        """Bring everything to disk and give the store up (C3 to C9), or let go of it if other
        processes have it open; what went wrong. After any other error `give_up` is the caller's.
        """
        lost = errors_of([self.session.check])
        if lost:
            # What is there now is not what was opened: nothing of it is touched.
            return lost + errors_of([self.give_up])
        errors = errors_of([self.group_members.close])
        if self.journal is not None:
            self.journal.stop()
        if self.engine.syncs:
            self._sync_ahead()
        last, why_unknown = self._is_last()
        errors += why_unknown
        errors += self._lay_down() if last else self._let_go(note_left=last is not None)
        self.session.counters.close(sync=self.engine.syncs)
        errors += errors_of([partial(self.give_up, last=bool(last))])
        return [_behind_the_appends(error) for error in errors]

    def give_up(self, *, last: bool = False) -> None:
        """Hold nothing of the store any more; what was not laid down is recovered by the next
        opening. `last`: everything was, and the session is over.

        A second call does nothing, or what an interrupt left of the first; nor does one for parts
        that `enter` did not come to.
        """
        with ExitStack() as rest:
            # Whatever one of them raises, the others are done.
            if self.overlay is not None:
                rest.callback(self.overlay.close)
            if hasattr(self, "session"):
                rest.callback(self.session.leave, last=last)
            if hasattr(self, "lmdb"):
                rest.callback(self.lmdb.close)
            journal = getattr(self, "journal", None)
            if journal is not None:
                rest.callback(journal.end)
            if hasattr(self, "partitions"):
                self.partitions.abandon()

    def _sync_ahead(self) -> None:
        """Sync what was written before other processes have to wait for it: they cannot open the
        store while this one closes it.
        """
        with suppress(EoslogError):
            if not self.session.slots.others():
                return
        for partition in self.partitions.opened():
            with suppress(EoslogError):  # It is met again when the partition is closed.
                partition.sync_up_to(partition.log_end_offset)

    def _is_last(self) -> tuple[bool | None, list[EoslogError]]:
        """True if no other process has the store open; none comes or goes from now on. None if
        that could not be reached, and what went wrong.
        """
        # It is left to others then. Should there be none any more, the next opening recovers.
        try:
            return self.session.begin_leaving(), []
        except StoreInUseError as error:
            _log.warning(
                "%s is closed without a look at other processes: %s", self.paths.root, error
            )
            return None, []
        except EoslogError as error:
            return None, [error]

    def _lay_down(self) -> list[EoslogError]:
        """Close what any process of the session opened, and say that the stop was clean."""
        errors = self._open_what_others_opened() if self.session.was_shared else []
        errors += errors_of([self.partitions.recover_rest])
        errors += errors_of([self.transaction_recovery.prepare_to_close])
        self.partitions.stop()
        errors += self.partitions.close_cleanly(internal=False)
        errors += errors_of([partial(remove_spares, self.paths)])
        errors += errors_of([self.state_log.persist, self.group_offsets.log.persist_all])
        errors += self.partitions.close_cleanly(internal=True)
        errors += errors_of([self._write_checkpoints])
        if not errors:
            errors += errors_of([self._leave_clean])
        return errors

    def _open_what_others_opened(self) -> list[EoslogError]:
        errors: list[EoslogError] = []
        try:
            for internal in (False, True):
                errors += self.partitions.open_what_others_opened(internal=internal)
        except EoslogError as error:
            errors.append(error)
        return errors

    def _let_go(self, *, note_left: bool) -> list[EoslogError]:
        """Sync what was written, unless nothing is waited for, and leave the rest to the others.
        `note_left`: in the session's file, if this process may write to it.
        """
        errors: list[EoslogError] = []
        if note_left:
            left = self.transaction_recovery.unresolved
            errors += errors_of([partial(self.session.leave_behind, left)])
        self.partitions.stop()
        errors += self.partitions.detach(sync=self.engine.syncs)
        return errors

    def leave_to_parent(self) -> None:
        """Touch nothing any more: this is a forked child."""
        if self.overlay is not None:
            self.overlay.leave_to_parent()
        if hasattr(self, "partitions"):
            self.partitions.leave_to_parent()

    def _write_checkpoints(self) -> None:
        offsets = self.partitions.closed_offsets
        all_synced = {one.topic_partition for one in self.partitions.opened()} <= set(offsets)
        self.checkpoints.write(self.transaction_recovery.closed(offsets, all_synced))
        self.checkpoints.end()
        self.registry.end()

    def _leave_clean(self) -> None:
        session = new_session()
        write_lmdb_mark(self.lmdb, session)
        left = self.partitions.unrecovered | self.transaction_recovery.unresolved
        left |= self.session.left
        # Nothing is written to these files from here on.
        sums = left_sums(self.paths.root, self.paths.state / DIRECTORY_NAME)
        if self.journal is not None:
            self.journal.end()
        remove_journals(self.paths)
        sync_kept_journals(self.paths)
        write_clean_close(self.paths.clean_marker, self.paths.unrecovered, session, left, sums)


def _behind_the_appends(error: EoslogError) -> EoslogError:
    """An error of a close that has no record's append to refuse, and that is not met again."""
    error.outcome, error.retriable = "unknown", False
    error.add_note(
        "the store is closed, and what was appended is in the log: the next opening recovers it"
    )
    return error


def raise_first(errors: Sequence[EoslogError]) -> None:
    """Raise the first of these errors, if there is one; the others are notes to it."""
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"and: {other}")
        raise errors[0]


def errors_of(steps: Iterable[Callable[[], None]]) -> list[EoslogError]:
    """Take every step, whatever becomes of the others; what went wrong."""
    errors = []
    for step in steps:
        try:
            step()
        except EoslogError as error:
            errors.append(error)
    return errors
