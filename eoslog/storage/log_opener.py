"""Opens the log of a partition, with its topic's settings and what the checkpoints say of it."""

import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from eoslog.bindings.commit_journal import CommitJournal
from eoslog.bindings.control_state import control_state, start_before
from eoslog.bindings.counter_page import CounterPage
from eoslog.bindings.opened_log import LogOpening
from eoslog.bindings.partition_log import PartitionLog
from eoslog.bindings.shared_page import SharedPage
from eoslog.common.config import INT64_MAX
from eoslog.common.durability import Durability
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import EoslogError, FellBehindError, StoreInUseError
from eoslog.fs.identity_files import id_bytes
from eoslog.fs.offline_log import OfflineLog
from eoslog.fs.os_errors import named_os_errors
from eoslog.session.append_signal import AppendSignal
from eoslog.session.file_hold import FileHold
from eoslog.session.lock import OPENING_TIMEOUT_S
from eoslog.session.overlay import Overlay
from eoslog.session.paths import StorePaths
from eoslog.storage.damage import lost_end
from eoslog.storage.legal_holes import LegalHoles
from eoslog.storage.lmdb_environment import LmdbEnvironment
from eoslog.storage.offset_checkpoints import OffsetCheckpoints
from eoslog.storage.partition_directory import check_identity
from eoslog.storage.partition_producers import PartitionProducers
from eoslog.storage.producer_rows import ProducerRows
from eoslog.storage.topic_registry import TopicDescription
from eoslog.storage.unified_log import UnifiedLog

# How large the pages are that a segment is filled with ahead of its batches. A sync writes whole
# pages, so they are small where each append is synced, and large where bulk speed is all.
_FILL_BYTES: dict[Durability, int] = {"always": 1 << 16, "commit": 1 << 16, "process": 1 << 20}
# Such a batch goes into its file by calls: a sync would otherwise write zeros ahead of it, and have
# all of it to wait for.
WRITTEN_BYTES_MIN = 8192
# A file whose descriptor is closed stays mapped while a process has no more than so many. Each
# takes three mappings at most, of which a process may have 65,530.
MAPPED_FILES_MAX = 8192
# Of the internal topics a commit syncs a record or two at a time.
_INTERNAL_FILL_BYTES = 1 << 14
# How long a partition that another process is just opening is left alone.
_LOOK_S = 0.002
# Compaction removes whole segments of these, so they are small; a larger record has one for itself.
_INTERNAL_ROLL_BYTES = 1 << 20


