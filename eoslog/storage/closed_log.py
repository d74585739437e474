"""Stubs in the place of a partition's log that this process must not touch any more.

Invariants: each call raises the error that says why, a new one each time. Nothing of the log's
memory is kept for it, except in a forked child, where giving it up would touch the parent's.
"""

from typing import Any

from eoslog.bindings.partition_log import PartitionLog
from eoslog.errors import ForkedProcessError, LogClosedError, StoreError


class ClosedLog:
    """Stub in the place of a log that was closed, so that its memory and mappings can go."""

    def __init__(self, log: PartitionLog) -> None:
        self.path = log.path
        self.recovery_point = log.recovery_point
        self.failed = log.failed
        self.deleted = log.deleted
        self.cut_bytes = log.cut_bytes
        self.attached = log.attached
        self.error: StoreError = LogClosedError(f"{log.topic}-{log.partition} is closed")

    def close(self, clean: bool) -> None:
        """Do nothing: it is closed."""

    def __getattr__(self, name: str) -> Any:
        # A new one each time: tracebacks would gather on one that is raised again and again.
        raise type(self.error)(*self.error.args)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("own_end", "hold_offset"):
            self.__getattr__(name)
        super().__setattr__(name, value)


class LogOfParent:
    """Stub in the place of a log that the parent process owns; keeps it from being given up."""

    def __init__(self, log: object) -> None:
        self.__dict__["kept"] = log

    def __getattr__(self, name: str) -> Any:
        raise ForkedProcessError("the store was opened before a fork: open it anew in the child")

    def __setattr__(self, name: str, value: object) -> None:
        self.__getattr__(name)
