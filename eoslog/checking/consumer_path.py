"""How a consumer came to where it stands in a partition: by its polls, or by being moved.

A path is a staircase: for each offset up to where the consumer stands, what carried it over that
offset last. What a poll for a transaction carried it over was taken, or was never there to be
taken. A move that follows on polls for no such transaction goes from where these began.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from eoslog.checking.operation_kinds import NEVER_NS, NONE

MOVED, TAKEN, GIVEN_UP = range(3)
# Where a consumer stands if nobody knows it: past whatever was asked for.
ANYWHERE: Final = NEVER_NS


class ConsumerPath:
    """One consumer in one partition. At first it may stand anywhere."""

    def __init__(self) -> None:
        # Upper bounds of the steps, rising, and what carried the consumer up each.
        self._upper_bounds = [ANYWHERE]
        self._steps = [MOVED]

    def move(self, to: int) -> None:
        """It was moved to an offset, or to nobody knows where: NONE."""
        to = ANYWHERE if to == NONE else to
        self._go_down(to)
        while self._steps and self._steps[-1] == GIVEN_UP:
            self._pop()
        self._go_up(to, MOVED)

    def poll(self, start: int, after: int, *, taken: bool) -> None:
        """A poll went from `start` to `after`; `taken`: for a transaction that may be committed."""
        if self._upper_bounds and self._upper_bounds[-1] != start:
            self.move(start)
        self._go_up(after, TAKEN if taken else GIVEN_UP)

    def moved_between(self, lower: int, upper: int) -> Iterator[tuple[int, int]]:
        """The ranges from `lower` up to `upper` that moves carried it over last."""
        step = bisect_right(self._upper_bounds, lower)
        while lower < upper and step < len(self._steps):
            reached = min(self._upper_bounds[step], upper)
            if self._steps[step] == MOVED:
                yield lower, reached
            lower = reached
            step += 1

    def _go_down(self, to: int) -> None:
        """Forget what is above an offset."""
        step = MOVED
        cut = False
        while self._upper_bounds and self._upper_bounds[-1] > to:
            step = self._pop()
            cut = True
        if cut:
            self._go_up(to, step)

    def _go_up(self, to: int, step: int) -> None:
        if self._upper_bounds and self._upper_bounds[-1] >= to:
            return
        if self._steps and self._steps[-1] == step:
            self._upper_bounds[-1] = to
        else:
            self._upper_bounds.append(to)
            self._steps.append(step)

    def _pop(self) -> int:
        self._upper_bounds.pop()
        return self._steps.pop()
