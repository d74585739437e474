"""Recovery of transactions when a store opens, and the offsets from which the next opening looks.

Opening: a decided transaction is completed, an open one is aborted (its producer is gone), a
prepared one waits on. After an unclean stop the decisions since the last checkpoint are read again,
since the power may have taken markers of a transaction that has no completion record. A transaction
that a partition has open, and that no coordinator knows, is aborted: its registration was lost, so
it was never decided. One with the offsets of a staged job is committed: the job was decided before
they were appended.

The first process of a store's session does this alone. Those that join it later take up what is
undecided then, and end what dead processes left. The process that writes a checkpoint finds its
recovery points from the decisions and the partitions of all processes.

Invariant: the recovery point of a partition of `__transaction_state` that a checkpoint names is
never above a decision whose markers are not known to be on disk. `docs/transactions.md` has the
argument.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

from eoslog.bindings.entry_lock import AllKeysHeld
from eoslog.bindings.lock_block import LockBlock
from eoslog.bindings.log_transactions import OpenTransaction
from eoslog.bindings.shared_page import SharedPage
from eoslog.bindings.transaction_entry import TransactionEntry, decode_transaction_value
from eoslog.common.repeated_warnings import RepeatedWarnings
from eoslog.common.topic_name import TRANSACTION_STATE_TOPIC
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    CorruptRecordError,
    EoslogError,
    InvalidProducerEpochError,
    LogClosedError,
    StoreFailedError,
)
from eoslog.fs.identity_files import id_bytes
from eoslog.session.process_slots import ProcessSlots
from eoslog.storage.offset_checkpoints import LastOffsets, OffsetCheckpoints
from eoslog.storage.opened_partitions import OpenedPartitions
from eoslog.storage.producer_id_range import is_of_staged_job
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.coordinator import TransactionCoordinator
from eoslog.transactions.entries import (
    ONGOING,
    PREPARE_STATES,
    UNDECIDED_STATES,
    NewestRecord,
)
from eoslog.transactions.producer_ids import EPOCH_MAX
from eoslog.transactions.state_key import state_partition_of
from eoslog.transactions.unresolved_transactions import (
    Decision,
    Decisions,
    UnresolvedTransactions,
    decision_of,
    find_decision,
    with_older,
)

_log = logging.getLogger(__name__)

_Known = TransactionEntry | NewestRecord


class _Unloaded(NamedTuple):
    """An undecided transaction whose record cannot be read, and what is known of it."""

    producer_id: int
    state_partition: int
    offset: int


class NeverDecided(NamedTuple):
    """Transaction of a partition that was never decided."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int


