"""A backup of a live store: the copy of what the death of all its processes at one instant leaves.

No process has to stop for it. The writer's locks of all open logs are held together for an instant,
in which their ends are noted (`bindings/log_ends.pyx`). Nothing below these ends changes any more,
so the files are copied up to them while others append. What the instant leaves is recovered in the
copy, as by any opening: open transactions are aborted, decided transactions and staged jobs are
completed, prepared ones wait. docs/decisions/0015 says why each step comes where it does; its
crash points are B1 to B8 in docs/crash-points.md.

Invariants: the store is not changed. The copy has its name only when it is whole, closed cleanly
and synced (`fs/new_directory`).
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from eoslog.bindings import shared_page
from eoslog.bindings.file_descriptor import FileDescriptor, sync_descriptor
from eoslog.bindings.log_ends import LogEnd, LogEnds
from eoslog.bindings.shared_page import COUNTER_LOGS_OPENED
from eoslog.bindings.snapshot_files import SEGMENT_NAME
from eoslog.common.config import INT64_MAX
from eoslog.common.topic_name import INTERNAL_TOPICS
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError, EoslogError, StoreError, StoreInUseError
from eoslog.fs.checkpoint_file import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    write_checkpoints,
)
from eoslog.fs.file_copy import copy_bytes
from eoslog.fs.identity_files import (
    id_bytes,
    read_meta_properties,
    read_partition_metadata,
    write_meta_properties,
    write_partition_metadata,
)
from eoslog.fs.new_directory import new_directory
from eoslog.fs.offline_log import is_whole_segment
from eoslog.fs.os_errors import as_if_in, named_os_errors
from eoslog.fs.private_files import FILE_MODE, make_directories
from eoslog.inspect.store_copy import link_if_possible
from eoslog.session.group_access import keep_group_access
from eoslog.session.paths import StorePaths
from eoslog.session.settings import FILE_NAME as SETTINGS_NAME
from eoslog.storage.kept_journals import remove_kept_journals
from eoslog.storage.lmdb_environment import DIRECTORY_NAME as LMDB_NAME
from eoslog.storage.opened_partitions import delete_leftovers
from eoslog.storage.partition_directory import (
    base_offset_of,
    page_of,
    partitions_with_pages,
)
from eoslog.storage.topic_registry import TopicDescription, parse_entries
from eoslog.storage.topics_file import Entry, read_entries, write_entries
from eoslog.store.parts import StoreParts, opened_parts

_log = logging.getLogger(__name__)

_INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
_SNAPSHOT_SUFFIX = ".snapshot"
# A lock that is not waited for is looked at so often.
_LOOK_S = 0.005
# About so much of a copy is not on the disk yet at most.
_UNSYNCED_BYTES_MAX = 256 << 20
_LEADER_EPOCHS = "leader-epoch-checkpoint"

Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class StoreBackup:
    """Result of a backup.

    `copied_bytes` and `linked_bytes` are sizes of segments: of those that were copied, and of those
    whose files the store or the earlier copy has too. `held_ms` is the longest time for which
    appends had to wait. `damage` says what is lost or damaged in the store, and so in the copy;
    `damaged_earlier` are broken files of the earlier copy, which were copied from the store.
    """

    path: Path
    topics: int
    partitions: int
    copied_bytes: int
    linked_bytes: int
    held_ms: float
    damage: tuple[str, ...] = ()
    damaged_earlier: tuple[Path, ...] = ()


class _EarlierCopy:
    """Sealed segments of an earlier backup.

    A segment that was sealed does not change, but after a power cut another one may have its name.
    So a file is shared if it is of the same topic, and has the size and the time of change of the
    store's. Its batches are verified first: what became damaged in the earlier copy is copied from
    the store.
    """

    def __init__(self, path: Path, source: Path) -> None:
        """Raises NotAStoreError; StoreError if it is no copy of the store."""
        self._paths = StorePaths(path)
        self.damaged: list[Path] = []
        if read_meta_properties(path) != read_meta_properties(source):
            raise StoreError(f"{path} is no backup of {source}: it has other ids")

    def find(
        self, where: TopicPartition, topic_id: str, source: Path, end_offset: int
    ) -> Path | None:
        """Return the file that a sealed segment's file can share; None if there is none."""
        path = self._paths.partition(where) / source.name
        try:
            theirs, ours = path.stat(), source.stat()
        except FileNotFoundError:
            return None
        if (theirs.st_size, theirs.st_mtime_ns) != (
            ours.st_size,
            ours.st_mtime_ns,
        ) or read_partition_metadata(path.parent) != topic_id:
            return None
        if not is_whole_segment(path, end_offset):
            _log.warning("%s is damaged; it is copied from the store again", path)
            self.damaged.append(path)
            return None
        return path


