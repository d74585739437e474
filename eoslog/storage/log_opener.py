"""Opens the log of a partition, with its topic's settings and what the checkpoints say of it."""

from collections.abc import Mapping
from functools import partial

from eoslog.bindings.commit_journal import CommitJournal
from eoslog.bindings.opened_log import LogOpening
from eoslog.bindings.partition_log import PartitionLog
from eoslog.bindings.shared_page import SharedPage
from eoslog.common.config import INT64_MAX
from eoslog.common.durability import Durability
from eoslog.common.topic_partition import TopicPartition
from eoslog.fs.file_system import boot_id_bytes
from eoslog.fs.identity_files import id_bytes
from eoslog.fs.os_errors import named_os_errors
from eoslog.session.append_signal import AppendSignal
from eoslog.session.store_paths import StorePaths
from eoslog.storage.legal_holes import LegalHoles
from eoslog.storage.offset_checkpoints import OffsetCheckpoints
from eoslog.storage.partition import Partition
from eoslog.storage.producer_state_store import ProducerStateStore
from eoslog.storage.topic_registry import TopicDescription, is_compacted

# How large the pages are that a segment is filled with ahead of its batches. A sync writes whole
# pages, so they are small where each append is synced, and large where bulk speed is all.
_FILL_BYTES: dict[Durability, int] = {"always": 1 << 16, "commit": 1 << 16, "process": 1 << 20}
# Such a batch goes into its file by calls: a sync would otherwise write zeros ahead of it, and have
# all of it to wait for.
WRITTEN_BYTES_MIN = 8192
# Of the internal topics a commit syncs a record or two at a time.
_INTERNAL_FILL_BYTES = 1 << 14
# Compaction removes whole segments of these, so they are small; a larger record has one for itself.
_INTERNAL_ROLL_BYTES = 1 << 20


class LogOpener:
    """Makes the `Partition` of a log. The caller keeps others from opening it meanwhile."""

    def __init__(
        self,
        paths: StorePaths,
        checkpoints: OffsetCheckpoints,
        holes: LegalHoles,
        rows: ProducerStateStore,
        config: Mapping[str, int],
        durability: Durability,
        signal: AppendSignal,
        *,
        session: bytes,
        shared: SharedPage,
        journal: CommitJournal | None,
    ) -> None:
        self._paths = paths
        self._checkpoints = checkpoints
        self._holes = holes
        self._rows = rows
        self._config = config
        self._durability = durability
        self._signal = signal
        self._session = session
        self._shared = shared
        self._journal = journal
        self._boot_id = boot_id_bytes()

    def open(
        self,
        topic: TopicDescription,
        where: TopicPartition,
        topic_config: Mapping[str, int],
        *,
        clean: bool,
        opening: LogOpening,
    ) -> Partition:
        """Open the log, and recover it unless it is `clean`; its producers are not restored yet.

        An exception in the block of `opening` closes the log again.
        """
        config = {
            **_log_settings(
                topic, topic_config, self._config, self._durability, self._holes.below(topic, where)
            ),
            "eoslog.durable": self._durability != "process",
            "eoslog.page.unsynced": (
                self._durability != "process" and not self._checkpoints.knows(where)
            ),
        }
        recovery_point = self._checkpoints.recovery_point(where)
        with named_os_errors(f"opening {where}"):
            log = PartitionLog(
                str(self._paths.partition(where)),
                topic=where.topic,
                partition=where.partition,
                control_path=str(self._paths.control(where)),
                spare_path=str(self._paths.spare(where)),
                cut_path=str(self._paths.cut_of(where)),
                config=config,
                clean=clean,
                recovery_point=recovery_point,
                log_start_offset=self._checkpoints.log_start_offset(where),
                session=self._session,
                shared=self._shared,
                topic_id=id_bytes(topic.topic_id),
                opening=opening,
                boot_id=self._boot_id,
                journal=self._journal,
            )
        partition = Partition(
            log,
            topic.topic_id,
            self._rows,
            self._durability,
            self._signal,
            producers_cached_max=self._config["eoslog.producers.cached.max"],
            write_start=partial(self._checkpoints.raise_start, where),
            spare_path=self._paths.spare(where),
        )
        # By the page of an earlier session, and by a checkpoint, which may be older.
        partition.note_lost_end(max(log.synced_before, recovery_point))
        if log.synced_before > log.log_end_offset:
            log.forget_synced_before()  # It was reported just now.
        if clean and not log.attached:
            partition.flushed_up_to = log.recovery_point
        # In this order: that the log begins further up is written down before segments go.
        first_offset = log.first_base_offset
        if self._checkpoints.knows_start_of(where):
            start_offset = self._checkpoints.log_start_offset(where)
            partition.note_lost_beginning(start_offset, first_offset)
        return partition


def _log_settings(
    topic: TopicDescription,
    topic_settings: Mapping[str, int],
    store_settings: Mapping[str, int],
    durability: Durability,
    holes_below: int,
) -> dict[str, int]:
    """Return the settings that the log of a topic's partition is opened with."""
    fill_bytes = _FILL_BYTES[durability]
    if topic.internal and durability != "process":
        fill_bytes = _INTERNAL_FILL_BYTES
    roll_bytes = topic_settings["segment.bytes"]
    if topic.internal:
        roll_bytes = min(roll_bytes, _INTERNAL_ROLL_BYTES)
    return {
        **topic_settings,
        "eoslog.roll.bytes": roll_bytes,
        "eoslog.spare.segments": 0 if topic.internal else store_settings["eoslog.spare.segments"],
        "eoslog.contiguous": not is_compacted(topic),
        "eoslog.holes.below": holes_below,
        "eoslog.fill.bytes": fill_bytes,
        "eoslog.written.bytes": INT64_MAX if durability == "process" else WRITTEN_BYTES_MIN,
    }
