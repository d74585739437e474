"""Files and directories that go to disk together: syncs that wait at once share the disk's work.

Six of them, one after the other, are six waits for the disk. Six at once are one or two: a file
system writes what changed in its directories for all of them in one go.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

SYNC_THREADS_MAX = 16


def run_together(calls: Iterable[Callable[[], T]], threads_max: int = SYNC_THREADS_MAX) -> list[T]:
    """Make all calls, several at once; return their results in order.

    No call runs after the return. Raises the error of the first call that failed, after all have
    run. After Ctrl-C no other call begins.
    """
    waiting = list(calls)
    threads_max = min(threads_max, len(waiting))
    if threads_max < 2:
        return [call() for call in waiting]
    left = deque(enumerate(waiting))
    answers: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    ends: list[threading.Event] = []

    def work() -> None:
        end = threading.Event()
        ends.append(end)  # Before it takes a call.
        try:
            while left:
                with suppress(IndexError):
                    run(*left.popleft())
        finally:
            end.set()

    def run(number: int, call: Callable[[], T]) -> None:
        try:
            answers[number] = call()
        except BaseException as error:
            errors[number] = error

    threads: list[threading.Thread] = []
    try:
        # The limits of the process may allow fewer threads.
        with suppress(RuntimeError, MemoryError):
            for _ in range(threads_max):
                thread = threading.Thread(target=work, name="eoslog-sync", daemon=True)
                thread.start()
                threads.append(thread)
        for thread in threads:
            thread.join()
    except BaseException:
        left.clear()
        # Not by join: once interrupted, Python 3.11 takes a running thread for ended.
        for end in ends:
            while not end.is_set():
                with suppress(BaseException):  # The first interrupt is raised.
                    end.wait()
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