class _Segment(NamedTuple):
    base_offset: int
    size_bytes: int


class _Log(NamedTuple):
    """One log as it was at the instant: its segments, oldest first, and where it begins and ends.

    `recovery_point`: what is below needs no recovery in the copy. `synced_offset`: what is below is
    on disk. Bounds are None where the store does not know them.
    """

    segments: list[_Segment]
    log_start_offset: int | None
    log_end_offset: int | None
    recovery_point: int | None
    synced_offset: int


def back_up(
    parts: StoreParts,
    destination: Path,
    *,
    link: bool,
    earlier: Path | None,
    progress: Progress | None,
) -> StoreBackup:
    """Back up an open store; see `Store.backup`."""
    root = parts.files.paths.root
    with named_os_errors(f"looking at {destination}"):
        target, source = destination.resolve(), root.resolve()
    if target == source or source in target.parents or target in source.parents:
        raise StoreError(f"destination {target} and store {source} must not contain each other")
    shared = None if earlier is None else _EarlierCopy(earlier, root)
    with (
        new_directory(target, StoreError) as new,
        named_os_errors(f"backing up {root} to {target}"),
    ):
        backup = _Backup(parts, StorePaths(new.workspace), progress, link=link, earlier=shared)
        backup.copy()
        with as_if_in({new.workspace: target}):
            backup.recover()
            keep_group_access(parts.files.paths, StorePaths(new.workspace))
        new.publish(new.workspace)
    _log.info(
        "%s: backed up to %s: %d partitions, %d bytes, %d shared; appends waited for %.3f ms",
        *(root, target, backup.partitions, backup.copied_bytes, backup.linked_bytes),
        backup.held_ns / 1e6,
    )
    return StoreBackup(
        target,
        backup.topics,
        backup.partitions,
        backup.copied_bytes,
        backup.linked_bytes,
        backup.held_ns / 1e6,
        tuple(backup.damage),
        () if shared is None else tuple(shared.damaged),
    )


