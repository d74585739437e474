"""`eoslog verify --repair`: cut torn tails, set wrong derived files aside, refuse the rest.

A tail is torn if it follows the last whole batch of a log that was stopped uncleanly, at or above
the recovery point, if no whole batch follows it, and if nothing durable refers to it. What is taken
away is kept below `state/cut/`, and synced before it is removed from its place. If anything must be
refused, nothing is changed at all.

Invariants: no record is dropped that was acknowledged as far as any file shows; the next repair
finishes one that was cut short, and a repair of a sound store changes nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from eoslog.bindings.file_descriptor import open_private, sync_descriptor
from eoslog.common import clock
from eoslog.common.config import INT64_MAX
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError, NotAStoreError
from eoslog.fs.atomic_file import sync_directory, sync_file
from eoslog.fs.checkpoint_file import LOG_START_OFFSET, RECOVERY_POINT
from eoslog.fs.identity_files import (
    META_PROPERTIES,
    PARTITION_METADATA,
    read_partition_metadata,
)
from eoslog.fs.offline_log import BrokenTail, OfflineLog
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import make_directories
from eoslog.inspect.durable_bounds import DurableBounds, read_durable_bounds, synced_by_page
from eoslog.inspect.store_verification import Checkpoints, lost_partitions, read_checkpoints
from eoslog.inspect.transaction_verification import AHEAD, OLDER
from eoslog.session.directory import why_no_store
from eoslog.session.lock import StoreLock
from eoslog.session.paths import StorePaths
from eoslog.staging.lost_files import LostFiles, is_of_damaged, is_of_lost
from eoslog.storage.clean_close import read_last_stop
from eoslog.storage.damage import Problem, is_damage, lost_end
from eoslog.storage.journal_replay import journal_files, replay_journals
from eoslog.storage.legal_holes import has_control_page
from eoslog.storage.lmdb_environment import DIRECTORY_NAME as LMDB_NAME
from eoslog.storage.topic_registry import partition_directories
from eoslog.upgrade import read_topics

_DERIVED = (".index", ".timeindex", ".txnindex")
_COPY_BYTES = 1 << 20
# Opening a partition removes what has such a name.
_UNNAMED_SUFFIX = ".cleaned"


@dataclass(frozen=True)
class Change:
    """Something that a repair takes from its place: what, where it is kept, and why."""

    path: Path
    what: str
    kept: Path
    bytes: int
    reason: str

    def described(self) -> dict[str, object]:
        return {**vars(self), "path": str(self.path), "kept": str(self.kept)}

    def __str__(self) -> str:
        return f"{self.path}: {self.what} ({self.bytes} bytes, kept as {self.kept}): {self.reason}"


@dataclass(frozen=True)
class Loss:
    """Something of a staged job that is gone, which a repair completes without it."""

    path: Path
    what: str
    bytes: int
    reason: str

    @classmethod
    def of(cls, lost: LostFiles) -> "Loss":
        reason = f"version {lost.version} of application {lost.app_id!r} was decided"
        return cls(lost.path, lost.what, lost.bytes, reason)

    def described(self) -> dict[str, object]:
        return {**vars(self), "path": str(self.path), "kept": None}

    def __str__(self) -> str:
        return f"{self.path}: {self.what} ({self.bytes} bytes lost): {self.reason}"


@dataclass(frozen=True)
class Refusal:
    """Something wrong that no repair may touch: why, and what can be done."""

    path: Path
    reason: str
    advice: str

    def described(self) -> dict[str, object]:
        return {**vars(self), "path": str(self.path)}

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}. {self.advice}"


COPY_ADVICE = "Put the file back from a copy, or read what is whole with `eoslog dump --deep`"
LOST_ADVICE = (
    "Put the directory back from a copy, or make an empty one in its place to go on without it"
)
TORN_ADVICE = "Copy the store once more, all of it, while no process has it open"
SYNCED_ADVICE = "Records that were synced are damaged or gone. " + COPY_ADVICE


class StoreRepair:
    """Repair of a store that no process has open, and none opens before the block's end."""

    def __init__(self, root: Path) -> None:
        if not (root / META_PROPERTIES).exists():
            raise NotAStoreError(f"{root} is not a store: {why_no_store(root)}")
        self._paths = StorePaths(root.absolute())
        with named_os_errors(f"opening {root}"):
            make_directories(self._paths.state)
        self._lock = StoreLock(self._paths.state, joining=False)
        # Two at once are kept apart by the lock, and one after another by the time.
        self._now_ms = clock.now_ms()

    def __enter__(self) -> "StoreRepair":
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    # Commit journals.

    @property
    def has_journals(self) -> bool:
        """True if the store was stopped uncleanly, and commit journals were left."""
        paths = self._paths
        was_unclean = read_last_stop(paths.clean_marker, paths.unrecovered).unrecovered is None
        return was_unclean and bool(journal_files(paths))

    def write_journals_back(self) -> None:
        """Have in the files what commit journals hold, as the next opening would: it is no damage.

        Raises CorruptRecordError for a journal that is damaged.
        """
        topics = read_topics(self._paths.state)
        if topics is None or not self.has_journals:
            return
        starts = read_checkpoints(self._paths)[0].get(LOG_START_OFFSET, {})
        replay_journals(self._paths, topics.values(), lambda where: starts.get(where, 0))

    # Torn tails.

    def look_at_tails(self) -> tuple[list[BrokenTail], list[Refusal]]:
        """Find what recovery would cut: the tails that may be cut, and refusals for the others."""
        paths = self._paths
        unrecovered = read_last_stop(paths.clean_marker, paths.unrecovered).unrecovered
        checkpoints, _ = read_checkpoints(paths)
        recovery_points = checkpoints.get(RECOVERY_POINT, {})
        legal_holes = self._legal_holes(checkpoints)
        bounds: DurableBounds | None = None
        torn: list[BrokenTail] = []
        # Where internal logs are gone, what they knew of the others is lost.
        refused = [
            Refusal(Path(str(one["path"])), str(one["reason"]), LOST_ADVICE)
            for one in lost_partitions(paths, checkpoints, {})
        ]
        for where, path in partition_directories(paths.root):
            is_clean = unrecovered is not None and where not in unrecovered
            log = OfflineLog(path)
            tail = log.broken_tail(recovery_points.get(where, 0), legal_holes(where))
            if tail is None:
                refused += self._lost_end(where, log)
                continue
            bounds = bounds or read_durable_bounds(paths, recovery_points)
            refusal = _refusal(where, log, tail, bounds, is_clean)
            if refusal is None:
                torn.append(tail)
            else:
                refused.append(refusal)
        return torn, refused

    def _legal_holes(self, checkpoints: Checkpoints) -> Callable[[TopicPartition], int]:
        """Return the function that gives the offset below which a hole is no damage."""
        try:
            topics = read_topics(self._paths.state) or {}
        except CorruptRecordError:
            topics = {}  # Opening the store reports it.
        checkpointed = {where for offsets in checkpoints.values() for where in offsets}

        def below(where: TopicPartition) -> int:
            topic = topics.get(where.topic)
            if topic is None:
                return 0
            is_known = where in checkpointed or has_control_page(self._paths, where)
            # Of one that is not, the opening will find out.
            return topic.holes_below.get(where.partition, 0 if is_known else INT64_MAX)

        return below

    def _lost_end(self, where: TopicPartition, log: OfflineLog) -> list[Refusal]:
        """Refuse a repair where nothing is torn, and yet the log ends below what was synced."""
        path = self._paths.partition(where)
        lost = lost_end(str(path), synced_by_page(self._paths, where), log.end_offset)
        return [] if lost is None else [Refusal(path, lost.text, SYNCED_ADVICE)]

    def planned(self, torn: Iterable[BrokenTail]) -> list[Change]:
        """Return the changes that cutting these tails will make."""
        return [self._change_of(tail) for tail in torn]

    def _change_of(self, tail: BrokenTail) -> Change:
        place = self._paths.cut / tail.path.parent.name
        name = f"{tail.path.name}.{tail.position_bytes}.{self._now_ms}"
        what = f"cut at byte {tail.position_bytes}, where offset {tail.offset} would be"
        return Change(tail.path, what, place / name, tail.bytes, tail.reason)

    def cut(self, torn: Iterable[BrokenTail]) -> list[Change]:
        """Cut these tails, and return what was done."""
        done = []
        for tail in torn:
            change = self._change_of(tail)
            with named_os_errors(f"cutting {tail.path}"):
                _keep(tail, change.kept)
                _cut(tail)
            done.append(change)
        return done

    # What is derived.

    def remedies(self, problems: Iterable[Problem]) -> tuple[list[Change], list[Refusal]]:
        """Return the files to set aside so that they are made again, and the problems left; not
        those of lost staged files.
        """
        changes: dict[Path, Change] = {}
        refused = []
        for one in problems:
            path, reason = Path(str(one["path"])), str(one["reason"])
            # Each close writes the checkpoints again.
            is_rewritten = path.name.endswith("-checkpoint") and reason.startswith(
                "not a checkpoint"
            )
            if path in changes or is_rewritten or is_of_lost(one) or not is_damage(one):
                continue
            if is_of_damaged(one):
                changes[path] = self._set_staged_aside(path, len(changes), reason)
                continue
            advice = TORN_ADVICE if reason.startswith((AHEAD, OLDER)) else self._why_not(path)
            if advice is None:
                changes[path] = self._set_aside(path, reason)
            else:
                refused.append(Refusal(path, reason, advice))
        # Where nothing was deleted the log has all that either holds.
        needed = (path for path in changes if path.suffix == ".snapshot")
        if self._lmdb in changes and any(OfflineLog(one.parent).first_offset for one in needed):
            lmdb = changes.pop(self._lmdb)
            reason = f"{lmdb.reason}; a snapshot is wrong too, and one of the two has to be right"
            refused.append(Refusal(lmdb.path, reason, COPY_ADVICE))
        return list(changes.values()), refused

    @property
    def _lmdb(self) -> Path:
        return self._paths.state / LMDB_NAME

    def _why_not(self, path: Path) -> str | None:
        """Return why a file cannot be made again, from the log or the list of topics; None if it
        can.
        """
        if _is_derived(path) or (path.name == PARTITION_METADATA and _is_unreadable(path)):
            return None
        if path == self._lmdb:
            return self._why_lmdb_is_needed()
        if (
            path.suffix == ".log"
            or path.name.startswith("__")
            or (path.parent == self._paths.root and path.name.endswith("-checkpoint"))
        ):
            return SYNCED_ADVICE
        return "Only you know what it is: move it away, or put back what is missing"

    def _why_lmdb_is_needed(self) -> str | None:
        for where, path in partition_directories(self._paths.root):
            first = OfflineLog(path).first_offset
            snapshots = [int(one.name[:20]) for one in path.glob("*.snapshot")]
            if first > 0 and not any(offset >= first for offset in snapshots):
                return (
                    f"It alone remembers the producers of what {where} has deleted below offset "
                    f"{first}. " + COPY_ADVICE
                )
        return None

    def _set_aside(self, path: Path, reason: str) -> Change:
        place, source = self._paths.cut, "log"
        if _is_derived(path):
            place = place / path.parent.name
        elif path.name == PARTITION_METADATA:
            place, source = place / path.parent.name, "list of topics"
        kept = place / f"{path.name}.{self._now_ms}"
        files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
        size = sum(one.stat().st_size for one in files)
        return Change(path, f"set aside, to be rebuilt from the {source}", kept, size, reason)

    def _set_staged_aside(self, path: Path, number: int, reason: str) -> Change:
        kept = self._paths.cut / f"staged-file.{number}.{self._now_ms}"
        what = "set aside, so that its job can be completed without it"
        return Change(path, what, kept, path.lstat().st_size, reason)

    def set_aside(self, changes: Iterable[Change]) -> None:
        """Set the files aside; each by one rename, which is durable on return."""
        for change in changes:
            with named_os_errors(f"setting {change.path} aside"):
                make_directories(change.kept.parent)
                change.path.rename(change.kept)
            sync_directory(change.kept.parent)
            sync_directory(change.path.parent)


