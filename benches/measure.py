"""Times of rounds, percentiles, and the record that the report reads."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from figures import FIGURES


def record(
    benchmark: Any,
    name: str,
    measured: float,
    *,
    spread: Sequence[float] = (),
    beside: str = "",
    **details: float | str,
) -> None:
    """Keep one figure with the bench's results.

    `spread` are the values of all rounds (the report shows the least and the greatest); `beside`
    says in words what a peer did in the same run; `details` are kept in the JSON alone.
    """
    if name not in FIGURES:
        raise ValueError(f"no figure is named {name!r}")
    kept: dict[str, Any] = {"measured": measured, **details}
    if spread:
        kept["least"], kept["greatest"] = min(spread), max(spread)
    if beside:
        kept["beside"] = beside
    benchmark.extra_info.setdefault("figures", {})[name] = kept


def round_seconds(benchmark: Any) -> list[float]:
    """The durations of the rounds that were measured."""
    return list(benchmark.stats.stats.data)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(1, math.ceil(share * len(ordered))) - 1]


class Interleaved:
    """A peer that runs, timed, before each round of the bench, so that both see the same machine.

    `run_peer` is timed; `prepare`, before it, and `clear`, after it, are not.
    """

    def __init__(
        self,
        run_peer: Callable[[], object],
        prepare: Callable[[], object],
        clear: Callable[[], object],
    ) -> None:
        self._run_peer = run_peer
        self._prepare = prepare
        self._clear = clear
        self._seconds: list[float] = []

    def setup(self) -> None:
        """What a bench gives to `benchmark.pedantic` as its set-up."""
        self._prepare()
        begin = time.perf_counter()
        self._run_peer()
        self._seconds.append(time.perf_counter() - begin)
        self._clear()

    def seconds(self, rounds: int) -> list[float]:
        """The peer's times beside the measured rounds, without those of the warm-up."""
        return self._seconds[-rounds:]


def median_ratio(ours: Sequence[float], peer: Sequence[float]) -> float:
    """How much faster than the peer: of the medians."""
    return statistics.median(peer) / statistics.median(ours)


def rates(amount: float, seconds: Sequence[float]) -> list[float]:
    """`amount` per second, for each round."""
    return [amount / one for one in seconds]
