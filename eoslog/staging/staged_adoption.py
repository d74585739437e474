"""A decided job on its way into the partitions: steps A1 to V of `docs/staged-commit.md`.

Every step may be done again from the start: the partition knows, by the last sequence of each
file's producer id, which batches it holds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError, EoslogError, LogClosedError
from eoslog.fs.shared_syncs import SYNC_THREADS_MAX, run_together
from eoslog.staging.staged_file_check import deleted_meanwhile, deletions_named, mapped
from eoslog.staging.staged_job import JobFile, StagedJob, threads_for
from eoslog.storage.partition import Partition

FindPartition = Callable[[TopicPartition], Partition | None]
Offsets = dict[TopicPartition, tuple[int, int]]


class HeldPartitions:
    """The partitions of a job, with readers held at its bounds."""

    def __init__(self, find: FindPartition, topic_ids: Mapping[str, str]) -> None:
        self._find = find
        self._topic_ids = topic_ids
        self._held: dict[TopicPartition, Partition] = {}

    def hold(self, bounds: Mapping[TopicPartition, int]) -> None:
        """Keep readers below the bounds, of those partitions that exist and can be opened."""
        for where, bound in bounds.items():
            try:
                partition = self.find(where)
            except EoslogError:
                continue  # Nobody can read it either; the adoption will say why.
            if partition is not None:
                partition.hold_readers(bound)
                self._held[where] = partition

    def have(self, wanted: Iterable[TopicPartition]) -> None:
        """Have the partitions of a job of which readers may see everything."""
        for where in wanted:
            partition = self.find(where)
            if partition is not None:
                self._held[where] = partition

    def let_in_if_begun(self) -> None:
        """Let readers in everywhere, if a process that died had begun to let them in."""
        held = [partition.hold_offset >= 0 for partition in self._held.values()]
        if any(held) and not all(held):
            for partition in self._held.values():
                partition.release_readers()

    def hold_at_end(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Keep readers below the partitions' present ends, and say where these are.

        Raises StagedCommitError where a topic was deleted meanwhile.
        """
        bounds = {}
        for where in wanted:
            partition = self.find(where)
            if partition is None:
                raise deleted_meanwhile(where)
            with deletions_named(where, partition, self._find):
                self._held[where] = partition
                partition.hold_readers()
                bounds[where] = partition.visible_end
        return bounds

    def find(self, where: TopicPartition) -> Partition | None:
        """The partition, unless its topic was deleted since the decision."""
        partition = self._find(where)
        if partition is None or partition.topic_id != self._topic_ids[where.topic]:
            return None
        return partition

    def sync(self) -> None:
        """Put on disk whatever the partitions hold, all at once: their syncs share the disk's."""
        waiting = []
        for where, partition in list(self._held.items()):
            if self._has_unsynced(where, partition):
                waiting.append((where, partition))
            else:
                self._sync_partition(where, partition)  # Tells of a sync that failed before.
        run_together([partial(self._sync_partition, *one) for one in waiting])

    def _has_unsynced(self, where: TopicPartition, partition: Partition) -> bool:
        try:
            return partition.recovery_point < partition.log_end_offset
        except LogClosedError:
            if self.find(where) is not None:
                raise
            return False

    def sync_one(self, where: TopicPartition) -> None:
        """Put on disk whatever one of the partitions holds."""
        partition = self._held.get(where)
        if partition is not None:
            self._sync_partition(where, partition)

    def _sync_partition(self, where: TopicPartition, partition: Partition) -> None:
        try:
            partition.sync_up_to(partition.log_end_offset)
        except LogClosedError:
            if self.find(where) is not None:
                raise

    def release(self) -> None:
        """Let readers see everything."""
        for partition in list(self._held.values()):
            partition.release_readers()
        self._held = {}

    def forget_topic(self, topic: str) -> None:
        """The topic is being deleted, with all that was adopted into it."""
        for where in [where for where in self._held if where.topic == topic]:
            del self._held[where]


def adopt_files(
    job: StagedJob, held: HeldPartitions, *, sync: bool, checked: bool = False
) -> Offsets:
    """Append what the partitions do not hold yet; the first and last offset of each of them.

    Large jobs fill several partitions at once, and with `sync` one goes to disk while others are
    filled. Files of topics that were deleted since the decision are passed over. `checked`: the
    checksums of all files were verified just now.
    """
    by_partition: dict[TopicPartition, list[JobFile]] = {}
    for one in job.files:
        by_partition.setdefault(one.file.topic_partition, []).append(one)
    threads_max = threads_for(job.files, len(by_partition))
    if threads_max > 1 and sync:
        threads_max = min(len(by_partition), SYNC_THREADS_MAX)  # They wait, mostly.
    if threads_max < 2:
        filled = [_fill(files, held, checked) for files in by_partition.values()]
    else:
        for where in by_partition:
            held.find(where)  # Opened here: what is done then may need what this thread holds.
        filled = run_together(
            [
                partial(_fill, files, held, checked, where if sync else None)
                for where, files in by_partition.items()
            ],
            threads_max,
        )
    return {
        where: found for where, found in zip(by_partition, filled, strict=True) if found is not None
    }


def _fill(
    files: Sequence[JobFile],
    held: HeldPartitions,
    checked: bool,
    synced: TopicPartition | None = None,
) -> tuple[int, int] | None:
    """Append a partition's files in their order; its first and last new offset, if there are any.
    `synced` is the partition if it is to be on disk on return.
    """
    found: tuple[int, int] | None = None
    for one in files:
        first_offset, appended = _adopt_file(one, held, checked)
        if appended:
            begin = first_offset if found is None else found[0]
            found = (begin, first_offset + appended - 1)
    if synced is not None:
        held.sync_one(synced)
    return found


def is_adopted(job: StagedJob, held: HeldPartitions) -> bool:
    """True if all of the job's files are in the partitions. Raises EoslogError."""
    return all(is_file_adopted(one, held) for one in job.files)


def is_untouched(job: StagedJob, held: HeldPartitions) -> bool:
    """True if nothing of the job's files is in the partitions. Raises EoslogError."""
    for one in job.files:
        partition = held.find(one.file.topic_partition)
        if partition is not None and partition.producer(one.file.producer_id) is not None:
            return False
    return True


def is_file_adopted(one: JobFile, held: HeldPartitions) -> bool:
    """True if nothing of the file is wanted any more: all of it is in, or its topic is gone."""
    partition = held.find(one.file.topic_partition)
    return partition is None or _holds_all_of(partition, one)


def _adopt_file(one: JobFile, held: HeldPartitions, checked: bool) -> tuple[int, int]:
    where = one.file.topic_partition
    partition = held.find(where)
    if partition is None:
        return -1, 0
    if _holds_all_of(partition, one):
        return -1, 0
    try:
        if one.is_large:
            adopted = partition.adopt_file(
                one.path, one.file.bytes, one.file.producer_id, checked=checked
            )
            if adopted is not None:
                return adopted
        with mapped(one) as staged:
            return partition.adopt(staged, one.file.producer_id)
    except CorruptRecordError as error:
        if error.path:
            raise
        raise CorruptRecordError(str(one.path), error.position_bytes, error.reason) from error
    except LogClosedError:
        if held.find(where) is None:
            return -1, 0
        raise


def _holds_all_of(partition: Partition, one: JobFile) -> bool:
    """True if the partition holds the file's last record: the file may even be gone by now."""
    state = partition.producer(one.file.producer_id)
    return state is not None and state.last_sequence == one.file.records - 1
