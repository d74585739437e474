"""Files and directories that go to disk together: syncs that wait at once share the disk's work.

Six of them, one after the other, are six waits for the disk. Six at once are one or two: a file
system writes what changed in its directories for all of them in one go.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from eoslog.bindings.joined_threads import JoinedThreads

T = TypeVar("T")

SYNC_THREADS_MAX = 16


def run_together(calls: Iterable[Callable[[], T]], threads_max: int = SYNC_THREADS_MAX) -> list[T]:
    """Call all of them, several at once; what they answered, in their order.

    When it returns or raises none of them runs any more. Raises the error of the first that failed,
    after all have run; after an interrupt those that were not begun never are.
    """
    waiting = list(calls)
    threads_max = min(threads_max, len(waiting))
    if threads_max < 2:
        return [call() for call in waiting]
    left = deque(enumerate(waiting))
    answers: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def work() -> None:
        while True:
            try:
                number, call = left.popleft()
            except IndexError:
                return
            try:
                answers[number] = call()
            except BaseException as error:
                errors[number] = error

    with JoinedThreads() as threads:
        try:
            # A process that is limited in its memory, or in its threads, gets no more of them.
            with suppress(RuntimeError):
                for _ in range(threads_max):
                    threads.start(work)
            threads.join()
        except BaseException:
            left.clear()
            raise
    for number, call in left:
        answers[number] = call()
    if errors:
        raise errors[min(errors)]
    return [answers[number] for number in range(len(waiting))]


def with_those_above(directory: Path, highest: Path) -> list[Path]:
    """A directory and those above it, up to the highest."""
    found = [directory]
    while directory != highest:
        directory = directory.parent
        found.append(directory)
    return found