def _is_derived(path: Path) -> bool:
    return path.suffix in (*_DERIVED, ".snapshot")


def _is_unreadable(metadata: Path) -> bool:
    """True if the metadata of a partition names no topic, and not another one."""
    try:
        read_partition_metadata(metadata.parent)
    except CorruptRecordError:
        return True
    return False


def _refusal(
    where: TopicPartition,
    log: OfflineLog,
    tail: BrokenTail,
    bounds: DurableBounds,
    is_clean: bool,
) -> Refusal | None:
    place = f"at byte {tail.position_bytes}, where offset {tail.offset} would be: {tail.reason}"
    if is_clean:
        reason = "the store was closed cleanly, so all of it was whole and synced"
        return Refusal(tail.path, f"{place}; {reason}", SYNCED_ADVICE)
    if tail.sound is not None:
        path, position, offset = tail.sound
        where_it_is = f"after it, in {path} at byte {position}"
        if (path, position) == (tail.path, tail.position_bytes):
            where_it_is = "there"
        reason = f"this is no torn end: a whole batch at offset {offset} stands {where_it_is}"
        advice = f"{COPY_ADVICE}; opening the store cuts all of it off, and keeps it in state/cut"
        return Refusal(tail.path, f"{place}; {reason}", advice)
    objection = bounds.objection(where, log, tail.offset)
    if objection is not None:
        return Refusal(tail.path, f"{place}; {objection}", SYNCED_ADVICE)
    return None


