"""Power cuts by what was really synced: a preloaded library keeps what each sync left of a file.

It knows nothing of the store's promises. What a cut leaves is drawn from the copies and from the
files as they were when the process was killed, sector by sector.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from c_library import built_library
from crash.lost_power import SECTOR_BYTES

SOURCE = Path(__file__).with_name("disk_shadow.c")
NAMES = ".names"
GONE = ".gone"
BEFORE = ".before"
SHARES = (0.0, 0.1, 0.5, 0.9, 0.98, 1.0)


def build_library(folder: Path) -> Path:
    """Compile it; the test is skipped where there is no C compiler."""
    return built_library(SOURCE, folder)


def environment(library: Path, store: Path, shadow: Path, die_at: int = 0) -> dict[str, str]:
    """What a process needs so that its store is shadowed; it dies before the call `die_at`."""
    return os.environ | {
        "LD_PRELOAD": str(library),
        "SHADOWED": str(store),
        "SHADOW": str(shadow),
        "DIE_AT": str(die_at),
    }


def begin_shadow(store: Path, shadow: Path) -> None:
    """The machine was just started: all that is there is on the disk."""
    shutil.rmtree(shadow, ignore_errors=True)
    shutil.copytree(store, shadow)
    for folder in (store, *(one for one in store.rglob("*") if one.is_dir())):
        names = "".join(f"{one.name}\n" for one in folder.iterdir())
        (shadow / folder.relative_to(store) / NAMES).write_text(names)


def cut_power(store: Path, shadow: Path, target: Path, noise: random.Random) -> None:
    """What one cut leaves of the files of a process that was killed."""
    share = noise.choice((*SHARES, None))  # None: each file has its own.
    written: dict[int, Path] = {}  # By inode: a file with two names is one file.
    for path in sorted(store.rglob("*")):
        name = path.relative_to(store)
        if path.is_dir():
            (target / name).mkdir(parents=True, exist_ok=True)
            continue
        copy = shadow / name
        if not copy.exists() and name.name not in _names(shadow, name) and noise.random() < 0.3:
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        former = copy.with_name(copy.name + BEFORE)
        if former.exists() and noise.random() < 0.3:
            shutil.copyfile(former, target / name)
            continue
        status = path.stat()
        if status.st_ino in written:
            os.link(written[status.st_ino], target / name)
            continue
        old = copy.read_bytes() if copy.exists() else b""
        own = noise.choice(SHARES) if share is None else share
        (target / name).write_bytes(_sectors(old, path.read_bytes(), own, noise))
        if status.st_nlink > 1:
            written[status.st_ino] = target / name
    for path in shadow.rglob(f"*{GONE}"):
        name = path.relative_to(shadow).with_name(path.name.removesuffix(GONE))
        is_named = name.name in _names(shadow, name)
        if is_named and not (store / name).exists() and noise.random() < 0.5:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)


def _names(shadow: Path, name: Path) -> set[str]:
    listed = shadow / name.parent / NAMES
    return set(listed.read_text().splitlines()) if listed.exists() else set()


def _sectors(old: bytes, new: bytes, share: float, noise: random.Random) -> bytes:
    if old == new:
        return new
    sizes = sorted((len(old), len(new)))
    size = noise.choice((len(new), len(new), len(old), noise.randint(*sizes)))
    left = bytearray(old[:size].ljust(size, b"\x00"))
    for start in range(0, size, SECTOR_BYTES):
        if noise.random() < share:
            end = min(start + SECTOR_BYTES, size)
            left[start:end] = new[start:end].ljust(end - start, b"\x00")
    return bytes(left)
