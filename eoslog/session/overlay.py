"""A directory in memory in which a store is opened that is only read: the overlay.

It looks like the store. The logs' files in it are symbolic links to the store's; what else an
opening reads is copied: checkpoints, the list of topics, LMDB, control pages. The opening, the
recovery of a store that was not closed, and all that follows write to the overlay alone. So what is
read is what the next process that opens the store finds, and the store stays as it is.

Of a store that processes have open it has what they keep beside the logs, and the logs of the
partitions that none of them has opened. The others are followed where they are (`followed`).

Invariants: nothing is created, written, locked exclusively or synced in the store; the directory is
its user's alone, and locked while it is in use, so that one whose process died is removed by the
next reader of the same user; the overlay of a store which no process has open shows when one has
opened it since.
"""

import errno
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from eoslog.bindings.file_descriptor import FileDescriptor
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.bindings.unforked_file import UnforkedFile
from eoslog.common import clock
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    NotAStoreError,
    StoreInUseError,
    StoreReadOnlyError,
    StoreReopenedError,
)
from eoslog.fs.atomic_file import TEMPORARY_SUFFIX, read_if_there
from eoslog.fs.checkpoint_file import HIGH_WATERMARK, LOG_START_OFFSET, RECOVERY_POINT
from eoslog.fs.file_system import boot_id, mount_of
from eoslog.fs.identity_files import META_PROPERTIES, PARTITION_METADATA
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.overlay_directories import add_overlay, remove_overlay
from eoslog.fs.private_files import FILE_MODE, make_directory, remove_directory
from eoslog.session.directory import why_no_store
from eoslog.session.followed_session import FollowedSession
from eoslog.session.group_access import SETTING as GROUP_SETTING
from eoslog.session.lmdb_copy import copy_lmdb
from eoslog.session.lock import FILE_NAME as LOCK_NAME
from eoslog.session.lock import OPENING_FILE_NAME, OPENING_TIMEOUT_S
from eoslog.session.paths import StorePaths
from eoslog.session.process_slots import any_alive
from eoslog.session.store_session import SIGN_OF_LIFE_S, SessionFile

NAME_PREFIX = "eoslog-reader-"
# Where there is room in it; else overlays are where temporary files are.
MEMORY = Path("/dev/shm")
# So much more than LMDB's file is to be free where an overlay is made.
_ROOM_BYTES = 16 << 20
_LOOK_S = 0.005
_PIECE_BYTES = 1 << 16
_LOCK_SUFFIX = ".lock"
_LMDB_DIRECTORY, _LMDB_NAME = "lmdb", "data.mdb"
# Of a segment; other files of a partition's directory are copied, or are left over.
_LINKED_SUFFIXES = frozenset((".log", ".index", ".timeindex", ".txnindex", ".snapshot"))
_LEFT_OVER_SUFFIXES = frozenset((".deleted", ".cleaned", TEMPORARY_SUFFIX))
# Of the store's own session, which is not the reader's.
_NOT_COPIED = frozenset((LOCK_NAME, OPENING_FILE_NAME, "shared", "session.json"))


class WatchedFile(NamedTuple):
    """A file as it was at a look; zeros stand for none."""

    path: str
    device: int
    inode: int
    changed_s: int
    changed_ns: int

    @classmethod
    def at(cls, path: Path) -> "WatchedFile":
        try:
            found = path.stat()
        except FileNotFoundError:
            return cls(str(path), 0, 0, 0, 0)
        return cls(str(path), found.st_dev, found.st_ino, *divmod(found.st_ctime_ns, 10**9))


