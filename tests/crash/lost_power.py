"""What a power cut may leave of a directory: everything that was synced, and any part of the rest.

A model of the disk below the file system's promises: of what was written since the last sync each
sector is there or not, in any order; a file that is not there yet may be missing; its length may be
the old one, the new one or any between. A sector that was not written holds what the file held
before, which for a recycled file is old batches.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

SECTOR_BYTES = 512
DERIVED = (".index", ".timeindex", ".snapshot")


@dataclass
class FileState:
    inode: int
    data: bytes


@dataclass
class DiskState:
    """All files below some directories, at one moment."""

    root: Path
    files: dict[Path, FileState] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Path) -> DiskState:
        state = cls(root)
        for path in sorted(root.rglob("*")):
            if path.is_file():
                state.files[path.relative_to(root)] = FileState(
                    path.stat().st_ino, path.read_bytes()
                )
        return state

    def by_inode(self) -> dict[int, FileState]:
        return {file.inode: file for file in self.files.values()}


class PowerCut:
    """Writes what is left into another directory; each draw is another cut."""

    def __init__(self, synced: DiskState, now: DiskState, seed: int) -> None:
        self._synced = synced
        self._now = now
        self._noise = random.Random(seed)
        # How much of the unsynced bytes reached the disk; at the ends: nothing, everything.
        self._share = self._noise.choice((0.0, 0.1, 0.5, 0.9, 0.98, 1.0))

    def write(self, target: Path, synced_bytes: dict[Path, int]) -> None:
        """`synced_bytes`: how much of each file, named as it is now, was surely synced."""
        before = self._synced.by_inode()
        for name, file in self._now.files.items():
            old = before.get(file.inode, FileState(file.inode, b"")).data
            data = self._left_of(name, old, file.data, synced_bytes.get(name, 0))
            if data is not None:
                path = target / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    def _left_of(self, name: Path, old: bytes, new: bytes, kept_bytes: int) -> bytes | None:
        if name.suffix in DERIVED:
            known = self._synced.files.get(name)
            return new if known is not None and known.data == new else self._derived(new)
        if name.suffix != ".log" or "spare" in name.parts:
            return new
        # The engine syncs the directory when it made a log's first file.
        is_first = name == min(one for one in self._now.files if one.match(f"{name.parent}/*.log"))
        may_be_gone = kept_bytes == 0 and name not in self._synced.files and not is_first
        if may_be_gone and self._noise.random() < 0.2:
            return None
        return self._sectors(old, new, kept_bytes)

    def _derived(self, new: bytes) -> bytes | None:
        """Index and snapshot files that changed promise nothing: they may be gone, cut or zeros."""
        kind = self._noise.choice(("new", "new", "missing", "empty", "cut", "zeros", "noise"))
        if kind == "missing":
            return None
        cut = self._noise.randrange(len(new) + 1)
        return {
            "new": new,
            "empty": b"",
            "cut": new[:cut],
            "zeros": new[:cut] + bytes(len(new) - cut),
            "noise": self._noise.randbytes(len(new)),
        }[kind]

    def _sectors(self, old: bytes, new: bytes, kept_bytes: int) -> bytes:
        size = max(kept_bytes, self._noise.choice((len(new), len(new), min(len(old), len(new)))))
        if self._noise.random() < 0.1:
            size = self._noise.randint(kept_bytes, max(kept_bytes, len(new)))
        left = bytearray(old[:size].ljust(size, b"\x00"))
        for start in range(0, size, SECTOR_BYTES):
            end = min(start + SECTOR_BYTES, size)
            if start < kept_bytes or self._noise.random() < self._share:
                left[start:end] = new[start:end].ljust(end - start, b"\x00")
                if start < kept_bytes < end and self._noise.random() < 0.5:
                    # Synced once, and written again since: the later write may be lost.
                    left[kept_bytes:end] = old[kept_bytes:end].ljust(end - kept_bytes, b"\x00")
        return bytes(left)