class LogOpener(NamedTuple):
    """Makes the `Partition` of a log. The caller keeps others from opening it."""

    paths: StorePaths
    checkpoints: OffsetCheckpoints
    holes: LegalHoles
    lmdb: LmdbEnvironment
    config: Mapping[str, int]
    durability: Durability
    signal: AppendSignal
    session: bytes  # The session's id.
    shared: SharedPage  # Of all processes that have the store open.
    journal: CommitJournal | None  # This process's.
    counters: CounterPage  # The same.
    boot_id: bytes | None  # The machine's; None: not known.
    file_hold: FileHold
    overlay: Overlay | None = None  # If the store is only read.

    def open(
        self,
        topic: TopicDescription,
        where: TopicPartition,
        topic_config: Mapping[str, int],
        *,
        clean: bool,
        opening: LogOpening,
    ) -> UnifiedLog:
        """Open the log, and recover it unless it is `clean`; its producers are not restored yet.

        An exception in the block of `opening` closes the log again.
        """
        # Of an overlay nothing is synced, whatever the store's durability.
        is_synced = self.durability != "process" and self.overlay is None
        config = {
            **_log_settings(
                topic, topic_config, self.config, self.durability, self.holes.below(topic, where)
            ),
            "eoslog.durable": is_synced,
            "eoslog.page.unsynced": is_synced and not self.checkpoints.knows(where),
        }
        followed = None if self.overlay is None else self.overlay.followed
        log = self._log_of(topic, where, config, clean=clean, opening=opening)
        recovery_point = self.checkpoints.recovery_point(where)
        rows = ProducerRows(self.lmdb, topic.topic_id, where.partition)
        cached_max = self.config["eoslog.producers.cached.max"]
        may_follow = None if followed is None else followed.counts
        partition = UnifiedLog(
            log,
            topic.topic_id,
            topic.config,
            PartitionProducers(log, where, rows, cached_max, may_follow),
            self.durability,
            self.signal,
            write_start=partial(self.checkpoints.raise_start, where),
            reserve_start=self.checkpoints.reserve,
            file_hold=self.file_hold,
            spare_path=self.paths.spare(where),
            producer_expiration_ms=self.config["producer.id.expiration.ms"],
        )
        if followed is not None and log.attached:
            return partition  # What the copies of the checkpoints say is too old.
        # By the page of an earlier session, and by a checkpoint, which may be older.
        synced = max(log.synced_before, recovery_point)
        partition.damage.note(lost_end(log.path, synced, log.log_end_offset))
        if log.synced_before > log.log_end_offset:
            log.forget_synced_before()  # It was reported just now.
        if recovery_point > log.log_end_offset:
            self.checkpoints.lower_recovery_point(where, log.log_end_offset)
        if clean and not log.attached:
            partition.flushed_up_to = log.recovery_point
        # In this order: that the log begins further up is written down before segments go.
        first_offset = log.first_base_offset
        if self.checkpoints.knows_start_of(where):
            start_offset = self.checkpoints.log_start_offset(where)
            partition.damage.note_lost_beginning(start_offset, first_offset)
        return partition

    def _log_of(
        self,
        topic: TopicDescription,
        where: TopicPartition,
        config: Mapping[str, int],
        *,
        clean: bool,
        opening: LogOpening,
    ) -> PartitionLog:
        """Return the log, opened; in a store that is only read, followed where it is if a process
        has it open, and otherwise opened in the overlay.
        """
        if self.overlay is None or self.overlay.followed is None:
            return self._opened_log(topic, where, config, clean=clean, opening=opening)
        followed, page = self.overlay.followed, str(self.overlay.store.control(where))
        is_doubted = False
        until_s = time.monotonic() + OPENING_TIMEOUT_S
        while time.monotonic() < until_s:
            with suppress(FellBehindError):
                return self._followed_log(topic, where, config, opening)
            before = self._opened_in(page)
            # What needs recovery was said as the session began; since then no process opened it.
            clean = not is_doubted and where not in followed.unrecovered
            log = None
            try:
                if self.overlay.may_be_opened():
                    self.overlay.bring_again(where)
                    check_identity(self.paths.partition(where), topic.name, topic.topic_id)
                    log = self._opened_log(
                        topic,
                        where,
                        config,
                        clean=clean,
                        opening=opening,
                        awaited=page,
                        opened_in=before[0],
                    )
            except EoslogError:
                if not clean and self._opened_in(page) == before:
                    raise
            after = self._opened_in(page)
            # Nothing is appended before a process says that it has the partition open.
            is_as_before = after == before or not after[1]
            if log is not None and is_as_before and followed.is_current():
                return log
            if log is not None:
                log.close(clean=False)
            is_doubted = True
            time.sleep(_LOOK_S)
        raise StoreInUseError(
            f"{where}: processes have opened and closed it again and again, or been opening the "
            f"store, for {OPENING_TIMEOUT_S:g} s"
        )

    @staticmethod
    def _opened_in(page: str) -> tuple[bytes, bool]:
        """Return the session in which a partition was opened last, and whether it was by now."""
        with named_os_errors(f"looking at {page}"):
            state = control_state(page)
        return (b"", False) if state is None else (state.session, state.ready)

    def _followed_log(
        self,
        topic: TopicDescription,
        where: TopicPartition,
        config: Mapping[str, int],
        opening: LogOpening,
    ) -> PartitionLog:
        """Raise FellBehindError if no process of the session has it open."""
        assert self.overlay is not None and self.overlay.followed is not None
        store = self.overlay.store
        watched = self.overlay.metadata_of(where)
        with named_os_errors(f"opening {where}"):
            return PartitionLog(
                str(store.partition(where)),
                topic=where.topic,
                partition=where.partition,
                control_path=str(store.control(where)),
                spare_path=str(self.paths.spare(where)),
                cut_path=str(self.paths.cut_of(where)),
                config=dict(config),
                clean=True,
                shared=self.shared,
                topic_id=id_bytes(topic.topic_id),
                opening=opening,
                followed=self.overlay.followed.look(),
                counters=self.counters,
                watched=watched,
                topic_id_text=topic.topic_id,
            )

    def _opened_log(
        self,
        topic: TopicDescription,
        where: TopicPartition,
        config: Mapping[str, int],
        *,
        clean: bool,
        opening: LogOpening,
        awaited: str | None = None,
        opened_in: bytes | None = None,
    ) -> PartitionLog:
        if not self.checkpoints.knows_start_of(where):
            self._write_start_of_page(topic, where)
        with named_os_errors(f"opening {where}"):
            return PartitionLog(
                str(self.paths.partition(where)),
                topic=where.topic,
                partition=where.partition,
                control_path=str(self.paths.control(where)),
                spare_path=str(self.paths.spare(where)),
                cut_path=str(self.paths.cut_of(where)),
                config=dict(config),
                clean=clean,
                recovery_point=self.checkpoints.recovery_point(where),
                log_start_offset=self.checkpoints.log_start_offset(where),
                session=self.session,
                shared=self.shared,
                topic_id=id_bytes(topic.topic_id),
                opening=opening,
                boot_id=self.boot_id,
                journal=self.journal,
                counters=self.counters,
                watched=None if self.overlay is None else self.overlay.watched_of(where),
                topic_id_text=None if awaited is None else topic.topic_id,
                shown_path=str(self.paths.shown / str(where)),
                awaited=awaited,
                opened_in=opened_in,
            )

    def alter(
        self, partition: UnifiedLog, topic: TopicDescription, topic_config: Mapping[str, int]
    ) -> None:
        """Have an open log go on with its topic's settings as they are now."""
        partition.log.alter(
            _log_settings(topic, topic_config, self.config, self.durability, holes_below=0)
        )
        partition.topic_config = topic.config

    def _write_start_of_page(self, topic: TopicDescription, where: TopicPartition) -> None:
        """Write down where the page has the start of a log whose oldest segment begins further up:
        the store was stopped before the first checkpoint.
        """
        with named_os_errors(f"opening {where}"):
            page = str(self.paths.control(where))
            start = start_before(page, id_bytes(topic.topic_id), where.partition)
        if 0 <= start < OfflineLog(self.paths.partition(where)).first_offset:
            self.checkpoints.raise_start(where, lambda: start)


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
        "eoslog.holes.below": holes_below,
        "eoslog.fill.bytes": fill_bytes,
        "eoslog.mapped.files": MAPPED_FILES_MAX,
        "eoslog.written.bytes": INT64_MAX if durability == "process" else WRITTEN_BYTES_MIN,
    }