class _Backup:
    """The making of one copy in the directory `copy`."""

    def __init__(
        self,
        parts: StoreParts,
        copy: StorePaths,
        progress: Progress | None,
        *,
        link: bool,
        earlier: _EarlierCopy | None,
    ) -> None:
        self._files = parts.files
        self._staged = parts.staged
        self._paths = parts.files.paths
        self._copy = copy
        self._progress = progress
        self._link = link
        self._earlier = earlier
        self._total_bytes = self._unsynced_bytes = 0
        # Topics with their entries, and logs, of the instant.
        self._entries: dict[str, Entry] = {}
        self._logs: dict[TopicPartition, _Log] = {}
        self.copied_bytes = self.linked_bytes = 0
        self.topics = self.partitions = self.held_ns = 0
        self.damage: list[str] = []

    # The source.

    def copy(self) -> None:
        """Copy all that the instant leaves; nothing is synced yet."""
        make_directories(self._copy.state)
        with self._files.file_hold.keeping():
            self._recover_rest()
            self._copy_lmdb()
            unopened = self._unopened(self._known_topics(), {})
            with self._staged.standing_still():
                pass  # Waited for with nothing held: a large job takes long to adopt.
            with self._topics_held(), self._staged.standing_still():
                topics = self._known_topics()
                unopened |= self._unopened(topics, unopened)
                ends = self._ends(topics)
                # Else another session may have begun, in which these logs are open.
                self._files.engine.check_open()
                self._copy_staged_files()
            self._note(topics, ends, unopened)
            self._copy_logs()
        self._delete_what_waited()
        self._write_state()

    @contextmanager
    def _topics_held(self) -> Iterator[None]:
        """A block in which no user's topic is made, altered or deleted."""
        timeout_s = shared_page.LOCK_TIMEOUT_S
        end_s = time.monotonic() + timeout_s
        while True:
            with self._files.registry.changing_topics_if_free() as is_held:
                if is_held:
                    yield
                    return
            if time.monotonic() > end_s:
                raise StoreInUseError(
                    f"a process has been creating, altering or deleting a topic of "
                    f"{self._paths.root} for longer than {timeout_s:g} s: it hangs, or was stopped"
                )
            time.sleep(_LOOK_S)

    def _known_topics(self) -> dict[str, TopicDescription]:
        entries = read_entries(self._paths.state) or {}
        self._entries = {name: one for name, one in entries.items() if not one.get("deleting")}
        return parse_entries(self._paths.state, self._entries)

    def _recover_rest(self) -> None:
        """Recover what no process opened since an unclean stop: its files may still be cut."""
        for where in sorted(self._files.partitions.unrecovered):
            self._files.partitions.find_of_any_topic(where)

    def _copy_lmdb(self) -> None:
        directory = self._copy.state / LMDB_NAME
        make_directories(directory)
        self._files.lmdb.copy_to(directory)

    def _unopened(
        self, topics: Mapping[str, TopicDescription], known: Mapping[TopicPartition, _Log]
    ) -> dict[TopicPartition, _Log]:
        """Return the logs that no process has open, as they are until one opens them."""
        found = {}
        for topic in topics.values():
            for where in topic.topic_partitions():
                if where in known or self._is_open(where, topic):
                    continue
                segments = self._segments(where, topic)
                if segments is not None:
                    found[where] = _Log(segments, *self._checkpointed(where))
        return found

    def _checkpointed(
        self, where: TopicPartition
    ) -> tuple[int | None, int | None, int | None, int]:
        checkpoints = self._files.checkpoints
        # A log that came from elsewhere, and was not opened yet, is unknown in the copy too.
        start = checkpoints.log_start_offset(where) if checkpoints.knows_start_of(where) else None
        point = checkpoints.recovery_point(where) if checkpoints.knows(where) else None
        return start, point, point, point or 0

    def _is_open(self, where: TopicPartition, topic: TopicDescription) -> bool:
        state = page_of(self._paths, where)
        return (
            state is not None
            and state.session == self._files.session.id
            and state.ready
            and state.topic_id == id_bytes(topic.topic_id)
        )

    def _segments(self, where: TopicPartition, topic: TopicDescription) -> list[_Segment] | None:
        """Return the segments that a log has now; None if it was never used."""
        try:
            with os.scandir(self._paths.partition(where)) as entries:
                return sorted(
                    _Segment(int(one.name[:20]), one.stat().st_size)
                    for one in entries
                    if SEGMENT_NAME.fullmatch(one.name)
                )
        except FileNotFoundError as error:
            if topic.internal:
                return None  # It is made when it is first used.
            path = str(self._paths.partition(where))
            raise CorruptRecordError(path, 0, "the partition's directory is gone") from error

    def _ends(self, topics: Mapping[str, TopicDescription]) -> dict[TopicPartition, LogEnd]:
        """Return where the logs end at one instant that are open in any process."""
        shared, timeout_s = self._files.session.shared, shared_page.LOCK_TIMEOUT_S
        end_s = time.monotonic() + timeout_s
        while True:
            # In this order. Each log is opened once in a session, and no topic is made now.
            opened = shared.counter(COUNTER_LOGS_OPENED)
            pages = {
                str(self._paths.control(where)): where
                for where in partitions_with_pages(self._paths)
                # Those of a deleted topic stay until its files may go.
                if where.topic in topics or where.topic in INTERNAL_TOPICS
            }
            taking = LogEnds(list(pages), shared, opened)
            ends = taking.take(timeout_s)
            self.held_ns = max(self.held_ns, taking.held_ns)
            if ends is not None:
                return {pages[path]: end for path, end in ends.items()}
            if time.monotonic() > end_s:
                raise StoreInUseError(
                    f"logs of {self._paths.root} have been opened, or left by writers that died, "
                    f"again and again for {timeout_s:g} s"
                )
            for path in taking.broken:
                # Its writer died: the log is repaired as by the next append.
                partition = self._files.partitions.find_of_any_topic(pages[path])
                if partition is not None:
                    partition.log.repair()

    def _copy_staged_files(self) -> None:
        for path in self._staged.pending.files():
            target = self._copy.staging / path.relative_to(self._paths.staging)
            make_directories(target.parent)
            with suppress(FileNotFoundError):  # It is lost; the copy misses it as the store does.
                self._copy_file(path, target, None)

    def _note(
        self,
        topics: Mapping[str, TopicDescription],
        ends: Mapping[TopicPartition, LogEnd],
        unopened: Mapping[TopicPartition, _Log],
    ) -> None:
        """Note what of each log is copied."""
        # An internal topic may have been added since, with its first partition.
        entries = read_entries(self._paths.state) or {}
        self._entries |= {name: one for name, one in entries.items() if name in INTERNAL_TOPICS}
        topics = {**topics, **parse_entries(self._paths.state, self._entries)}
        for topic in topics.values():
            for where in topic.topic_partitions():
                end = ends.get(where)
                if end is not None and end.topic_id == id_bytes(topic.topic_id):
                    self._logs[where] = self._opened_log(where, topic, end)
                elif where in unopened:
                    self._logs[where] = unopened[where]
        self.topics = sum(not topic.internal for topic in topics.values())
        self.partitions = sum(where.topic not in INTERNAL_TOPICS for where in self._logs)
        self._total_bytes = sum(
            one.size_bytes for log in self._logs.values() for one in log.segments
        )

    def _opened_log(self, where: TopicPartition, topic: TopicDescription, end: LogEnd) -> _Log:
        active = end.active_base_offset
        segments = [
            one
            for one in self._segments(where, topic) or ()
            if end.first_base_offset <= one.base_offset < active
        ]
        segments.append(_Segment(active, end.active_valid_bytes))
        if segments[0].base_offset != end.first_base_offset:
            path = self._paths.partition(where) / f"{end.first_base_offset:020d}.log"
            raise CorruptRecordError(str(path), 0, "the file is gone")
        # Nothing below the end is torn, and all of it is synced before the copy has its name.
        point = end.recovery_point if end.failed else end.log_end_offset
        start, end_offset = end.log_start_offset, end.log_end_offset
        return _Log(segments, start, end_offset, point, end.recovery_point)

    def _copy_logs(self) -> None:
        for where, log in self._logs.items():
            source, target = self._paths.partition(where), self._copy.partition(where)
            make_directories(target)
            topic_id = self._entries[where.topic]["topic_id"]
            write_partition_metadata(target, topic_id, sync=False)
            for one, following in zip_longest(log.segments, log.segments[1:]):
                end = None if following is None else following.base_offset
                path = source / f"{one.base_offset:020d}.log"
                shared = self._shared(where, topic_id, path, end, log.synced_offset)
                if shared is not None and link_if_possible(shared, target / path.name):
                    self.linked_bytes += one.size_bytes
                    self._report()
                else:
                    self._copy_segment(
                        path, target / path.name, one.size_bytes, sealed=end is not None
                    )
            self._copy_beside(source, target, log)

    def _shared(
        self,
        where: TopicPartition,
        topic_id: str,
        path: Path,
        end_offset: int | None,
        synced_offset: int,
    ) -> Path | None:
        """Return the file that a segment's can be a link to; None if it has to be copied.

        A sealed one is written to no more: an append goes to the active segment, which is always
        copied, a recovery begins at the synced offset, and a file with two names is no spare.
        """
        if end_offset is None or where.topic in INTERNAL_TOPICS:
            return None
        if self._link and end_offset <= synced_offset:
            return path
        if self._earlier is not None:
            return self._earlier.find(where, topic_id, path, end_offset)
        return None

    def _copy_beside(self, source: Path, target: Path, log: _Log) -> None:
        """Copy what is not derived, and the indexes of sealed segments, which do not change."""
        end = INT64_MAX if log.log_end_offset is None else log.log_end_offset
        sealed = {one.base_offset for one in log.segments[:-1]}
        for path in sorted(source.iterdir()):
            is_index = path.suffix in _INDEX_SUFFIXES and base_offset_of(path) in sealed
            is_snapshot = path.suffix == _SNAPSHOT_SUFFIX and base_offset_of(path) <= end
            if is_index or is_snapshot or path.name == _LEADER_EPOCHS:
                with suppress(FileNotFoundError):  # A newer snapshot took its place.
                    self._copy_file(path, target / path.name, None)

    def _copy_segment(self, source: Path, target: Path, size_bytes: int, *, sealed: bool) -> None:
        if size_bytes:
            self._copy_file(source, target, size_bytes)
            if sealed:
                # By its time a later backup knows that it is the same.
                changed_ns = source.stat().st_mtime_ns
                os.utime(target, ns=(changed_ns, changed_ns))
        else:
            # A staged file may take the place of an empty one.
            FileDescriptor(target, os.O_WRONLY | os.O_CREAT, FILE_MODE).close()

    def _copy_file(self, source: Path, target: Path, size_bytes: int | None) -> None:
        """Copy a file, or the first bytes of a segment's."""
        with FileDescriptor(source, os.O_RDONLY) as data:
            found = os.fstat(data)
            wanted = found.st_size if size_bytes is None else size_bytes
            with FileDescriptor(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE) as copy:

                def copied(_: int, byte_count: int) -> None:
                    self._sync_some(copy, byte_count)
                    if size_bytes is not None:
                        self._count(byte_count)

                copy_bytes(data, copy, wanted, copied)
            if os.fstat(data).st_size < wanted:
                raise CorruptRecordError(str(source), 0, "the file was cut while it was copied")

    def _sync_some(self, descriptor: int, byte_count: int) -> None:
        """Sync now and then: the kernel makes all who append wait while too much is not written."""
        self._unsynced_bytes += byte_count
        if self._unsynced_bytes >= _UNSYNCED_BYTES_MAX:
            sync_descriptor(descriptor)
            self._unsynced_bytes = 0

    def _count(self, byte_count: int) -> None:
        self.copied_bytes += byte_count
        self._report()

    def _report(self) -> None:
        if self._progress is not None:
            done = self.copied_bytes + self.linked_bytes
            self._progress(min(done, self._total_bytes), self._total_bytes)

    def _delete_what_waited(self) -> None:
        """Delete the segments whose deletion waited: the process that asked for it may be gone."""
        for where, log in self._logs.items():
            state = page_of(self._paths, where)
            if (
                state is not None
                and state.session == self._files.session.id
                and log.segments
                and log.segments[0].base_offset < state.log_start_offset
            ):
                try:
                    partition = self._files.partitions.find(where)
                    if partition is not None:
                        delete_leftovers(partition)
                except EoslogError as error:
                    _log.warning("%s: deleted segments are left: %s", where, error)

    # The copy.

    def _write_state(self) -> None:
        """Write what belongs to the whole store; last what makes the copy a store."""
        root = self._copy.root
        bounds: dict[Path, dict[TopicPartition, int | None]] = {
            root / RECOVERY_POINT: {at: log.recovery_point for at, log in self._logs.items()},
            root / HIGH_WATERMARK: {at: log.log_end_offset for at, log in self._logs.items()},
            root / LOG_START_OFFSET: {at: log.log_start_offset for at, log in self._logs.items()},
        }
        known = {
            path: {where: offset for where, offset in offsets.items() if offset is not None}
            for path, offsets in bounds.items()
        }
        write_checkpoints(known, sync=False)
        write_entries(self._copy.state, self._entries)
        with suppress(FileNotFoundError):  # A store of version 0.1.0 has none.
            self._copy_file(
                self._paths.state / SETTINGS_NAME, self._copy.state / SETTINGS_NAME, None
            )
        write_meta_properties(root, read_meta_properties(self._paths.root))

    def recover(self) -> None:
        """Open the copy and each log in it, and close it cleanly."""
        with opened_parts(self._copy.root) as parts:
            partitions = parts.files.partitions
            for where in self._logs:
                partitions.find_of_any_topic(where)
            for partition in partitions.opened():
                self.damage += [
                    f"{partition.topic_partition}: {one}" for one in partition.all_damage()
                ]
            self.damage += [
                f"{cut.topic_partition}: {cut.bytes} bytes were cut off after offset {cut.offset}"
                for cut in partitions.cuts
            ]
        remove_kept_journals(self._copy)