class _Partitions:
    """Brings the files of the store's partitions into an overlay once they are asked for."""

    def __init__(self, store: StorePaths, controls: Path, *, changes: bool) -> None:
        """`controls` is where their pages come to. `changes`: topics come and go in the store."""
        self._store = store
        self._controls = controls
        self._changes = changes
        self._lock = ThreadLock()
        # Of which topic it was, by the file that says so; None: there was none.
        self._linked: dict[TopicPartition, bytes | None] = {}
        self.watched: dict[TopicPartition, WatchedFile] = {}  # That file, before its links.
        self._copied: set[TopicPartition] = set()

    def bring_partition(self, where: TopicPartition, path: Path) -> None:
        if where in self._linked and not self._changes:
            return
        source = self._store.partition(where)
        with self._lock, named_os_errors(f"reading {source}"):
            watched = WatchedFile.at(source / PARTITION_METADATA)
            identity = read_if_there(source / PARTITION_METADATA)
            # Once: from then on they are the overlay's own.
            if where not in self._linked or self._linked[where] != identity:
                if where in self._linked:
                    self._drop(where, path)
                if source.is_dir() and not path.is_dir():
                    make_directory(path)
                _link_files(source, path)
                self._linked[where], self.watched[where] = identity, watched

    def bring_control(self, where: TopicPartition, path: Path) -> None:
        if where in self._copied:
            return
        source = self._store.control(where)
        with self._lock, named_os_errors(f"reading {source}"):
            if where not in self._copied and source.exists():
                _copy(source, path)
            self._copied.add(where)

    def forget(self, where: TopicPartition, path: Path) -> None:
        """Have the files of a partition brought again when they are asked for."""
        with self._lock, named_os_errors(f"removing {path}"):
            self._drop(where, path)

    def _drop(self, where: TopicPartition, path: Path) -> None:
        if path.is_dir():
            remove_directory(path)
        (self._controls / str(where)).unlink(missing_ok=True)
        self._linked.pop(where, None)
        self.watched.pop(where, None)
        self._copied.discard(where)


