"""Heartbeats: the time of each group member's last poll, for all processes of a store; a file each.

A file's time of change is that of the member's last poll, on the clock that does not jump and is
the same for all processes of a machine. So a member is found out that polls no more although its
process lives, also if that process was stopped and can say nothing itself. Nothing here has to
survive a restart: who was a member then is none any more.
"""

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import make_directories, make_file

DIRECTORY_NAME = "members"
_NAME_BYTES = 16


class MemberHeartbeats:
    """The files of one store's members."""

    def __init__(self, state_path: Path) -> None:
        self._path = state_path / DIRECTORY_NAME

    def begin(self, member_id: str) -> None:
        """A consumer is about to become a member. Raises StoreFullError, StoreReadOnlyError."""
        path = self._path_of(member_id)
        with named_os_errors(f"making {path}"):
            make_directories(self._path)
            make_file(path)
            self._beat(path)

    def beat(self, member_id: str) -> None:
        """The member polls; nothing happens if it is none any more."""
        with suppress(FileNotFoundError):
            self._beat(self._path_of(member_id))

    def age_ms(self, member_id: str) -> int | None:
        """Return how long ago the member polled; None if it has not since the last restart."""
        try:
            beaten_ns = self._path_of(member_id).stat().st_mtime_ns
        except FileNotFoundError:
            return None
        age_ns = time.monotonic_ns() - beaten_ns
        return None if age_ns < 0 else age_ns // 1_000_000

    def end(self, member_id: str) -> None:
        """The consumer is a member no more."""
        with suppress(OSError):
            self._path_of(member_id).unlink(missing_ok=True)

    def forget_all(self) -> None:
        """Forget all members: the store is being opened by its first process."""
        if not self._path.is_dir():
            return
        with named_os_errors(f"clearing {self._path}"):
            for path in self._path.iterdir():
                path.unlink(missing_ok=True)

    @staticmethod
    def _beat(path: Path) -> None:
        now_ns = time.monotonic_ns()
        os.utime(path, ns=(now_ns, now_ns))

    def _path_of(self, member_id: str) -> Path:
        digest = hashlib.blake2b(member_id.encode(), digest_size=_NAME_BYTES)
        return self._path / digest.hexdigest()
