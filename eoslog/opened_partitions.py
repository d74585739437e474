"""The partitions of a store that are open: each is opened when it is first asked for.

Invariants: a partition is opened once; after an unclean stop it is recovered then, and counts as
unrecovered until that succeeded. A partition of a user's topic has its directory from the topic's
creation on: where it is gone, that is damage. One of an internal topic is made when first used.
"""

import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from eoslog.append_signal import AppendSignal
from eoslog.atomic_file import sync_directory
from eoslog.bindings.partition_log import PartitionLog
from eoslog.config import TOPIC_SETTINGS
from eoslog.durability import Durability
from eoslog.errors import CorruptRecordError, EoslogError, LogClosedError, StoreError
from eoslog.group_offsets_index import GroupOffsetsIndex
from eoslog.offset_checkpoints import LastOffsets, OffsetCheckpoints, last_offsets
from eoslog.os_errors import named_os_errors
from eoslog.partition import Partition
from eoslog.partition_metadata import FILE_NAME as PARTITION_METADATA
from eoslog.partition_metadata import read_partition_metadata, write_partition_metadata
from eoslog.producer_state_store import ProducerStateStore
from eoslog.store_paths import StorePaths
from eoslog.topic_name import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from eoslog.topic_partition import TopicPartition
from eoslog.topic_registry import (
    INTERNAL_TOPIC_PARTITIONS,
    TopicDescription,
    TopicRegistry,
    new_topic,
)

_log = logging.getLogger(__name__)

# How large the pages are that a segment is filled with ahead of its batches. A sync writes whole
# pages, so they are small where each append is synced, and large where bulk speed is all.
_FILL_BYTES: dict[Durability, int] = {"always": 1 << 16, "commit": 1 << 16, "process": 1 << 20}
# Of the internal topics a commit syncs a record or two at a time.
_INTERNAL_FILL_BYTES = 1 << 14
# Kafka's segment size of its own state topics. A record may be a job's whole manifest.
_INTERNAL_TOPIC_CONFIG = {"segment.bytes": 104_857_600, "max.message.bytes": 67_108_864}