class TransactionRecovery:
    """Recovery of one store's transactions. `StoreFiles` calls it when it opens, writes
    checkpoints, and closes.
    """

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        state_log: CompactedLog,
        partitions: OpenedPartitions,
        checkpoints: OffsetCheckpoints,
        *,
        shared: SharedPage,
        slots: ProcessSlots,
    ) -> None:
        self._coordinator = coordinator
        self._warnings = RepeatedWarnings(_log)  # Of what is tried again.
        self.leaves_open = False  # Transactions whose producers are gone stay open.
        coordinator.end_unknown = self.end_unknown
        self._shared = shared
        self._slots = slots
        self.unresolved_file = UnresolvedTransactions(Path(shared.path).parent, shared.session)
        self._in_file: set[TopicPartition] = set()  # As far as is known here.
        self._is_alone = True  # No other process can have the store open.
        self._lowest_at_close: dict[int, int] | None = None
        self._entries = coordinator.entries
        self._state_log = state_log
        self._partitions = partitions
        self._checkpoints = checkpoints
        # By partition, the decisions by (producer id, epoch of the data), until their markers are
        # there.
        self._decided: dict[TopicPartition, Decisions] = {}
        # The same from then on, until the partition was synced.
        self._ended: dict[TopicPartition, Decisions] = {}
        self._unresolved: set[TopicPartition] = set()
        self.left: set[str] = set()  # Ids that could not be rolled forward yet.
        self._unloaded: dict[str, _Unloaded] = {}
        self._safe: dict[int, int] = {}
        # What was aborted since no coordinator knew of it.
        self.never_decided: list[NeverDecided] = []

    # Opening.

    def recover(self, unrecovered: Iterable[TopicPartition], was_unclean: bool) -> None:
        """Take up what the last life of the store left; the state log is loaded.

        `unrecovered` are the partitions that were not closed cleanly, internal ones too;
        `was_unclean` is True if the last life did not close the store. An error of one transaction
        does not keep the store from being opened: it is logged, and the background tries again.
        """
        if was_unclean and not self._entries.last_life_was_durable():
            self._coordinator.renew_producer_ids()
            self.unresolved_file.note_renewal()
        undecided = self._state_log.undecided_transactions()
        # All of them before the first partition is opened: a transaction that is not known then is
        # aborted.
        for transactional_id in undecided:
            self._load(transactional_id)
        opened = self._judge(undecided, frozenset(unrecovered))
        data = {where for where in unrecovered if where.topic != TRANSACTION_STATE_TOPIC}
        if data:
            # A process that completes these first syncs what they name.
            waiting = {one for one in map(self._waiting_decision, undecided) if one is not None}
            for where in unrecovered:
                if where.topic == TRANSACTION_STATE_TOPIC:
                    self._read_decisions(where, data, waiting)
        self._partitions.watch_recovered(self.resolve)
        for partition in opened:
            self.resolve(partition)
        for transactional_id in undecided:
            self._roll_forward(transactional_id)
        self._open_decided()

    def _judge(
        self, undecided: Iterable[str], unrecovered: frozenset[TopicPartition]
    ) -> list[UnifiedLog]:
        """Make aborts of the commits whose data did not all reach the disk, before anything is
        appended; the partitions that were opened for that. See `docs/commit-journal.md`, section 5.
        """
        self._refuse_unjudged(self._unloaded)  # First: what is open then stays so.
        opened: dict[TopicPartition, UnifiedLog] = {}
        for transactional_id in undecided:
            if transactional_id in self._unloaded:
                continue
            with self._entries.locked(transactional_id) as entry:
                falls_short = self._falls_short(entry, unrecovered, opened)
                _log.debug(
                    "transactional id %r: found %s%s, producer id %d, epoch %d, over %d "
                    "partitions: %s",
                    *(transactional_id, entry.state, " and prepared" if entry.prepared else ""),
                    *(entry.producer_id, entry.data_epoch, len(entry.partitions)),
                    "a log ends below what it names" if falls_short else "no log lacks its data",
                )
                if falls_short:
                    _log.warning(
                        "transactional id %r: the commit of producer id %d, epoch %d, was under "
                        "way when the power went, and its data did not all reach the disk: it is "
                        "aborted",
                        transactional_id,
                        entry.producer_id,
                        entry.data_epoch,
                    )
                    entry.revoke()
                    self._entries.note_append(entry)
        return list(opened.values())

    def _falls_short(
        self,
        entry: TransactionEntry,
        unrecovered: frozenset[TopicPartition],
        opened: dict[TopicPartition, UnifiedLog],
    ) -> bool:
        """True if a log ends below what a decision names. One that cannot be opened now is not
        opened by anybody before the next opening of the store, which judges again.
        """
        refused: dict[TopicPartition, EoslogError] = {}
        for where, topic_id, end in _named_ends(entry.value()):
            if where not in unrecovered:
                continue  # It was closed cleanly since.
            try:
                partition = self._partitions.find_for_transaction(where)
            except EoslogError as refusal:
                refused[where] = refusal
                continue
            if partition is None:
                continue
            opened[where] = partition
            if id_bytes(partition.topic_id) == topic_id and partition.log_end_offset < end:
                return True
        for where, reason in refused.items():
            self._partitions.refuse(where, reason)
        return False

    def _refuse_unjudged(self, transactional_ids: Iterable[str]) -> None:
        """Open no partition that no process has opened to judge a decision which names it."""
        named: set[TopicPartition] = set()
        for transactional_id in transactional_ids:
            record = self._state_log.transaction(transactional_id)
            if record is not None:
                named.update(where for where, _, _ in _named_ends(record.value or b""))
        # Looked at now: who makes a decision in this session opened what it names before.
        for where in named & self._partitions.unrecovered:
            error = StoreFailedError(f"{where} could not be opened to judge a decision")
            self._partitions.refuse(where, error)

    def _waiting_decision(self, transactional_id: str) -> tuple[int, int] | None:
        """Return the producer id and epoch of a decision that is the newest record of its id, and
        names where its logs end.
        """
        record = self._state_log.transaction(transactional_id)
        with suppress(CorruptRecordError):
            fields = decode_transaction_value(b"" if record is None else record.value or b"")
            if fields["ends"] is not None:
                return fields["producer_id"], fields["producer_epoch"]
        return None

    def let_others_in(self) -> None:
        """Let other processes work from now on: everything is taken up."""
        self._is_alone = False
        for where in self._unresolved | set(self._decided):
            self._share(where)

    def join(self) -> None:
        """Take up what is undecided in a store that other processes have open; the state log has
        joined.
        """
        self._is_alone = False
        self._coordinator.had_others = True
        if self.unresolved_file.renews():
            self._coordinator.renew_producer_ids()
        self._learn()
        # Before a partition is opened that this process may be the first to recover.
        undecided = self._state_log.undecided_transactions()
        for transactional_id in undecided:
            self._load(transactional_id)
        self._refuse_unjudged(undecided)
        self._partitions.watch_recovered(self.resolve)
        try:
            self._coordinator.recover_dead_peers()
        except EoslogError as error:
            _log.warning("what dead processes left is looked at later: %s", error)

    def _load(self, transactional_id: str) -> bool:
        """Load the entry; without it, remember the transaction, which must not be touched."""
        try:
            with self._entries.locked(transactional_id):
                self._unloaded.pop(transactional_id, None)
                return True
        except EoslogError as error:
            self._warnings.error(
                "transactional id %r cannot be taken up: %s", transactional_id, error
            )
        record = self._state_log.transaction(transactional_id)
        if record is not None and record.value is not None:
            number = state_partition_of(transactional_id)
            producer_id = int.from_bytes(record.value[2:10], "big", signed=True)
            self._unloaded[transactional_id] = _Unloaded(producer_id, number, record.offset)
        return False

    def _roll_forward(self, transactional_id: str) -> None:
        """Complete a decided transaction, abort an open one that is not prepared."""
        self.left.add(transactional_id)
        if transactional_id in self._unloaded and not self._load(transactional_id):
            return
        try:
            with self._entries.locked(transactional_id) as entry:
                if entry.state == ONGOING and not (entry.prepared or self.leaves_open):
                    # By a later try, a producer may have begun another transaction of the id.
                    if entry.owner is None or not self._slots.alive(entry.owner):
                        self._coordinator.fence(entry, "its process is gone", "dead_process")
                elif entry.state in PREPARE_STATES:
                    _log.debug(
                        "transactional id %r: decided (%s), and not complete: its markers are "
                        "written",
                        *(transactional_id, entry.state),
                    )
                    self._coordinator.complete(entry)
                elif entry.prepared:
                    _log.debug(
                        "transactional id %r: prepared: it waits for its decision", transactional_id
                    )
                if entry.state not in UNDECIDED_STATES or entry.prepared:
                    self.left.discard(transactional_id)
        except EoslogError as error:
            self._warnings.warning(
                "transactional id %r cannot be ended now: %s", transactional_id, error
            )

    def _read_decisions(
        self, state: TopicPartition, data: set[TopicPartition], waiting: set[tuple[int, int]]
    ) -> None:
        """Collect the decisions in a partition of the state log whose markers may be missing.

        Those that name where their logs end, and are the newest of their ids (`waiting`), are not
        among them, nor are copies of them: the coordinator carries these out.
        """
        first = self._checkpoints.recovery_point(state)
        for record in self._state_log.decisions_since(state.partition, first):
            try:
                fields = decode_transaction_value(record.value or b"")
            except CorruptRecordError as error:
                _log.error("%s: the record at offset %d: %s", state, record.offset, error.reason)
                continue
            if fields["ends"] is not None and (
                (fields["producer_id"], fields["producer_epoch"]) in waiting
            ):
                continue
            of_data, decision = decision_of(fields, state.partition, record.offset)
            for place in fields["partitions"] or ():
                where = TopicPartition(*place)
                if where in data:
                    decisions = self._decided.setdefault(where, {})
                    decisions[of_data] = with_older(decision, decisions.get(of_data))

    def _open_decided(self) -> None:
        """Open, and so resolve, the partitions of these decisions: some marker may be missing."""
        for where in sorted(self._decided):
            try:
                if self._partitions.find_for_transaction(where) is None:
                    self._mark_resolved(where, deleted=True)
            except EoslogError as error:
                self._warnings.error(
                    "%s cannot be opened to end its transactions: %s", where, error
                )

    def resolve(self, partition: UnifiedLog) -> None:
        """End what a partition that was just recovered has open, and no coordinator will end.

        Waits for no lock. Where another process may have begun a transaction since, all that is not
        known is left to `retry`, which reads the log.
        """
        where = partition.topic_partition
        if where.topic == TRANSACTION_STATE_TOPIC:
            return
        self._learn()
        if not partition.open_transactions():
            self._mark_resolved(where)
            return
        with self._if_nothing_moves() as nothing_moves:
            if nothing_moves:
                self._resolve_with(partition, self._entries.known())
            else:
                self._mark_unresolved(where)

    def _if_nothing_moves(self) -> AbstractContextManager[bool]:
        """Return a block in which no other process begins a transaction; gives True if it holds."""
        if self._is_alone:
            return nullcontext(True)
        slots = self._slots
        return LockBlock(
            AllKeysHeld(self._shared, if_free=True),
            prepare=lambda held: held and not slots.others() and not slots.dead(),
        )

    def _resolve_with(self, partition: UnifiedLog, known: Iterable[_Known]) -> None:
        where = partition.topic_partition
        try:
            self._resolve(partition, known)
        except EoslogError as error:
            self._warnings.warning(
                "%s: its open transactions will be ended later: %s", where, error
            )
            self._mark_unresolved(where)
        else:
            self._mark_resolved(where)

    def _mark_unresolved(self, where: TopicPartition) -> None:
        self._unresolved.add(where)
        self._share(where)

    def _mark_resolved(self, where: TopicPartition, *, deleted: bool = False) -> None:
        """Note that nothing is left to be ended in the partition, or that its topic was deleted."""
        self._unresolved.discard(where)
        decisions = self._decided.get(where)
        if decisions is not None:
            if not deleted:
                self._ended[where] = decisions  # First: it is never in neither of the two.
            self._decided.pop(where, None)
        self.unresolved_file.forget(where)

    def _share(self, where: TopicPartition) -> None:
        """Note for all processes that the partition is still unresolved."""
        if self._is_alone:
            return
        try:
            self.unresolved_file.note(where, self._decided.get(where, {}))
            self._in_file.add(where)
        except EoslogError as error:
            self._warnings.error(
                "%s: other processes do not know what is open there: %s", where, error
            )

    def _learn(self) -> None:
        """Read what other processes could not resolve, or have resolved since."""
        if self._is_alone:
            return
        unresolved = self.unresolved_file.read()
        for where, decisions in unresolved.items():
            if decisions:
                self._decided.setdefault(where, decisions)
            else:
                self._unresolved.add(where)
        ended = self._in_file - set(unresolved)
        self._in_file = set(unresolved)
        for where in ended:
            self._mark_resolved(where)

    def _resolve(self, partition: UnifiedLog, known: Iterable[_Known]) -> None:
        where = partition.topic_partition
        decided = self._decided.get(where, {})
        for found in partition.open_transactions():
            producer_id, epoch = found.producer_id, found.producer_epoch
            decision = decided.get((producer_id, epoch))
            if is_of_staged_job(where, producer_id):
                decision = Decision(True, epoch + 1, True, -1, -1)
            # One that shares its epoch with those before it may be newer than what was decided.
            may_be_newer = decision is None or not decision.newer_epoch
            if may_be_newer and self._is_known(where, producer_id, epoch, known):
                _log.debug(
                    "%s: the transaction of producer id %d, epoch %d, open since offset %d, is "
                    "left to its coordinator",
                    *(where, producer_id, epoch, found.first_offset),
                )
                continue
            if decision is None:
                # It was known to be complete, if it has lost its marker with the log's end.
                decision = find_decision(self._partitions, where, producer_id, epoch)
            if decision is None and not partition.damage.has_lost_end:
                newer = epoch < EPOCH_MAX
                decision = Decision(False, epoch + 1 if newer else epoch, newer, -1, -1)
                self.never_decided.append(NeverDecided(where, producer_id, epoch))
                _log.warning(
                    "%s: the transaction of producer id %d, epoch %d, open since offset %d, was "
                    "never decided: it is aborted",
                    where,
                    producer_id,
                    epoch,
                    found.first_offset,
                )
            if (
                decision is None
                or decision.commit is None
                or (
                    decision.commit
                    and not decision.newer_epoch
                    and _began_after(found, decision, partition)
                )
            ):
                # It is for a coordinator, or an operator, to decide.
                _log.error(
                    "%s: the transaction of producer id %d, epoch %d, open since offset %d, has no "
                    "decision that is known to be its own: it stays open until an operator ends it",
                    where,
                    producer_id,
                    epoch,
                    found.first_offset,
                )
                continue
            _log.debug(
                "%s: the transaction of producer id %d, epoch %d, open since offset %d, gets its "
                "marker: %s, decided at offset %d of %s-%d",
                *(where, producer_id, epoch, found.first_offset),
                *("commit" if decision.commit else "abort", decision.offset),
                *(TRANSACTION_STATE_TOPIC, decision.state_partition),
            )
            try:
                partition.append_marker(
                    producer_id,
                    decision.marker_epoch,
                    None,
                    decision.commit,
                    newer_epoch=decision.newer_epoch,
                )
            except InvalidProducerEpochError:
                continue  # It has ended.

    def _is_known(
        self, where: TopicPartition, producer_id: int, epoch: int, known: Iterable[_Known]
    ) -> bool:
        """True if the coordinator will end that transaction there. Waits for no lock."""
        if any(unloaded.producer_id == producer_id for unloaded in self._unloaded.values()):
            return True
        for entry in known:
            if entry.producer_id != producer_id or tuple(where) not in entry.partitions:
                continue
            if entry.state == ONGOING and entry.producer_epoch == epoch:
                return True
            if entry.state in PREPARE_STATES and epoch in _decided_epochs(entry):
                return True
        return False

    # While the store is open.

    def retry(self) -> None:
        """Try again what failed when the store was opened."""
        for transactional_id in list(self.left):
            self._roll_forward(transactional_id)
        for one in self._entries.undecided():
            if one.is_decided:
                self._complete(one.transactional_id)
        self.end_unknown()
        self._open_decided()

    def end_unknown(self) -> None:
        """End what partitions have open and no coordinator knows. The caller holds no lock."""
        self._learn()
        for where in list(self._unresolved):
            partition = self._partitions.find_for_transaction(where)
            if partition is None:
                self._mark_resolved(where, deleted=True)
            else:
                with self._entries.standing_still():
                    self._resolve_with(partition, self._entries.undecided())

    def _complete(self, transactional_id: str) -> None:
        try:
            with self._entries.locked(transactional_id) as entry:
                if entry.state in PREPARE_STATES:
                    self._coordinator.complete(entry)
        except EoslogError as error:
            self._warnings.warning(
                "transactional id %r cannot be completed now: %s", transactional_id, error
            )

    def advance(self) -> None:
        """Sync every partition that any process wrote to, and raise the recovery points that a
        checkpoint may name.

        Raises StoreError where a partition cannot be synced; the points are then unchanged.
        """
        self._learn()
        ends = {
            partition.partition: partition.log_end_offset
            for partition in self._partitions.opened()
            if partition.topic == TRANSACTION_STATE_TOPIC
        }
        # After this, a decision below these ends is complete, or among the lowest.
        lowest = self._lowest_decisions(with_ended=True)
        ended = set(self._ended)
        rotated = self._coordinator.take_rotated()
        try:
            if self._had_others():
                # Some partitions may be open only in other processes.
                self._partitions.attach_to_unsynced()
            # Listed only now: a partition may have been opened and written to since.
            for partition in self._partitions.opened():
                if partition.topic != TRANSACTION_STATE_TOPIC:
                    self._sync(partition)
                    if partition.topic_partition in ended:
                        del self._ended[partition.topic_partition]
        except BaseException:
            self._coordinator.give_back_rotated(rotated)
            raise
        for number, end in ends.items():
            self._safe[number] = min(end, lowest.get(number, end))
        self._forget_rotated(rotated)

    def _had_others(self) -> bool:
        """True if another process has the store open, or had it in this session."""
        if self._coordinator.had_others or self._slots.others() or self._slots.dead():
            self._coordinator.had_others = True
        return self._coordinator.had_others

    def _sync(self, partition: UnifiedLog) -> None:
        with suppress(LogClosedError):  # Its topic was deleted.
            partition.sync_up_to(partition.log_end_offset, in_pieces=True)

    def safe_offset(self, number: int) -> int:
        """Return the offset of a state partition below which all decisions have their markers
        synced, as of the last `advance`.
        """
        return self._safe.get(number, 0)

    @property
    def records_behind(self) -> int:
        """Count of the state log's records that the next opening would read after a crash."""
        return sum(
            partition.log_end_offset - self.safe_so_far(partition.topic_partition)
            for partition in self._partitions.opened()
            if partition.topic == TRANSACTION_STATE_TOPIC
        )

    def safe_so_far(self, where: TopicPartition) -> int:
        """The recovery point that a checkpoint of a state partition may name now."""
        safe = self._safe.get(where.partition)
        return self._checkpoints.recovery_point(where) if safe is None else safe

    def _forget_rotated(self, rotated: list[tuple[int, list[TopicPartition]]]) -> None:
        """Drop producer ids that no transaction will have again; all they wrote is synced."""
        for producer_id, partitions in rotated:
            for where in partitions:
                partition = self._partitions.find_for_transaction(where)
                if partition is not None:
                    # First the rows as of now: a replay from older ones needs the id's own.
                    partition.producer_state.persist()
                    partition.producer_state.forget([producer_id])

    def _lowest_decisions(self, with_ended: bool) -> dict[int, int]:
        """Return, by partition of the state log, the lowest decision without all of its markers.

        `with_ended`: or whose markers, written when the store was opened, were not synced since.
        """
        lowest: dict[int, int] = {}

        def note(number: int, offset: int) -> None:
            lowest[number] = min(offset, lowest.get(number, offset))

        for entry in self._entries.known():
            offset = self._entries.read(entry).prepare_offset
            if offset >= 0:
                note(state_partition_of(entry.transactional_id), offset)
        # Of other processes, as far as the log was read: at least to where it ended before.
        for one in self._entries.undecided():
            if one.is_decided:
                note(state_partition_of(one.transactional_id), one.record_offset)
        for unloaded in list(self._unloaded.values()):
            note(unloaded.state_partition, unloaded.offset)
        known = list(self._decided.values())
        if with_ended:
            # After the others: it is never in neither of the two.
            known += self._ended.values()
        for decisions in known:
            for decision in decisions.values():
                note(decision.state_partition, decision.offset)
        return lowest

    def checkpoint(self, where: TopicPartition, offsets: LastOffsets) -> LastOffsets:
        """Return the offsets that a checkpoint may hold of an open partition."""
        if where.topic != TRANSACTION_STATE_TOPIC:
            return offsets
        safe = self.safe_so_far(where)
        return offsets._replace(recovery_point=min(offsets.recovery_point, safe))

    # Closing.

    def prepare_to_close(self) -> None:
        """Prepare to close. The last process calls it, while the state log can still be read."""
        self._learn()
        self._lowest_at_close = self._lowest_decisions(with_ended=False)

    def closed(
        self, offsets: Mapping[TopicPartition, LastOffsets], all_synced: bool
    ) -> dict[TopicPartition, LastOffsets]:
        """Return the offsets that the checkpoints may hold of partitions that were closed.

        `all_synced`: every partition with markers was closed cleanly.
        """
        lowest = self._lowest_at_close
        if lowest is None or not all_synced:
            return {where: self.checkpoint(where, one) for where, one in offsets.items()}
        capped = {}
        for where, one in offsets.items():
            if where.topic == TRANSACTION_STATE_TOPIC:
                low = lowest.get(where.partition, one.recovery_point)
                one = one._replace(recovery_point=min(one.recovery_point, low))
            capped[where] = one
        return capped

    @property
    def unresolved(self) -> frozenset[TopicPartition]:
        """The partitions that the next opening must treat as unrecovered, though they were closed
        cleanly: those that lack the end of a transaction, and those with its decision.
        """
        left = set(self._unresolved) | set(self._decided)
        for decisions in self._decided.values():
            for decision in decisions.values():
                left.add(TopicPartition(TRANSACTION_STATE_TOPIC, decision.state_partition))
        return frozenset(left)


