"""Directories on a RAM disk, which do not outlive the process that made them.

Invariant: a directory is removed by its owner, or by the next process that makes one after its
owner was killed. Its owner holds the lock of a file in it.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from eoslog.fs.file_system import mount_of

FREE_BYTES_MIN = 256 << 20
_KINDS = ("tmpfs", "ramfs")
_LOCK_NAME = "lock"


def is_ram_disk(path: Path) -> bool:
    """Return True if a directory is on a RAM disk."""
    return mount_of(path).kind in _KINDS


def has_room(path: Path) -> bool:
    """Return True if the file system of a directory has room for the stores of tests."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize >= FREE_BYTES_MIN


def find_ram_disk() -> Path | None:
    """Return a directory on a RAM disk with room, where this user may write; None without one."""
    for name in ("/dev/shm", os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir()):
        path = Path(name)
        with suppress(OSError):
            if name and is_ram_disk(path) and os.access(path, os.W_OK | os.X_OK) and has_room(path):
                return path
    return None


class RamDirectory:
    """A new directory on a RAM disk; `close` removes it."""

    def __init__(self, disk: Path) -> None:
        prefix = f"pytest-eoslog-{os.geteuid()}-"
        _remove_left(disk, prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=disk))
        # It has its name only once it is locked: another process may look at any time.
        aside = self.path / f"{_LOCK_NAME}.new"
        self._lock = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        aside.rename(self.path / _LOCK_NAME)

    def close(self) -> None:
        """Remove the directory with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_left(disk: Path, prefix: str) -> None:
    """Remove the directories of killed processes of this user."""
    for path in disk.glob(f"{prefix}*"):
        with suppress(OSError):
            if path.lstat().st_uid == os.geteuid() and not path.is_symlink() and _is_left(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_left(path: Path) -> bool:
    descriptor = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
