"""Pages of files: into memory and out of it, and how much a piece of work reads from the disk."""

from __future__ import annotations

import os
from pathlib import Path


def drop_from_cache(root: Path) -> None:
    """Sync all files below `root` and ask the kernel to forget their pages."""
    for path in sorted(root.rglob("*")):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)


def supply_pages(folder: Path, count_bytes: int) -> None:
    """Have so much free memory that new files find pages at once, wherever the system has it from.

    The host of a virtual machine takes free pages back after some seconds, and has to supply them
    anew when they are used next: that costs more than all that is done with them.
    """
    piece = bytes(1 << 20)
    path = folder / "pages"
    with path.open("xb", buffering=0) as file:
        for _ in range(0, count_bytes, len(piece)):
            file.write(piece)
    path.unlink()


def disk_read_bytes() -> int:
    """Bytes that this process made the kernel fetch from a disk so far; -1 where it does not say.

    A file system in memory has no disk: it adds nothing.
    """
    try:
        text = Path("/proc/self/io").read_text()
    except OSError:
        return -1
    counts = dict(line.split(": ") for line in text.splitlines())
    return int(counts["read_bytes"])