class OpenedPartitions:
    """Opens partitions, remembers which are open, and closes them."""

    def __init__(
        self,
        paths: StorePaths,
        registry: TopicRegistry,
        checkpoints: OffsetCheckpoints,
        rows: ProducerStateStore,
        config: Mapping[str, int],
        topic_defaults: Mapping[str, int],
        durability: Durability,
        signal: AppendSignal,
    ) -> None:
        self._paths = paths
        self._registry = registry
        self._checkpoints = checkpoints
        self._rows = rows
        self._group_rows = GroupOffsetsIndex(rows)
        self._config = config
        self._topic_defaults = topic_defaults
        self._durability = durability
        self._signal = signal
        self._lock = threading.RLock()
        self._opened: dict[TopicPartition, Partition] = {}
        self._unrecovered: set[TopicPartition] = set()
        self._closed = False
        self._on_opened: Callable[[Partition], None] | None = None
        self._on_recovered: Callable[[Partition], None] | None = None
        self.cut_bytes = 0
        self.closed_offsets: dict[TopicPartition, LastOffsets] = {}

    def recover_all(self) -> None:
        """The stop was unclean: whatever there is has to be recovered when it is opened."""
        for topic in self._registry.all():
            self._unrecovered.update(
                where
                for where in topic.topic_partitions()
                if not topic.internal or self._paths.partition(where).is_dir()
            )

    def recover_some(self, unrecovered: Iterable[TopicPartition]) -> None:
        """These were not opened since an earlier unclean stop."""
        self._unrecovered.update(unrecovered)

    def watch_recovered(self, on_recovered: Callable[[Partition], None]) -> None:
        """Call `on_recovered` with each partition that is recovered, before anybody reads it.

        Called with the lock held under which partitions are opened: it may wait for no other.
        """
        self._on_recovered = on_recovered

    def watch_opened(self, on_opened: Callable[[Partition], None]) -> None:
        """Call `on_opened` with each partition that is open or will be opened."""
        with self._lock:
            self._on_opened = on_opened
            for partition in self._opened.values():
                on_opened(partition)

    @property
    def unrecovered(self) -> frozenset[TopicPartition]:
        """The partitions that were not opened since an unclean stop."""
        with self._lock:
            return frozenset(self._unrecovered)

    def opened(self) -> list[Partition]:
        """The partitions that are open now, internal ones too."""
        with self._lock:
            return list(self._opened.values())

    def find(self, where: TopicPartition) -> Partition | None:
        """The partition of a user's topic, opened; None if there is no such topic or partition."""
        partition = self._opened.get(where)
        if partition is not None:
            return None if where.topic in INTERNAL_TOPICS else partition
        topic = self._registry.get(where.topic)
        if topic is None or topic.internal or not 0 <= where.partition < topic.partitions:
            return None
        return self._open(topic, where)

    def find_for_transaction(self, where: TopicPartition) -> Partition | None:
        """As `find`, and the partitions of groups' offsets too, which are made if need be."""
        if where.topic == CONSUMER_OFFSETS_TOPIC:
            return self.offsets_partition(where.partition)
        return self.find(where)

    def if_open(self, where: TopicPartition) -> Partition | None:
        """The partition if it is open, an internal one too."""
        return self._opened.get(where)

    def with_transactions(self, topic: str | None, partition: int | None) -> Iterator[Partition]:
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

    def config_of(self, topic: TopicDescription) -> dict[str, int]:
        """A topic's settings: its own, else the store's, else the defaults."""
        defaults = {name: int(setting.default) for name, setting in TOPIC_SETTINGS.items()}
        config = {**defaults, **self._topic_defaults, **topic.config}
        if topic.internal:
            config = {**defaults, **_INTERNAL_TOPIC_CONFIG}
        # A batch has to fit into a segment.
        config["max.message.bytes"] = min(config["max.message.bytes"], config["segment.bytes"])
        return config

    def has_files(self, where: TopicPartition) -> bool:
        """Whether the partition has a directory."""
        return self._paths.partition(where).is_dir()

    # The internal logs' partitions.

    def existing_state_partitions(self) -> list[int]:
        """The partitions of `__transaction_state` that have a directory."""
        return self.existing_internal_partitions(TRANSACTION_STATE_TOPIC)

    def state_partition(self, number: int) -> Partition:
        """A partition of `__transaction_state`, opened, and made if it is not there."""
        return self.internal_partition(TRANSACTION_STATE_TOPIC, number)

    def existing_offsets_partitions(self) -> list[int]:
        """The partitions of `__consumer_offsets` that have a directory."""
        return self.existing_internal_partitions(CONSUMER_OFFSETS_TOPIC)

    def offsets_partition(self, number: int) -> Partition:
        """A partition of `__consumer_offsets`, opened, and made if it is not there."""
        return self.internal_partition(CONSUMER_OFFSETS_TOPIC, number)

    def existing_internal_partitions(self, topic_name: str) -> list[int]:
        """The partitions of an internal topic that have a directory."""
        numbers = range(INTERNAL_TOPIC_PARTITIONS)
        return [one for one in numbers if self.has_files(TopicPartition(topic_name, one))]

    def internal_partition(self, topic_name: str, number: int) -> Partition:
        """A partition of an internal topic, opened, and made if it is not there."""
        where = TopicPartition(topic_name, number)
        partition = self._opened.get(where)
        if partition is not None:
            return partition
        with self._lock:
            topic = self._registry.get(topic_name)
            if topic is None:
                topic = new_topic(topic_name, INTERNAL_TOPIC_PARTITIONS, {})
                self._registry.add(topic)
            if not self.has_files(where):
                self.make_directory(where, topic.topic_id)
                sync_directory(self._paths.root)
            return self._open(topic, where)

    # Making and removing what a partition has on disk.

    def make_directory(self, where: TopicPartition, topic_id: str) -> None:
        """Make a partition's directory with its metadata; its own entry is the caller's to sync.

        Raises StoreError if files are in the way that belong to no topic.
        """
        path = self._paths.partition(where)
        with named_os_errors(f"creating {path}"):
            if path.exists():
                # A creation that was cut short may have left it.
                foreign = [
                    name.name
                    for name in path.iterdir()
                    if not name.name.startswith(PARTITION_METADATA)
                ]
                if foreign:
                    raise StoreError(
                        f"{path} is in the way: it belongs to no topic and holds {foreign[0]!r}"
                    )
            path.mkdir(exist_ok=True)
        write_partition_metadata(path, topic_id)

    def sync_directories(self) -> None:
        """Make the partitions' directories durable after they were made."""
        sync_directory(self._paths.root)

    def remove(self, topic: TopicDescription) -> None:
        """Close the partitions of a topic and remove all their files; durable on return."""
        partitions = topic.topic_partitions()
        with self._lock:
            for where in partitions:
                partition = self._opened.pop(where, None)
                if partition is not None:
                    partition.close(clean=False)
                self._unrecovered.discard(where)
        for where in partitions:
            self._rows.delete_partition(topic.topic_id, where.partition)
            with named_os_errors(f"removing {where}"):
                for directory in (self._paths.partition, self._paths.spare, self._paths.cut_of):
                    _remove_tree(directory(where))
                self._paths.control(where).unlink(missing_ok=True)
        self._checkpoints.forget(partitions)
        sync_directory(self._paths.root)

    # Closing.

    def persist_producers(self, partition: Partition) -> None:
        """Bring LMDB's rows of a partition up to its log."""
        partition.persist_producers(self._config["eoslog.producers.cached.max"])

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
                        StoreError(f"{partition.topic_partition}: a sync failed; it needs recovery")
                    )
                    continue
                self.persist_producers(partition)
                offsets = last_offsets(partition)
                where = partition.topic_partition
                with named_os_errors(f"closing {where}"):
                    partition.close()
                self.closed_offsets[where] = offsets._replace(
                    recovery_point=partition.recovery_point
                )
            except EoslogError as error:
                errors.append(error)
                partition.close(clean=False)
        return errors

    def stop(self) -> None:
        """Open no more partitions."""
        with self._lock:
            self._closed = True

    def abandon(self) -> None:
        """Close everything as it is: the next opening recovers it."""
        self.stop()
        for partition in self.opened():
            partition.close(clean=False)

    def leave_to_parent(self) -> None:
        """This is a forked child: touch nothing any more."""
        self._closed = True
        for partition in self._opened.values():
            partition.leave_to_parent()

    # Opening.

    def _open(self, topic: TopicDescription, where: TopicPartition) -> Partition:
        with self._lock:
            partition = self._opened.get(where)
            if partition is not None:
                return partition
            if self._closed:
                raise LogClosedError("the store is closed")
            if self._registry.get(topic.name) is not topic:
                raise LogClosedError(f"topic {topic.name} was deleted")
            _check_identity(self._paths.partition(where), topic)
            clean = where not in self._unrecovered
            with named_os_errors(f"opening {where}"):
                partition = self._opened_log(topic, where, clean)
            partition.restore_producers(self._config["eoslog.producers.cached.max"])
            try:
                partition.keep_second_copy()
            except StoreError as error:
                # A full disk must not keep the log from being read.
                _log.warning("%s: no second copy of its producers: %s", where, error)
            if where.topic == CONSUMER_OFFSETS_TOPIC:
                self._group_rows.forget_beyond(where.partition, partition.log_end_offset)
            if not clean:
                self._recovered(partition)
                if self._on_recovered is not None:
                    self._on_recovered(partition)
            self._opened[where] = partition
            if self._on_opened is not None:
                self._on_opened(partition)
            return partition

    def _opened_log(self, topic: TopicDescription, where: TopicPartition, clean: bool) -> Partition:
        config = self.config_of(topic)
        config["eoslog.spare.segments"] = (
            0 if topic.internal else self._config["eoslog.spare.segments"]
        )
        config["eoslog.fill.bytes"] = _FILL_BYTES[self._durability]
        if topic.internal and self._durability != "process":
            config["eoslog.fill.bytes"] = _INTERNAL_FILL_BYTES
        log = PartitionLog(
            str(self._paths.partition(where)),
            topic=where.topic,
            partition=where.partition,
            control_path=str(self._paths.control(where)),
            spare_path=str(self._paths.spare(where)),
            cut_path=str(self._paths.cut_of(where)),
            config=config,
            clean=clean,
            recovery_point=self._checkpoints.recovery_point(where),
            log_start_offset=self._checkpoints.log_start_offset(where),
        )
        return Partition(log, topic.topic_id, self._rows, self._durability, self._signal)

    def _recovered(self, partition: Partition) -> None:
        where = partition.topic_partition
        self._unrecovered.discard(where)
        if partition.cut_bytes:
            self.cut_bytes += partition.cut_bytes
            _log.warning(
                "%s: recovery cut %d bytes off behind offset %d; they are kept in %s",
                where,
                partition.cut_bytes,
                partition.log_end_offset,
                self._paths.cut_of(where),
            )


def _check_identity(path: Path, topic: TopicDescription) -> None:
    """The directory is that topic's; metadata that is missing is written anew."""
    if not path.is_dir():
        raise CorruptRecordError(str(path), 0, "the partition's directory is gone")
    topic_id = read_partition_metadata(path)
    if topic_id is None:
        write_partition_metadata(path, topic.topic_id)
    elif topic_id != topic.topic_id:
        raise CorruptRecordError(
            str(path / PARTITION_METADATA),
            0,
            f"topic id {topic_id}, but topic {topic.name} has {topic.topic_id}",
        )


def _remove_tree(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