def _cut(tail: BrokenTail) -> None:
    """Cut it off, durably."""
    if tail.path.stat().st_nlink == 1:
        with tail.path.open("r+b") as file:
            file.truncate(tail.position_bytes)
            sync_descriptor(file.fileno())
        return
    # A staged file too, of a job that is not complete: it will be adopted again, as it is.
    left = tail.path.with_name(tail.path.name + _UNNAMED_SUFFIX)
    _copy(tail.path, 0, tail.position_bytes, left)
    sync_file(left)
    left.replace(tail.path)
    sync_directory(tail.path.parent)


def _keep(tail: BrokenTail, kept: Path) -> None:
    """Copy what is cut off; it is on the disk on return, under its name."""
    make_directories(kept.parent)
    try:
        _copy(tail.path, tail.position_bytes, tail.bytes, kept)
        sync_file(kept)
    except BaseException:
        kept.unlink(missing_ok=True)  # The next try has another name.
        raise
    sync_directory(kept.parent)


def _copy(path: Path, position_bytes: int, size_bytes: int, to: Path) -> None:
    """Copy so many bytes of a file from a position on."""
    with path.open("rb") as source, open(to, "wb", opener=open_private) as target:
        source.seek(position_bytes)
        left = size_bytes
        while left:
            piece = source.read(min(left, _COPY_BYTES))
            target.write(piece)
            left -= len(piece)