class Overlay:
    """The overlay of one store: `paths` are the paths in it. `close` removes it."""

    def __init__(self, store: StorePaths) -> None:
        """Make it. `followed` is the session of the processes that have the store open, or None.

        Raises NotAStoreError, StoreInUseError, StoreFullError (of the memory), StoreReadOnlyError
        (this user may not read the store), StoreFailedError.
        """
        self.store = store
        self._checkpoints: dict[str, WatchedFile] = {}  # As they were copied last.
        self._file: UnforkedFile | None = None
        self._removal: weakref.finalize[..., Any] | None = None
        try:
            with named_os_errors(f"opening {store.root}"):
                if not _is_there(store.root / META_PROPERTIES):
                    raise NotAStoreError(  # noqa: TRY301
                        f"{store.root} is not a store: {why_no_store(store.root)}"
                    )
            until_s = time.monotonic() + OPENING_TIMEOUT_S
            while time.monotonic() < until_s:
                if self._made():
                    return
                self.close()
                time.sleep(_LOOK_S)
        except BaseException as error:
            self.close()
            if isinstance(error, StoreReadOnlyError):
                _refuse_user(store, error)
            raise
        raise StoreInUseError(
            f"{store.root} has been opened and closed again and again, or been in the opening, for "
            f"{OPENING_TIMEOUT_S:g} s"
        )

    def _made(self) -> bool:
        """Make it; False if a process opens the store, or has opened it since."""
        with named_os_errors(f"looking at {self.store.shared}"):
            self.watched = WatchedFile.at(self.store.shared)
        # A process has its slot after it began a session, and before that is taken up.
        self.followed = FollowedSession(self.store) if any_alive(self.store.state) else None
        if self.followed is not None and self.followed.look() is None:
            return False
        with named_os_errors(f"reading {self.store.root}"):
            place = self._place()
        with named_os_errors(f"making {place}/{NAME_PREFIX}*"):
            _remove_dead(place)
            self._path = place / f"{NAME_PREFIX}{os.urandom(16).hex()}"
            # An interrupt (Ctrl-C) may come before anybody has this object, or in its close.
            self._removal = weakref.finalize(self, _remove, self._path, os.getpid())
            self._removal.atexit = False  # A store that is open then is closed.
            self._file = _make_locked(self._path)
        root = self._path / self.store.root.name
        add_overlay(self._path)
        controls = StorePaths(root).controls
        self._partitions = _Partitions(self.store, controls, changes=self.followed is not None)
        self.paths = StorePaths(root, self.store.root, self._partitions)
        with named_os_errors(f"reading {self.store.root} into {self._path}"):
            try:
                self._fill()
            except FileNotFoundError:  # Of a process that changes the store.
                if self.followed is None and self._is_current():
                    raise
                return False
        if self.followed is None:
            self._check_no_other_host()
            return not any_alive(self.store.state) and self._is_current()
        # Else what it has may be of the next session.
        return self.followed.is_current()

    def _check_no_other_host(self) -> None:
        """Check for a sign of life from another host; locks may not reach from host to host."""
        found = SessionFile.read(self.store.session)
        if found is None or found.boot_id == boot_id() or not mount_of(self.store.state).network:
            return
        # By this host's clock: nothing is written.
        with named_os_errors(f"looking at {self.store.session}"), suppress(FileNotFoundError):
            age_ms = clock.now_ms() - self.store.session.stat().st_mtime * 1000
            if age_ms < SIGN_OF_LIFE_S * 1000:
                raise StoreInUseError(f"{self.store.root} is open on another host: {found}")

    def _is_current(self) -> bool:
        with named_os_errors(f"looking at {self.store.shared}"):
            return WatchedFile.at(self.store.shared) == self.watched

    def check(self) -> None:
        """Raise StoreReopenedError if a process opened the store since, and none had it open."""
        if self.followed is not None:
            self.followed.look()
        elif not self._is_current():
            raise StoreReopenedError(
                f"{self.store.root}: another process has opened the store since it was opened to "
                "be read: open it again"
            )

    def bring_again(self, where: TopicPartition) -> None:
        """Have a partition's files, and the checkpoints, as they are in the store by now; none of
        the partition's files is open here.
        """
        self._partitions.forget(where, self.paths.root / str(where))
        with named_os_errors(f"reading {self.store.root}"):
            for name in (RECOVERY_POINT, LOG_START_OFFSET, HIGH_WATERMARK):
                self._bring_checkpoint(name)

    def _bring_checkpoint(self, name: str) -> None:
        source = self.store.root / name
        found, path = WatchedFile.at(source), self.paths.root / name
        if found.inode and found != self._checkpoints.get(name):
            copy = path.with_name(f"{name}{TEMPORARY_SUFFIX}")
            with suppress(FileNotFoundError):
                _copy(source, copy)
                copy.replace(path)
                self._checkpoints[name] = found

    def watched_of(self, where: TopicPartition) -> WatchedFile:
        """Return what shows whether a partition's links lead to its files: while that is unchanged,
        or, of a store that processes have open, still has the topic's id.
        """
        if self.followed is None:
            return self.watched
        return self._partitions.watched.get(where) or self.metadata_of(where)

    def metadata_of(self, where: TopicPartition) -> WatchedFile:
        """Return the file with the id of a partition's topic as it is now."""
        path = self.store.partition(where) / PARTITION_METADATA
        with named_os_errors(f"looking at {path}"):
            return WatchedFile.at(path)

    def may_be_opened(self) -> bool:
        """True if a partition that no process has open may be opened here: the newest session was
        taken up. Before, a job may be in adoption that no page has a hold for. Raises
        StoreReopenedError if all processes of that session died before.
        """
        assert self.followed is not None
        if self.followed.is_taken_up():
            return True
        if not any_alive(self.store.state) and not self.followed.is_taken_up():
            raise StoreReopenedError(
                f"{self.store.root}: all processes died while they opened the store: open it again"
            )
        return False

    def copy_lmdb(self, path: Path) -> bool:
        """Copy the store's LMDB file as it is now; False if there is none, or that failed."""
        source = self.store.state / _LMDB_DIRECTORY / _LMDB_NAME
        with suppress(FileNotFoundError):
            return copy_lmdb(source, path)
        return False

    def close(self) -> None:
        """Remove the directory; a second call does nothing."""
        if self._removal is None:
            return
        _remove(self._path, os.getpid())
        self._removal.detach()
        if self._file is not None:
            self._file.close()
        self._file = self._removal = None

    def leave_to_parent(self) -> None:
        """Touch nothing any more: this is a forked child."""
        if self._removal is not None:
            self._removal.detach()
        self._file = self._removal = None

    def _place(self) -> Path:
        """Return where there is room for it: in memory, or where temporary files are."""
        wanted_bytes = _ROOM_BYTES
        with suppress(FileNotFoundError):
            lmdb_path = self.store.state / _LMDB_DIRECTORY / _LMDB_NAME
            wanted_bytes += 2 * lmdb_path.stat().st_size
        if os.access(MEMORY, os.W_OK | os.X_OK):
            memory = os.statvfs(MEMORY)
            if memory.f_bavail * memory.f_frsize >= wanted_bytes:
                return MEMORY
        import tempfile  # It loads much.

        return Path(tempfile.gettempdir())

    def _fill(self) -> None:
        root, store = self.paths.root, self.store
        for directory in (root, self.paths.state, self.paths.controls):
            make_directory(directory)
        for entry in os.scandir(store.root):
            if entry.name in (store.state.name, store.staging.name):
                continue
            if entry.is_dir():
                # Its files when they are asked for: there may be many.
                make_directory(root / entry.name)
            elif entry.is_file() and not entry.name.endswith(TEMPORARY_SUFFIX):
                self._copy_file(Path(entry.path), root / entry.name)
        for entry in _entries(store.state):
            is_copied = entry.name not in _NOT_COPIED and not entry.name.endswith(
                (_LOCK_SUFFIX, TEMPORARY_SUFFIX)
            )
            if is_copied and entry.is_file():
                self._copy_file(Path(entry.path), self.paths.state / entry.name)
        lmdb_path = store.state / _LMDB_DIRECTORY / _LMDB_NAME
        if lmdb_path.is_file():
            make_directory(self.paths.state / _LMDB_DIRECTORY)
            # Without it all comes from the logs.
            copy_lmdb(lmdb_path, self.paths.state / _LMDB_DIRECTORY / _LMDB_NAME)
        if self.followed is not None:
            self.paths.staging = store.staging
        elif store.staging.is_dir():
            _link_tree(store.staging, self.paths.staging)

    def _copy_file(self, source: Path, target: Path) -> None:
        try:
            _copy(source, target)
        except FileNotFoundError:
            if self.followed is None:
                raise


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _refuse_user(store: StorePaths, error: StoreReadOnlyError) -> None:
    """Raise what another user needs to read the store, if that is what the error is about."""
    cause = error.__cause__
    if not isinstance(cause, PermissionError) or str(store.root) not in str(cause.filename):
        return
    raise StoreReadOnlyError(
        f"{error}. The store's user can let the group of its directory read it, which this process "
        f"must be in: `eoslog config --store {store.root} --config {GROUP_SETTING}=true`"
    ) from cause


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(FileNotFoundError):
        yield from os.scandir(directory)


