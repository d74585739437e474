"""Copies of stores that are open: their background threads rename files while they are copied."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any


def copy_store(source: Path, target: Path, **options: Any) -> Path:
    """`shutil.copytree`, done again while files of the source vanish under it."""
    while True:
        try:
            return Path(shutil.copytree(source, target, **options))
        except shutil.Error as error:
            if any(os.strerror(errno.ENOENT) not in why for _, _, why in error.args[0]):
                raise
        if not options.get("dirs_exist_ok"):
            shutil.rmtree(target)