def _named_ends(value: bytes) -> list[tuple[TopicPartition, bytes, int]]:
    """The ends of logs that a commit's record names: of which partition, topic id, offset."""
    try:
        fields = decode_transaction_value(value)
    except CorruptRecordError:
        return []
    if fields["state"] != "PrepareCommit":
        return []
    pairs = zip(fields["partitions"] or (), fields["ends"] or (), strict=False)
    return [(TopicPartition(*place), *end) for place, end in pairs if end[1] > 0]


def _began_after(found: OpenTransaction, decision: Decision, partition: UnifiedLog) -> bool:
    """True if the marker of the decision is in the log before the transaction, which shares the
    epoch of the one that was decided.
    """
    offset = partition.log_start_offset
    while offset < found.first_offset:
        headers = partition.read_headers(offset)
        if not headers:
            break
        for header in headers:
            if (
                header.is_control
                and header.last_offset < found.first_offset
                and header.producer_id == found.producer_id
                and header.producer_epoch == found.producer_epoch
                and header.max_timestamp >= decision.decided_ms
            ):
                return True
        offset = headers[-1].last_offset + 1
    return False


def _decided_epochs(entry: _Known) -> tuple[int, ...]:
    """The epochs that the data of a decided transaction may have."""
    if entry.last_producer_epoch >= 0:
        return (entry.last_producer_epoch,)
    # A record of Kafka's own: by the protocol it has the epoch of the data, or the one after it.
    return (entry.producer_epoch, entry.producer_epoch - 1)
