"""The partitions of a store that are open: each is opened when it is first asked for.

Invariants: a partition is opened once in each process; after an unclean stop it is recovered by the
first that opens it, and counts as unrecovered until that succeeded. A partition of a user's topic
has its directory from the topic's creation on: a missing one is damage. One of an internal topic is
created when first used: its directory, then the file with the topic's id. While a partition's
directory is removed no process opens it. What another process deleted is closed at the next look.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import takewhile

from eoslog.bindings.control_state import ControlState
from eoslog.bindings.lock_block import LockBlock
from eoslog.bindings.opened_log import LogOpening
from eoslog.bindings.shared_page import COUNTER_TOPICS
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.common.topic_name import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
)
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import EoslogError, LogClosedError, StoreError, StoreFailedError
from eoslog.fs.atomic_file import sync_directory
from eoslog.fs.file_lock import directory_locked
from eoslog.fs.identity_files import PARTITION_METADATA, id_bytes
from eoslog.fs.os_errors import named_os_errors
from eoslog.storage.damage import CutTail, misnamed_segment
from eoslog.storage.lmdb_environment import StateStoreDamagedError
from eoslog.storage.log_opener import LogOpener
from eoslog.storage.offset_checkpoints import LastOffsets, last_offsets
from eoslog.storage.partition_directory import (
    check_identity,
    is_directory,
    is_unused,
    make_partition_directory,
    page_of,
    partitions_with_pages,
    remove_partition_files,
    synced_by_page_alone,
)
from eoslog.storage.producer_id_range import STAGED_PRODUCER_ID_MIN, FoundProducerIds
from eoslog.storage.producer_rows import ProducerRows, highest_producer_ids
from eoslog.storage.topic_registry import (
    INTERNAL_TOPIC_PARTITIONS,
    TopicDescription,
    TopicRegistry,
    settings_of,
)
from eoslog.storage.unified_log import UnifiedLog

_log = logging.getLogger(__name__)

# Rows that another process stored so few records ago need not be stored again.
ROWS_BEHIND_MAX = 100_000
# For so long a close begins to recover what no process opened since an unclean stop.
RECOVERY_AT_CLOSE_S = 0.5


class OpenedPartitions:
    """Opens partitions, remembers which are open, and closes them."""

    def __init__(
        self,
        opener: LogOpener,
        registry: TopicRegistry,
        topic_defaults: Mapping[str, int],
        found_ids: FoundProducerIds,
        check_files: Callable[[], None],
    ) -> None:
        """`check_files` raises where the store's files are not those that were opened any more."""
        self._check_files = check_files
        self._opener = opener
        self._paths = opener.paths
        self._registry = registry
        self._topic_defaults = topic_defaults
        self.found_ids = found_ids
        self._lock = threading.RLock()
        self._opened: dict[TopicPartition, UnifiedLog] = {}
        self._being_opened: dict[TopicPartition, ThreadLock] = {}
        self._unrecovered: set[TopicPartition] = set()
        self._refused: dict[TopicPartition, str] = {}
        self._closed_because: StoreError | None = None
        self._deleted: set[str] = set()  # Topics that others deleted; until they were taken.
        self._topics_count = self._departures = self._alterations = -1
        self._on_loaded: Callable[[UnifiedLog], None] | None = None
        self._on_opened: Callable[[UnifiedLog], None] | None = None
        self._on_restored: Callable[[UnifiedLog], None] | None = None
        self._on_recovered: Callable[[UnifiedLog], None] | None = None
        self.cut_bytes = 0
        self.cuts: list[CutTail] = []
        self.closed_offsets: dict[TopicPartition, LastOffsets] = {}

    @property
    def _follows(self) -> bool:
        """True if the store is only read, beside the processes that have it open."""
        overlay = self._opener.overlay
        return overlay is not None and overlay.followed is not None

    def recover_all(self) -> None:
        """The stop was unclean: whatever there is has to be recovered when it is opened."""
        for topic in self._registry.all():
            self._unrecovered.update(
                where
                for where in topic.topic_partitions()
                if not topic.internal or self._paths.partition(where).is_dir()
            )

    def recover_some(self, unrecovered: Iterable[TopicPartition]) -> None:
        """Note partitions that were not opened since an earlier unclean stop."""
        self._unrecovered.update(unrecovered)
        self._departures = -1  # Those of topics that are gone are to be dropped.

    def watch_restored(self, on_restored: Callable[[UnifiedLog], None]) -> None:
        """Call `on_restored` with each partition that this process opens and no other one has open,
        before anybody reads it or appends to it. Called like `on_recovered`, and before that.
        """
        self._on_restored = on_restored

    def watch_recovered(self, on_recovered: Callable[[UnifiedLog], None]) -> None:
        """Call `on_recovered` with each partition that is recovered, or was found to have lost its
        end, before anybody reads it.

        Called with the lock held under which partitions are opened: it may wait for no other.
        """
        self._on_recovered = on_recovered

    def watch_opened(self, on_opened: Callable[[UnifiedLog], None]) -> None:
        """Call `on_opened` with each partition that is open or will be opened, which an error of it
        keeps from being opened.
        """
        with self._lock:
            self._on_opened = on_opened
            for partition in self._opened.values():
                on_opened(partition)

    def watch_loaded(self, on_loaded: Callable[[UnifiedLog], None]) -> None:
        """Call `on_loaded` with each partition of a user's topic that this process opens and no
        other one has open, before its opener has it. No lock is held for that.
        """
        with self._lock:
            self._on_loaded = on_loaded
            loaded = list(self._opened.values())
        for partition in loaded:
            self._loaded(partition)

    @property
    def unrecovered(self) -> frozenset[TopicPartition]:
        """The partitions that no process opened since an unclean stop."""
        with self._lock:
            return frozenset(
                where for where in self._unrecovered if self._state_of_session(where) is None
            )

    def opened(self) -> list[UnifiedLog]:
        """The partitions that are open now, internal ones too."""
        self.follow_topics()
        with self._lock:
            return list(self._opened.values())

    def find(self, where: TopicPartition) -> UnifiedLog | None:
        """The partition of a user's topic, opened; None if there is no such topic or partition."""
        while True:
            self.follow_topics()
            partition = self._opened.get(where)
            if partition is not None:
                return None if where.topic in INTERNAL_TOPICS else partition
            topic = self._registry.get(where.topic)
            if topic is None or topic.internal or not 0 <= where.partition < topic.partitions:
                return None
            try:
                return self._open(topic, where)
            except LogClosedError:
                if not self._was_deleted(topic):
                    raise

    def find_for_transaction(self, where: TopicPartition) -> UnifiedLog | None:
        """Find a partition like `find`, and the partitions of groups' offsets too, which are made
        if need be.
        """
        if where.topic == CONSUMER_OFFSETS_TOPIC:
            return self.offsets_partition(where.partition)
        return self.find(where)

    def existing_state_partitions(self) -> list[int]:
        """Return the partitions of `__transaction_state` that have a directory."""
        return self.existing_internal_partitions(TRANSACTION_STATE_TOPIC)

    def state_partition(self, number: int) -> UnifiedLog:
        """Return a partition of `__transaction_state`, opened; it is made if it is not there."""
        return self.internal_partition(TRANSACTION_STATE_TOPIC, number)

    def existing_offsets_partitions(self) -> list[int]:
        """Return the partitions of `__consumer_offsets` that have a directory."""
        return self.existing_internal_partitions(CONSUMER_OFFSETS_TOPIC)

    def offsets_partition(self, number: int) -> UnifiedLog:
        """Return a partition of `__consumer_offsets`, opened; it is made if it is not there."""
        return self.internal_partition(CONSUMER_OFFSETS_TOPIC, number)

    def existing_internal_partitions(self, topic_name: str) -> list[int]:
        """Return the partitions of an internal topic that have a directory."""
        numbers = range(INTERNAL_TOPIC_PARTITIONS)
        if self._follows:
            # Those that are made: the directory comes first, then this file.
            root = self._paths.shown
            with named_os_errors(f"looking at {root}"):
                found = (root / f"{topic_name}-{number}" / PARTITION_METADATA for number in numbers)
                return [number for number, path in enumerate(found) if path.exists()]
        prefix = str(self._paths.partition(TopicPartition(topic_name, 0)))[:-1]
        with named_os_errors(f"looking at {prefix}*"):
            # Each opening asks for all of them: fifty paths would cost more than the looks.
            return [number for number in numbers if is_directory(f"{prefix}{number}")]

    def closed_end(self, where: TopicPartition) -> int | None:
        """Return where a cleanly closed log ends, by its page; None if that does not say."""
        state = page_of(self._paths, where)
        return state.log_end_offset if state is not None and state.sealed else None

    def has_files(self, where: TopicPartition) -> bool:
        """Return True if a partition, of any topic, has a directory."""
        path = str(self._paths.partition(where))
        with named_os_errors(f"looking at {path}"):
            return is_directory(path)

    def internal_partition(self, topic_name: str, number: int) -> UnifiedLog:
        """Return a partition of an internal topic, opened; it is made if it is not there."""
        where = TopicPartition(topic_name, number)
        partition = self._opened.get(where)
        if partition is not None:
            return partition
        with self._lock:
            topic = self._registry.get(topic_name)
            # Another process may be about to make it, and who made it may not have synced its name.
            if topic is None or is_unused(self._paths.partition(where)):
                topic = self._make_internal(where)
            return self._open(topic, where)

    def _make_internal(self, where: TopicPartition) -> TopicDescription:
        with self._registry.making_partition(where.topic, INTERNAL_TOPIC_PARTITIONS) as topic:
            if not self.has_files(where):
                self._opener.checkpoints.note_if_lost(
                    where, synced_by_page_alone(self._paths, where)
                )
                make_partition_directory(self._paths, where, topic.topic_id)
            sync_directory(self._paths.root)
            return topic

    def find_of_any_topic(self, where: TopicPartition) -> UnifiedLog | None:
        """Find a partition like `find`, and those of internal topics too."""
        if where.topic not in INTERNAL_TOPICS:
            return self.find(where)
        return self.internal_partition(where.topic, where.partition)

    def if_open(self, where: TopicPartition) -> UnifiedLog | None:
        """The partition if it is open, an internal one too."""
        self.follow_topics()
        return self._opened.get(where)

    def with_transactions(self, topic: str | None, partition: int | None) -> Iterator[UnifiedLog]:
        """Every partition that transactions may be open in, of all topics or of one; opened."""
        for one in self._registry.all():
            if one.name == TRANSACTION_STATE_TOPIC or topic not in (None, one.name):
                continue
            for where in one.topic_partitions():
                if partition not in (None, where.partition) or not self.has_files(where):
                    continue
                found = self.find_for_transaction(where)
                if found is not None:
                    yield found

    def find_producer_ids(self) -> None:
        """Note the producer ids that the partitions hold.

        LMDB has those of every partition that the store wrote to. One that neither LMDB nor a page
        of an earlier session has came from elsewhere: it is opened, which reads its newest
        snapshot and the batches after it.
        """
        try:
            known = highest_producer_ids(self._opener.lmdb, STAGED_PRODUCER_ID_MIN)
        except StateStoreDamagedError:
            known = {}  # It was re-created, and is empty.
        for highest in known.values():
            self.found_ids.note(highest)
        for topic in self._registry.all():
            identity = id_bytes(topic.topic_id)
            for where in topic.topic_partitions():
                if (
                    (identity, where.partition) not in known
                    and where.topic != TRANSACTION_STATE_TOPIC  # It has no producers.
                    and where not in self._opened
                    and self._came_from_elsewhere(where, identity)
                ):
                    self._find_producer_ids_of(topic, where)

    def _came_from_elsewhere(self, where: TopicPartition, identity: bytes) -> bool:
        if not self.has_files(where) or is_unused(self._paths.partition(where)):
            return False
        state = page_of(self._paths, where)
        return state is None or state.topic_id != identity

    def _find_producer_ids_of(self, topic: TopicDescription, where: TopicPartition) -> None:
        try:
            self._open(topic, where)
        except LogClosedError:
            if not self._was_deleted(topic):
                raise
        except EoslogError as error:
            # It cannot be written to either.
            _log.error("%s: its producer ids are not known: %s", where, error)

    def config_of(self, topic: TopicDescription) -> dict[str, int]:
        """A topic's settings: its own, else the store's, else the defaults."""
        return settings_of(topic, self._topic_defaults)

    # Removing.

    def remove(self, topic: TopicDescription) -> None:
        """Close the partitions of a topic in all processes and remove all their files; durable on
        return. The topic does not exist any more, and no other process removes it.
        """
        partitions = topic.topic_partitions()
        for where in partitions:
            with self._lock, self._opening(where), self._directory_locked(where):
                self._mark_deleted(topic, where)
                remove_partition_files(self._paths, where)
        # Last: a process that had it open may have written rows until then.
        for where in partitions:
            ProducerRows(self._opener.lmdb, topic.topic_id, where.partition).delete_all()
        self._opener.checkpoints.forget(partitions)
        sync_directory(self._paths.root)

    def _mark_deleted(self, topic: TopicDescription, where: TopicPartition) -> None:
        """Close the partition here, and let no other process do anything with it any more."""
        self._let_go_of_earlier(topic, where)
        partition = self._opened.pop(where, None)
        self._unrecovered.discard(where)
        state = self._state_of_session(where)
        with LogOpening() as opening:
            if partition is None and state is not None and not state.deleted:
                try:
                    partition = self._opener.open(
                        topic, where, self.config_of(topic), clean=True, opening=opening
                    )
                except (EoslogError, OSError) as error:
                    # Its users meet the missing files instead.
                    _log.warning("%s: other processes do not notice its deletion: %s", where, error)
            if partition is not None:
                with suppress(LogClosedError):
                    partition.mark_deleted()
                partition.close(clean=False)

    def refuse(self, where: TopicPartition, error: EoslogError) -> None:
        """Open the partition no more in this process: a recovery has to see it before others do."""
        _log.error("%s is not opened before the store is opened again: %s", where, error)
        with self._lock:
            self._refused[where] = str(error)

    def take_deleted(self) -> set[str]:
        """Return the topics that other processes have deleted since the last call."""
        self.follow_topics()
        with self._lock:
            deleted, self._deleted = self._deleted, set()
        return {name for name in deleted if self._registry.get(name) is None}

    def follow_topics(self) -> None:
        """Let go of the partitions that another process deleted, and take settings that it altered.
        Cheap where no topic changed.
        """
        if self._opener.shared.counter(COUNTER_TOPICS) != self._topics_count:
            self._take_changes()

    def _let_go_of_earlier(self, topic: TopicDescription, where: TopicPartition) -> None:
        """Let go of the partition of the name's earlier topic, which another process deleted since
        the last look.
        """
        partition = self._opened.get(where)
        if partition is not None and partition.topic_id != topic.topic_id:
            self._let_go_of(where, partition)

    def _let_go_of(self, where: TopicPartition, partition: UnifiedLog) -> None:
        # In this order: what an interrupt leaves undone, the next look does.
        self._deleted.add(where.topic)
        partition.close(clean=False)
        self._opened.pop(where, None)

    def _take_changes(self) -> None:
        with self._lock:
            # First: what changes from here on is seen with the next look.
            count = self._opener.shared.counter(COUNTER_TOPICS)
            is_any = self._opened or self._unrecovered
            if is_any and (alterations := self._registry.alterations) != self._alterations:
                for partition in self._opened.values():
                    self._take_settings(partition)
                self._alterations = alterations
            if is_any and (departures := self._registry.departures) != self._departures:
                for where, partition in list(self._opened.items()):
                    topic = self._registry.get(where.topic)
                    if topic is None or topic.topic_id != partition.topic_id:
                        self._let_go_of(where, partition)
                self._unrecovered = {
                    where
                    for where in self._unrecovered
                    if self._registry.get(where.topic) is not None
                }
                self._departures = departures
            self._topics_count = count

    def _take_settings(self, partition: UnifiedLog) -> None:
        topic = self._registry.get(partition.topic)
        if (
            topic is not None
            and topic.topic_id == partition.topic_id
            and topic.config != partition.topic_config
        ):
            with suppress(LogClosedError):
                self._opener.alter(partition, topic, self.config_of(topic))

    # What other processes have open.

    def open_what_others_opened(self, *, internal: bool) -> list[EoslogError]:
        """Open what a process of the session opened and did not close cleanly: no other process is
        left to close it. Return the errors.
        """
        return self._open_each(
            where
            for where, state in self._states_of_session()
            if (where.topic in INTERNAL_TOPICS) is internal and not state.sealed
        )

    def attach_to_unsynced(self) -> None:
        """Open what other processes have open and wrote to, and what is not synced of that.

        Raises the first error; the others are open then.
        """
        errors = self._open_unsynced()
        if errors:
            raise errors[0]

    def _open_unsynced(self) -> list[EoslogError]:
        return self._open_each(
            where
            for where, state in self._states_of_session()
            if not state.sealed and state.recovery_point < state.log_end_offset
        )

    def sync_all(self) -> list[EoslogError]:
        """Put on the disk what any process appended; what went wrong with any partition."""
        errors = self._open_unsynced()
        for partition in self.opened():
            try:
                partition.sync_up_to(partition.log_end_offset)
            except LogClosedError:
                pass  # It was deleted, or the store was closed.
            except EoslogError as error:
                errors.append(error)
        return errors

    def recover_rest(self) -> None:
        """Recover what no process opened since an unclean stop, at a close by the last process.

        So those logs end with their last batch too, as Kafka's tools expect. What there is no time
        for, and what cannot be recovered, stays unrecovered.
        """
        until_s = time.monotonic() + RECOVERY_AT_CLOSE_S
        wanted = takewhile(lambda _: time.monotonic() < until_s, sorted(self.unrecovered))
        for error in self._open_each(wanted):
            _log.warning("left to the next opening: %s", error)

    def open_held(self) -> list[EoslogError]:
        """Open what readers are held in by a process of the session, or were by one that died."""
        return self._open_each(
            where for where, state in self._states_of_session() if state.hold_offset >= 0
        )

    def _open_each(self, wanted: Iterable[TopicPartition]) -> list[EoslogError]:
        errors: list[EoslogError] = []
        for where in wanted:
            topic = self._registry.get(where.topic)
            if topic is None or not 0 <= where.partition < topic.partitions:
                continue  # It was deleted.
            try:
                self._open(topic, where)
            except LogClosedError:
                continue  # It is being deleted.
            except EoslogError as error:
                errors.append(error)
        return errors

    def _states_of_session(self) -> list[tuple[TopicPartition, ControlState]]:
        """Return the states of what any process opened in this session, and is not open here."""
        # What is open here of a topic that was deleted must not hide what is open of a new one.
        self.follow_topics()
        pages = partitions_with_pages(self._paths)
        states = [(one, self._state_of_session(one)) for one in pages if one not in self._opened]
        return [(one, state) for one, state in states if state is not None and not state.deleted]

    def _state_of_session(self, where: TopicPartition) -> ControlState | None:
        """Return the partition's page, if it was opened in this session."""
        state = page_of(self._paths, where)
        if state is None or state.session != self._opener.session or not state.ready:
            return None
        return state

    # Closing.

    def detach(self, sync: bool) -> list[EoslogError]:
        """Let go of everything; other processes go on with it. What went wrong with any of them.

        Their rows in LMDB are brought up to what this process knows. With `sync` everything
        appended is on the disk.
        """
        errors: list[EoslogError] = []
        for partition in self.opened():
            try:
                if sync and not partition.failed:
                    partition.sync_up_to(partition.log_end_offset)
                if not partition.failed:
                    partition.producer_state.persist(behind_max=ROWS_BEHIND_MAX)
            except LogClosedError:
                pass  # It was deleted.
            except EoslogError as error:
                errors.append(error)
            partition.detach()
        return errors

    def close_cleanly(self, *, internal: bool) -> list[EoslogError]:
        """Close the users' partitions, or the internal ones; what went wrong with any of them."""
        errors: list[EoslogError] = []
        for partition in self.opened():
            if (partition.topic in INTERNAL_TOPICS) is not internal:
                continue
            try:
                if partition.failed:
                    partition.close(clean=False)
                    errors.append(
                        StoreError(
                            f"{partition.topic_partition}: a sync or its recovery failed; it needs "
                            "recovery"
                        )
                    )
                    continue
                partition.producer_state.persist()
                offsets = last_offsets(partition)
                where = partition.topic_partition
                with named_os_errors(f"closing {where}"):
                    partition.close()
                point = partition.recovery_point
                self.closed_offsets[where] = offsets._replace(
                    recovery_point=point, flushed_up_to=point
                )
            except EoslogError as error:
                errors.append(error)
                partition.close(clean=False)
        return errors

    def stop(self) -> None:
        """Refuse to open further partitions."""
        with self._lock:
            if self._closed_because is None:
                self._closed_because = LogClosedError("the store is closed")

    def give_up(self, error: StoreError) -> None:
        """Close everything as it is: every call raises `error` from now on."""
        with self._lock:
            self._closed_because = error
        for partition in list(self._opened.values()):
            partition.give_up(error)

    def abandon(self) -> None:
        """Close everything as it is: the next opening recovers it."""
        self.stop()
        for partition in self.opened():
            partition.close(clean=False)

    def leave_to_parent(self) -> None:
        """Touch nothing any more: this is a forked child."""
        self._closed_because = LogClosedError("the store is the parent process's")
        for partition in self._opened.values():
            partition.leave_to_parent()

    # Opening.

    def _open(self, topic: TopicDescription, where: TopicPartition) -> UnifiedLog:
        before = self._opened.get(where)
        with self._paths.errors_as_shown():
            partition = self._open_locked(topic, where)
        if partition is not before:
            self._loaded(partition)
        return partition

    def _loaded(self, partition: UnifiedLog) -> None:
        """Report a partition that was opened, here first: another process would have seen to it."""
        is_users = partition.topic not in INTERNAL_TOPICS
        if self._on_loaded is not None and is_users and not partition.attached:
            self._on_loaded(partition)

    def _open_locked(self, topic: TopicDescription, where: TopicPartition) -> UnifiedLog:
        with self._lock:
            self._let_go_of_earlier(topic, where)
            partition = self._opened.get(where)
            if partition is not None:
                return partition
            if self._closed_because is not None:
                raise type(self._closed_because)(*self._closed_because.args)
            if where in self._refused:
                raise StoreFailedError(
                    f"{where} is needed to judge a commit that was under way when the power went, "
                    f"and could not be opened: {self._refused[where]}. Open the store again"
                )
            with self._opening(where), self._directory_locked(where), LogOpening() as opening:
                self._check_topic(topic)
                check_identity(self._paths.partition(where), topic.name, topic.topic_id)
                unknown = not self._follows and self._opener.holes.is_unknown(topic, where)
                clean = where not in self._unrecovered and not unknown
                began_s = time.monotonic()
                recovery_point = self._opener.checkpoints.recovery_point(where)
                try:
                    partition = self._opener.open(
                        topic, where, self.config_of(topic), clean=clean, opening=opening
                    )
                except EoslogError:
                    if self._follows:
                        self._check_topic(topic)  # No lock keeps its files here.
                    raise
                if unknown and not partition.attached:
                    with named_os_errors(f"opening {where}"):
                        self._opener.holes.look(topic, where, partition.log)
                self._restore(partition, clean)
                _log.debug(
                    "%s: opened, offsets %d to %d: %s",
                    *(where, partition.log_start_offset, partition.log_end_offset),
                    "other processes have it open"
                    if partition.attached
                    else "it was closed cleanly"
                    if clean
                    else f"verified from recovery point {recovery_point} on",
                )
                if not clean and not partition.attached:
                    self._opener.counters.add("partitions_recovered")
                    self._opener.counters.add("cut_bytes", partition.cut_bytes)
                    _log.info(
                        "%s: recovered after an unclean stop in %.3f s: offsets %d to %d, %d bytes "
                        "cut off",
                        *(where, time.monotonic() - began_s, partition.log_start_offset),
                        *(partition.log_end_offset, partition.cut_bytes),
                    )
                if self._on_opened is not None:
                    self._on_opened(partition)
                self._take_settings(partition)  # They may have been altered just now.
                self._opened[where] = partition
            return partition

    def _opening(self, where: TopicPartition) -> LockBlock[None]:
        """Return a block in which no other thread opens the partition or removes its directory.

        Raises ConcurrentAccessError for a thread that is in it. The caller holds the lock.
        """
        being_opened = self._being_opened.setdefault(where, ThreadLock())
        return LockBlock(
            being_opened,
            prepare=lambda _: self._check_files(),
            # Or names that come and go would gather.
            finish=partial(self._being_opened.pop, where, None),
        )

    def _directory_locked(self, where: TopicPartition) -> AbstractContextManager[object]:
        """Return the same for other processes, in an `_opening` block."""
        # A missing directory is reported by what looks for it next.
        with suppress(FileNotFoundError):
            return directory_locked(self._paths.partition(where))
        return nullcontext()

    def _was_deleted(self, topic: TopicDescription) -> bool:
        """True if it does not exist any more; there may be a new one of the name."""
        now = self._registry.get(topic.name)
        return now is None or now.topic_id != topic.topic_id

    def _check_topic(self, topic: TopicDescription) -> None:
        if self._was_deleted(topic):
            raise LogClosedError(f"topic {topic.name} was deleted")

    def _restore(self, partition: UnifiedLog, clean: bool) -> None:
        """Restore the producers of a partition whose log is open, and what comes with recovery."""
        where = partition.topic_partition
        with named_os_errors(f"opening {where}"):
            partition.producer_state.restore()
        if partition.attached:
            self._unrecovered.discard(where)  # Another process saw to it.
            return
        if partition.producer_state.restored_from != "rows":
            self.found_ids.note(partition.log.highest_producer_id(STAGED_PRODUCER_ID_MIN))
        try:
            partition.producer_state.save_lost_copy()
        except StoreError as error:
            # A full disk must not keep the log from being read.
            _log.warning("%s: no second copy of its producers: %s", where, error)
        else:
            delete_leftovers(partition)
        if self._on_restored is not None:
            self._on_restored(partition)
        self._report_cut(partition)
        self._unrecovered.discard(where)
        # A marker may be among what is lost, whatever the stop was.
        if (not clean or partition.damage.has_lost_end) and self._on_recovered is not None:
            self._on_recovered(partition)

    def _report_cut(self, partition: UnifiedLog) -> None:
        where = partition.topic_partition
        if partition.cut_bytes:
            self.cut_bytes += partition.cut_bytes
            kept, end = self._paths.cut_of(where), partition.log_end_offset
            is_read = self._opener.overlay is not None  # The bytes stay where they are.
            self.cuts.append(CutTail(where, partition.cut_bytes, end, None if is_read else kept))
            _log.log(
                logging.INFO if is_read else logging.WARNING,
                "%s: recovery cut %d bytes off after offset %d%s",
                *(where, partition.cut_bytes, end, "" if is_read else f"; they are kept in {kept}"),
            )
            if end == partition.log_start_offset:
                partition.damage.note(misnamed_segment(kept, end))
        if partition.failed:
            _log.error(
                "%s: there is no room to keep what recovery has to cut off after offset %d: until "
                "the store is opened with room for it, the log is read up to there, and takes no "
                "appends",
                where,
                partition.log_end_offset,
            )


def delete_leftovers(partition: UnifiedLog) -> None:
    """Delete the segments that a deletion of records left, which a crash ended, or which a backup
    kept. Those of internal topics go with the next compaction.
    """
    start = partition.log_start_offset
    if partition.topic in INTERNAL_TOPICS or not partition.has_segments_below(start):
        return
    try:
        partition.sync_up_to(partition.log_end_offset)
        partition.producer_state.save_copies()
        partition.delete_below(start)
    except StoreError as error:
        _log.warning(
            "%s: segments below offset %d are left: %s", partition.topic_partition, start, error
        )
