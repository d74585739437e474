"""Owner of a transactional id: one producer object, of one thread, of one process.

In one process the newer owner fences the object of the older one, whose errors then name the newer
owner, its thread and the time. Among processes the id's record names the process that has it, and
the others read it. Epochs fence as well.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakMethod

from eoslog.common import clock
from eoslog.errors import InvalidProducerEpochError, ProducerFencedError
from eoslog.session.lock import moment_text


@dataclass(slots=True, eq=False)
class TransactionOwner:
    """One producer that has, or had, a transactional id. The entry's lock guards it."""

    process_id: int
    host: str
    thread: str
    since_ms: int
    fenced_because: str | None = None
    # Called when it is fenced, if the producer is still there.
    on_fenced: WeakMethod[Callable[[], object]] | None = None

    @classmethod
    def here(cls, on_fenced: Callable[[], object] | None = None) -> "TransactionOwner":
        """The calling thread of this process, from now on. `on_fenced` is a method, held weakly."""
        thread = threading.current_thread().name
        notice = None if on_fenced is None else WeakMethod(on_fenced)
        return cls(os.getpid(), os.uname().nodename, thread, clock.now_ms(), on_fenced=notice)

    def __str__(self) -> str:
        return self.text("since")

    def text(self, since: str) -> str:
        """Describe the owner, for people, with this word before its time."""
        thread = f"process {self.process_id} on {self.host}, thread {self.thread!r}"
        return f"{thread}, {since} {moment_text(self.since_ms)}"

    def fence(self, reason: str) -> None:
        """Refuse every call of this owner from now on; the first reason stays."""
        if self.fenced_because is None:
            self.fenced_because = reason
            if self.on_fenced is not None and (notice := self.on_fenced()) is not None:
                notice()

    def check(self) -> None:
        """Raise ProducerFencedError if another owner, or the store itself, has taken over."""
        if self.fenced_because is not None:
            raise ProducerFencedError(self.fenced_because)

    def explain(
        self, error: ProducerFencedError | InvalidProducerEpochError
    ) -> ProducerFencedError | InvalidProducerEpochError:
        """Return the same error, with the reason for it if one is known."""
        if self.fenced_because is None or self.fenced_because in str(error):
            return error
        return type(error)(f"{error}; {self.fenced_because}")


def taken_over(transactional_id: str, producer_epoch: int, newer: TransactionOwner) -> str:
    """Return the reason of a fence: another producer was initialized with the id."""
    return (
        f"transactional id {transactional_id!r} was initialized again, with epoch "
        f"{producer_epoch}, by {newer.text('at')}"
    )


def taken_elsewhere(
    transactional_id: str,
    producer_epoch: int,
    newer: str | None,
    moment_ms: int,
    expired_ms: int | None,
    timeout_ms: int,
) -> str:
    """Return the reason of a fence: another process initialized the id (`newer` describes it), or
    aborted its transaction, whose time was over at `expired_ms`.
    """
    if newer is not None:
        return (
            f"transactional id {transactional_id!r} was initialized again, with epoch "
            f"{producer_epoch}, by {newer}, at {moment_text(moment_ms)}"
        )
    if expired_ms is not None and moment_ms >= expired_ms:
        return timed_out(transactional_id, expired_ms - timeout_ms, timeout_ms, moment_ms)
    return (
        f"transactional id {transactional_id!r} was terminated by another process, at "
        f"{moment_text(moment_ms)}"
    )


def timed_out(transactional_id: str, start_ms: int, timeout_ms: int, now_ms: int) -> str:
    """Return the reason of a fence: its transaction was open for longer than it had asked for."""
    return (
        f"transactional id {transactional_id!r}: its transaction, begun at "
        f"{moment_text(start_ms)}, was aborted at {moment_text(now_ms)}, after its timeout of "
        f"{timeout_ms} ms: commit sooner, or raise transaction_timeout_ms"
    )


def terminated(transactional_id: str, by: TransactionOwner) -> str:
    """Return the reason of a fence: an operator ended its transaction."""
    return f"transactional id {transactional_id!r} was terminated by {by.text('at')}"
