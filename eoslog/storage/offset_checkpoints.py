"""The three checkpoints at the top of a store, held together.

Invariants: a partition that is not open keeps what was read; nothing is read before the first
partition is opened, so that opening a store costs the same whatever it holds. A checkpoint that
cannot be read is left out, as if it were lost: recovery then reads more of the log. Below a
recovery point that is written down index files are synced too, as recovery does not check them
there: commits, which do not sync them, do not move it. If several processes have the store open,
each reads again what another one replaced, and one at a time replaces them: what one process wrote
of its partitions stays when another writes of its own. A file that holds on disk what is to be
written is left as it is: a close after reads alone syncs none of them. While the store is open,
room is reserved for the next log starts: they are written down before segments go, which is what
makes room on a full disk.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from eoslog.bindings.shared_page import LOCK_CHECKPOINTS, SharedPage
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError
from eoslog.fs.atomic_file import give_room_back, reserve_room
from eoslog.fs.checkpoint_file import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    read_checkpoint,
    write_checkpoints,
)
from eoslog.storage.unified_log import UnifiedLog

# Reserved for the next log starts beyond the bytes of the present ones.
_ROOM_BYTES = 4096

_log = logging.getLogger(__name__)

Offsets = dict[TopicPartition, int]


class LastOffsets(NamedTuple):
    """Last offsets of one partition in the checkpoints."""

    recovery_point: int
    log_start_offset: int
    high_watermark: int
    flushed_up_to: int  # Index files too, by this process.


def last_offsets(partition: UnifiedLog) -> LastOffsets:
    """Return what the checkpoints would say of an open partition now."""
    # The recovery point first: it must not be above the other two.
    recovery_point = partition.recovery_point
    start = partition.log_start_offset
    lost = partition.damage.lost_range(start)
    return LastOffsets(
        recovery_point,
        # Else the next opening would know nothing of what is gone.
        start if lost is None else lost[0],
        partition.high_watermark,
        partition.flushed_up_to,
    )


class OffsetCheckpoints:
    """Recovery points, log start offsets and high watermarks of all partitions."""

    def __init__(self, store_path: Path, shared: SharedPage, *, are_own: bool = False) -> None:
        """`are_own`: only this process replaces the files."""
        names = (RECOVERY_POINT, LOG_START_OFFSET, HIGH_WATERMARK)
        self._paths = {name: store_path / name for name in names}
        self._shared = shared
        self._are_own = are_own
        self._lock = ThreadLock()
        self._offsets: dict[str, Offsets] = {}
        # Of the files that were read: device, inode, time and size; None where there was none.
        self._identities: dict[str, object] = {}
        # Of the files that are known to be on disk.
        self._synced: dict[str, object] = {}
        self.damaged: list[str] = []
        # Partitions whose directories were gone, and up to which offset they were known.
        self.lost: Offsets = {}

    def note_synced(self) -> None:
        """The files are those of a clean close, which synced them."""
        self._synced = {name: self._identity(name) for name in self._paths}

    def recovery_point(self, where: TopicPartition) -> int:
        """Return the offset below which everything is on disk; 0 if nothing is known."""
        return self._of(RECOVERY_POINT).get(where, 0)

    def log_start_offset(self, where: TopicPartition) -> int:
        """The oldest offset that may be read; 0 if nothing is known."""
        return self._of(LOG_START_OFFSET).get(where, 0)

    def knows_start_of(self, where: TopicPartition) -> bool:
        """True if a log start offset is written down."""
        return where in self._of(LOG_START_OFFSET)

    def knows(self, where: TopicPartition) -> bool:
        """True if anything is written down of a partition."""
        return any(
            where in self._of(name) for name in (RECOVERY_POINT, LOG_START_OFFSET, HIGH_WATERMARK)
        )

    def note_if_lost(self, where: TopicPartition, synced_offset: int) -> None:
        """A partition is about to be made that has no directory: it may have had one.

        `synced_offset` is the end of what was synced, by its page.
        """
        known = (self._of(name).get(where, 0) for name in (RECOVERY_POINT, HIGH_WATERMARK))
        offset = max(synced_offset, *known)
        if offset:
            self.lost[where] = offset
            _log.error(
                "the directory of %s is gone, and its log went up to offset %d: it restarts at 0",
                where,
                offset,
            )

    def write(self, known: Mapping[TopicPartition, LastOffsets], *, sync: bool = True) -> None:
        """Replace the checkpoints by what is known now, and by what was read of all others.

        Raises StoreFullError, StoreReadOnlyError or StoreFailedError; the old ones then stand.
        """
        if known:
            self.renew(lambda: known, sync=sync)

    def renew(
        self, look: Callable[[], Mapping[TopicPartition, LastOffsets]], *, sync: bool = True
    ) -> None:
        """Write what `look` finds, like `write`.

        No other process writes between the look and the writing: what was found later is not
        replaced by what was found before.
        """
        with self._shared.held(LOCK_CHECKPOINTS):
            known = look()
            with self._lock:
                self._load()
                points = self._offsets[RECOVERY_POINT]
                found: dict[str, Offsets] = {name: {} for name in self._paths}
                for where, offsets in known.items():
                    flushed = max(points.get(where, 0), offsets.flushed_up_to)
                    found[RECOVERY_POINT][where] = min(offsets.recovery_point, flushed)
                    found[LOG_START_OFFSET][where] = offsets.log_start_offset
                    found[HIGH_WATERMARK][where] = offsets.high_watermark
                if known:
                    wanted = {name: {**self._offsets[name], **found[name]} for name in found}
                    changed = {
                        name: offsets
                        for name, offsets in wanted.items()
                        if offsets != self._offsets[name] or not self._stands(name, sync=sync)
                    }
                    starts = changed.get(LOG_START_OFFSET, {})
                    if not sync and any(starts.values()):
                        # A deletion left it on the disk: it must not go with an unsynced file.
                        self._replace({LOG_START_OFFSET: changed.pop(LOG_START_OFFSET)}, sync=True)
                    self._replace(changed, sync=sync)
                    self._reserve()

    def reserve(self) -> None:
        """Reserve room for the next log starts, if there is room."""
        with self._shared.held(LOCK_CHECKPOINTS):
            self._reserve()

    def _reserve(self) -> None:
        path = self._paths[LOG_START_OFFSET]
        written_bytes = 0
        with suppress(OSError):
            written_bytes = path.stat().st_size
        reserve_room(path, written_bytes + _ROOM_BYTES)

    def end(self) -> None:
        """Give that room back: the store is being closed."""
        give_room_back(self._paths[LOG_START_OFFSET])

    def raise_starts(
        self,
        looks: Mapping[TopicPartition, Callable[[], int]],
        show: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Write down that logs start where the looks find them to, those that did below; synced on
        return. Then `show` is called with each start.

        Raises as `write`; the old checkpoint then stands. No other process writes between the looks
        and the end, nor forgets the partitions.
        """
        with self._shared.held(LOCK_CHECKPOINTS):
            found = {where: look() for where, look in looks.items()}
            with self._lock:
                self._load()
                starts = self._offsets[LOG_START_OFFSET]
                raised = {
                    where: start for where, start in found.items() if starts.get(where, -1) < start
                }
                # What an error left may not be on the disk.
                if raised or not self._stands(LOG_START_OFFSET, sync=True):
                    self._replace({LOG_START_OFFSET: {**starts, **raised}}, sync=True)
                    self._reserve()
            for start in found.values():
                show(start)

    def raise_start(
        self,
        where: TopicPartition,
        look: Callable[[], int],
        show: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Raise the start of one log, as `raise_starts` does."""
        self.raise_starts({where: look}, show)

    def lower_recovery_point(self, where: TopicPartition, offset: int) -> None:
        """Have no higher recovery point of a log than where it ends; synced on return.

        To be called before the first append: what is appended below a higher one would pass for
        synced. Raises as `write`.
        """
        with self._shared.held(LOCK_CHECKPOINTS), self._lock:
            self._load()
            points = self._offsets[RECOVERY_POINT]
            lowered = {**points, where: min(offset, points.get(where, offset))}
            self._replace({RECOVERY_POINT: lowered}, sync=True)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Leave partitions out that are being deleted; durable on return."""
        with self._shared.held(LOCK_CHECKPOINTS), self._lock:
            self._load()
            gone = frozenset(partitions)
            kept = {
                name: {where: at for where, at in offsets.items() if where not in gone}
                for name, offsets in self._offsets.items()
                if not gone.isdisjoint(offsets)
            }
            self._replace(kept, sync=True)

    def _replace(self, wanted: Mapping[str, Offsets], *, sync: bool) -> None:
        """Have these offsets in the files. What is known changes after them: what an error or an
        interrupt leaves is read again.
        """
        write_checkpoints({self._paths[name]: wanted[name] for name in wanted}, sync=sync)
        for name, offsets in wanted.items():
            self._offsets[name] = offsets
            self._identities[name] = self._identity(name)
            if sync:
                self._synced[name] = self._identities[name]

    def _stands(self, name: str, *, sync: bool) -> bool:
        """True if the file is there as it was read or written last, and on disk where that is
        asked for.
        """
        noted = self._synced if sync else self._identities
        identity = self._identity(name)
        return identity is not None and identity == noted.get(name)

    def _of(self, name: str) -> Offsets:
        with self._lock:
            self._load()
            return self._offsets[name]

    def _load(self) -> None:
        if self._are_own and len(self._offsets) == len(self._paths):
            return
        for name in self._paths:
            identity = self._identity(name)
            if name not in self._offsets or (
                identity is not None and identity != self._identities.get(name)
            ):
                self._offsets[name] = self._read(name)
                # Last: what an interrupt leaves is read again.
                self._identities[name] = identity

    def _identity(self, name: str) -> object:
        try:
            found = self._paths[name].stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self, name: str) -> Offsets:
        try:
            return read_checkpoint(self._paths[name])
        except CorruptRecordError as error:
            self.damaged.append(str(error))
            _log.warning("%s; it is left out and rewritten", error)
            return {}
