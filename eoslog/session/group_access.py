"""Access of the group of a store's files: none, or to read them, as `eoslog.group.readable` says.

The mode of `state/` is the setting; it is kept nowhere else. Each file and directory has the access
of the directory that it is made in. At the top of the store `state/` must give it too, since the
store's directory may be the user's own with any mode. With access the directories have
the setgid bit: what any process makes in them has the group of the store's directory.

A change that was cut short is made again. It begins with the store's directory if access ends, and
ends with it if access begins. Each directory is changed before the names in it are read, and who
makes a file looks at the directory afterwards: so what is made at the same time is right too. What
was renamed at the same time, the next round finds.
"""

import errno
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

from eoslog.bindings.file_descriptor import FileDescriptor, set_access, sync_file_system
from eoslog.errors import InvalidConfigError
from eoslog.fs.atomic_file import sync_directory
from eoslog.fs.os_errors import named_os_errors
from eoslog.session.paths import StorePaths

_log = logging.getLogger(__name__)

SETTING = "eoslog.group.readable"
# A file system's own, at the top of a volume.
NOT_OURS = frozenset({"lost+found"})


def group_reads(state_path: Path) -> bool:
    """Return True if the group of a store may read it. Raises StoreReadOnlyError and others."""
    with named_os_errors(f"looking at {state_path}"), suppress(FileNotFoundError):
        return bool(state_path.stat().st_mode & stat.S_IRGRP)
    return False


def set_group_access(paths: StorePaths, readable: bool, group: int | None = None) -> None:
    """Let the group read the store, or no more; durable on return.

    `group` is a number, by default that of the store's directory. Processes may have the store
    open; this one keeps others from making the same change. Raises InvalidConfigError, if this
    process may not do that, StoreReadOnlyError and StoreFailedError; what was changed stays so.
    """
    with named_os_errors(f"changing the modes of {paths.root}"):
        root = Path(os.path.realpath(paths.root))
        state = root / paths.state.name
        owner = state.stat().st_uid
        group = root.stat().st_gid if group is None else group
        if os.geteuid() not in (0, owner):
            raise InvalidConfigError(
                f"{SETTING}: the user with the number {owner}, to whom {paths.root} belongs, or "
                "root changes it"
            )
        if readable and not may_give(group):
            raise InvalidConfigError(
                f"{SETTING}: this process is not in the group with the number {group}, which "
                f"{paths.root} has: have its user in it, or give the directory another group, "
                "with chgrp"
            )
        change = _Change(readable, owner, group)
        if not readable:
            change.one(root)
            sync_directory(root)
        while change.tree(state) | change.entries(root):
            pass
        # What was made at the top until then is private.
        while readable and (change.one(root) | change.entries(root)):
            pass
        with FileDescriptor(root, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            if not sync_file_system(descriptor):
                os.sync()


def keep_group_access(source: StorePaths, copy: StorePaths) -> None:
    """Give a copy of a store the group and the access that the store has.

    If this process is not in that group, the copy is its user's alone. Raises as
    `set_group_access`.
    """
    with named_os_errors(f"looking at {source.root}"):
        group = source.root.stat().st_gid
    readable = group_reads(source.state)
    if readable and not may_give(group):
        _log.warning(
            "%s: the copy is for its user alone: this process is not in the group with the number "
            "%d, which may read %s",
            *(copy.root, group, source.root),
        )
        readable = False
    set_group_access(copy, readable, group)


def may_give(group: int) -> bool:
    """Return True if this process may give its files to a group."""
    return os.geteuid() == 0 or group in (os.getegid(), *os.getgroups())


class _Change:
    """Each call returns True if it changed anything. Raises OSError."""

    def __init__(self, readable: bool, owner: int, group: int) -> None:
        self._wanted = readable, owner, group

    def one(self, path: Path) -> bool:
        """Change one file, or one directory without what is in it."""
        return set_access(path, *self._wanted)[0]

    def tree(self, path: Path) -> bool:
        """Change a file, or a directory first and then what is in it."""
        try:
            changed, is_directory = set_access(path, *self._wanted)
        except OSError as error:
            # It was removed, or renamed.
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            return False
        return changed | (is_directory and self.entries(path))

    def entries(self, directory: Path) -> bool:
        """Change all that is in a directory."""
        try:
            paths = list(directory.iterdir())
        except FileNotFoundError:
            return False
        changed = False
        for path in paths:
            if path.name not in NOT_OURS:
                changed |= self.tree(path)
        return changed