def _link_files(source: Path, target: Path) -> None:
    """Put what a partition's directory holds into the one that stands for it."""
    for entry in _entries(source):
        suffix = Path(entry.name).suffix
        if suffix in _LINKED_SUFFIXES:
            with suppress(FileExistsError):
                (target / entry.name).symlink_to(entry.path)
        elif suffix not in _LEFT_OVER_SUFFIXES and entry.is_file():
            _copy(Path(entry.path), target / entry.name)


def _link_tree(source: Path, target: Path) -> None:
    """Have the directories of a tree at a second place, with links to the files."""
    make_directory(target)
    for entry in _entries(source):
        if entry.is_dir(follow_symlinks=False):
            _link_tree(Path(entry.path), target / entry.name)
        else:
            (target / entry.name).symlink_to(entry.path)


def _copy(source: Path, target: Path) -> None:
    """Copy a small file. A copy that fails leaves none."""
    try:
        with (
            FileDescriptor(source, os.O_RDONLY | os.O_NONBLOCK) as data,
            FileDescriptor(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE) as copy,
        ):
            while piece := os.read(data, _PIECE_BYTES):
                while piece:
                    piece = piece[os.write(copy, piece) :]
    except BaseException:
        target.unlink(missing_ok=True)
        raise


# The directories of readers.


def _make_locked(path: Path) -> UnforkedFile:
    """Make a directory, and lock it while no other reader takes it for that of a dead one."""
    while True:
        path.mkdir(mode=0o700)
        with suppress(FileNotFoundError):
            file = _opened(path)
            if file.lock(exclusive=True, wait=True) and path.exists():
                return file
            file.close()


def _remove(path: Path, process_id: int) -> None:
    """Remove a directory that this process made, if it is not the child of the one that did."""
    if os.getpid() == process_id:
        with suppress(OSError):
            remove_directory(path)
        remove_overlay(path)


def _remove_dead(place: Path) -> None:
    """Remove the directories of this user's readers that died."""
    for entry in os.scandir(place):
        if not entry.name.startswith(NAME_PREFIX):
            continue
        with suppress(OSError):
            if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                continue
            file = _opened(Path(entry.path))
            try:
                if file.lock(exclusive=True, wait=False):
                    remove_directory(Path(entry.path))
            finally:
                file.close()


def _opened(path: Path) -> UnforkedFile:
    try:
        return UnforkedFile(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, FILE_MODE)
    except OSError as error:
        if error.errno == errno.ENOTDIR:
            raise FileNotFoundError(errno.ENOENT, "not a directory", str(path)) from error
        raise
