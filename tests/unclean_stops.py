"""A store that was closed cleanly, as if its process had died before anything was synced."""

from __future__ import annotations

import shutil
from pathlib import Path

from eoslog.fs.checkpoint_file import RECOVERY_POINT


def as_of_a_crash(path: Path) -> None:
    """Nothing is known to be synced."""
    (path / ".kafka_cleanshutdown").unlink()
    (path / RECOVERY_POINT).unlink()
    shutil.rmtree(path / "state" / "control")
