"""Facts about the file system: if other hosts may have it mounted, and what processes need in
common to share memory maps and locks.

On a network file system neither a map nor a file lock need be shared with all who have the
file open. And a lock in shared memory names its holder by a thread's number, so all who take it
have to be numbered in one row: by one kernel, and in one namespace of it. Containers often have
one each.
"""

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MOUNTS = Path("/proc/self/mountinfo")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
BOOT_ID_BYTES = 16
PROCESS_NAMESPACE = Path("/proc/self/ns/pid")

# Of other hosts, and of the host of a virtual machine.
_NETWORK = frozenset(
    {"9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "glusterfs", "gpfs", "lustre"}
    | {"ncpfs", "nfs", "nfs4", "orangefs", "panfs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs"}
    | {"vboxsf", "virtiofs", "vmhgfs", "wekafs"}
)
# Of those that run outside of the kernel, the ones that are known to be of this host.
_LOCAL_FUSE = frozenset(
    {"bindfs", "encfs", "exfat", "ext2", "ext4", "fuse-overlayfs", "gocryptfs", "lxcfs", "mergerfs"}
    | {"mhddfs", "ntfs", "ntfs-3g", "securefs", "unionfs", "zfs-fuse"}
)


class Mount(NamedTuple):
    """The file system that a path lies on; "" for what is not known."""

    kind: str
    source: str
    mounted_at: str

    @property
    def network(self) -> bool:
        """True if other hosts may have it mounted too."""
        if self.kind in _NETWORK:
            return True
        family, dot, name = self.kind.partition(".")
        return family == "fuse" and bool(dot) and name not in _LOCAL_FUSE

    def __str__(self) -> str:
        return f"{self.kind} ({self.source}, mounted at {self.mounted_at})"


UNKNOWN = Mount("", "", "")


def mount_of(path: Path) -> Mount:
    """The file system that holds a path which exists."""
    try:
        lines = MOUNTS.read_bytes().decode(errors="surrogateescape").splitlines()
    except OSError:
        return UNKNOWN
    real = os.path.realpath(path)
    found, found_chars = UNKNOWN, -1
    for line in lines:
        mount = _parsed(line)
        # Of several at one place the last covers the others.
        if mount and len(mount.mounted_at) >= found_chars and _is_below(real, mount.mounted_at):
            found, found_chars = mount, len(mount.mounted_at)
    return found


def boot_id() -> str:
    """Return a mark that only processes under one running kernel share; "" if there is no such
    mark.
    """
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def boot_id_bytes() -> bytes | None:
    """Return the 16 bytes of `boot_id`; None if it has not so many."""
    try:
        found = bytes.fromhex(boot_id().replace("-", ""))
    except ValueError:
        return None
    return found if len(found) == BOOT_ID_BYTES else None


def process_namespace() -> str:
    """Return a mark that only processes of one pid namespace share; "" if it is not known."""
    try:
        return str(PROCESS_NAMESPACE.readlink())
    except OSError:
        return ""


def _parsed(line: str) -> Mount | None:
    fields = line.split(" ")
    try:
        hyphen = fields.index("-", 6)
        return Mount(fields[hyphen + 1], _unescaped(fields[hyphen + 2]), _unescaped(fields[4]))
    except (ValueError, IndexError):
        return None


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _unescaped(text: str) -> str:
    """The kernel writes a blank, a tab, a line's end and a backslash as octal numbers."""
    for escaped, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n")):
        text = text.replace(escaped, character)
    return text.replace("\\134", "\\")


def raise_open_files() -> None:
    """Raise how many files this process may have open to the most that it may set itself.

    Programs that it starts inherit that.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
