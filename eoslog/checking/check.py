"""Check of a history: it derives the evidence, then finds each kind of anomaly."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from typing import Any, Final

import numpy as np

from eoslog.checking.evidence import Anomaly, Evidence, Found, identities_of, passed_offsets
from eoslog.checking.history_reader import read_history
from eoslog.checking.isolation import (
    aborted_reads,
    circular_information_flow,
    precommitted_reads,
    zombie_writes,
)
from eoslog.checking.lost_writes import (
    lost_writes,
    missing_records,
    torn_transactions,
)
from eoslog.checking.offset_divergence import offset_divergence
from eoslog.checking.order import (
    duplicates,
    inconsistent_offsets,
    invisible_records,
    non_monotonic_polls,
    non_monotonic_sends,
    poll_skips,
)
from eoslog.checking.outcomes import (
    group_offsets,
    note_commits_by_offsets,
    record_places,
    transactions_of,
    tries_of,
)

VISIBLE_WITHIN_S = 1.0
EXAMPLES_MAX = 10

# Every kind of anomaly, in the order of the report; docs/checking.md defines each.
ANOMALIES: Final = (
    "lost write",
    "duplicate",
    "aborted read",
    "precommitted read",
    "torn transaction",
    "circular information flow",
    "inconsistent offsets",
    "non-monotonic send",
    "non-monotonic poll",
    "poll skip",
    "zombie write",
    "offset-output divergence",
    "invisible record",
)


@dataclass(frozen=True)
class Report:
    """Report of the check of a history.

    Attributes
    ----------
    counts : dict of str to int
        Numbers of operations, clients, records and transactions.
    found : tuple of Found
        Every kind of anomaly, in the order of `ANOMALIES`, with its count and the first ones.
    """

    counts: dict[str, int]
    found: tuple[Found, ...]

    @property
    def clean(self) -> bool:
        """True if no anomaly was found."""
        return all(one.count == 0 for one in self.found)

    @property
    def anomalies(self) -> list[Anomaly]:
        """The anomalies that are shown, sorted by kind."""
        return [anomaly for one in self.found for anomaly in one.examples]

    def count(self, kind: str) -> int:
        """Return the number of anomalies of a kind. Raises KeyError for an unknown kind."""
        return {one.kind: one.count for one in self.found}[kind]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report as text."""
        for one in self.found:
            if one.count:
                rest = "" if one.count == len(one.examples) else f", {len(one.examples)} shown"
                yield f"{one.kind}: {one.count:,}{rest}"
            for anomaly in one.examples:
                yield f"  {anomaly.what}"
                yield from (f"    {operation}" for operation in anomaly.operations)
        counts = self.counts
        total = sum(one.count for one in self.found)
        verdict = "clean" if self.clean else f"{total:,} anomal{'y' if total == 1 else 'ies'}"
        yield (
            f"{verdict}: {counts['operations']:,} "
            f"operations of {counts['clients']:,} clients, {counts['records_sent']:,} records "
            f"sent, {counts['records_read']:,} read, {counts['transactions']:,} transactions"
        )
        if counts["records_of_nobody"]:
            yield (
                f"{counts['records_of_nobody']:,} records were read that no send of the history "
                "wrote: of them only their places were checked"
            )

    def as_json(self) -> dict[str, Any]:
        """Return the report as values of JSON."""
        return {
            "clean": self.clean,
            **self.counts,
            "found": {one.kind: one.count for one in self.found},
            "anomalies": [anomaly.as_json() for anomaly in self.anomalies],
        }


def check(
    paths: Iterable[str | PathLike[str]],
    *,
    visible_within_s: float = VISIBLE_WITHIN_S,
    clock_error_ms: float = 0.0,
    examples_max: int = EXAMPLES_MAX,
) -> Report:
    """Check the history in these files; `docs/checking.md` defines each anomaly.

    Parameters
    ----------
    paths : iterable of str or PathLike
        Files of one history, in any order.
    visible_within_s : float
        Longest time until a waiting reader gets a committed record, in seconds.
    clock_error_ms : float
        Greatest difference of two clients' clocks, in milliseconds.
    examples_max : int
        The most anomalies of each kind that the report shows; it counts all of them.

    Returns
    -------
    Report
        Counts and anomalies.

    Raises
    ------
    HistoryError
        A line does not follow the format.
    ValueError
        A limit is outside [0, 1e9).
    OSError
        A file cannot be read.
    """
    limits = {"visible_within_s": visible_within_s, "clock_error_ms": clock_error_ms}
    for name, given in {**limits, "examples_max": examples_max}.items():
        if not 0 <= given < 1e9:
            raise ValueError(f"{name} {given} is outside [0, 1e9)")
    clock_error_ns = int(clock_error_ms * 1e6)
    history = read_history(paths)
    transactions, offsets = transactions_of(history), group_offsets(history)
    # First the outcomes of transactions: all else follows from them.
    note_commits_by_offsets(history, transactions, offsets, clock_error_ns)
    evidence = Evidence(
        history=history,
        transactions=transactions,
        records=record_places(history, transactions),
        identities=identities_of(history),
        tries=tries_of(history, transactions),
        passed=passed_offsets(history),
        clock_error_ns=clock_error_ns,
        visible_within_ns=int(visible_within_s * 1e9),
        examples_max=examples_max,
    )
    missing = missing_records(evidence)
    found = (  # In the order of ANOMALIES.
        lost_writes(evidence, missing),
        duplicates(evidence),
        aborted_reads(evidence),
        precommitted_reads(evidence),
        torn_transactions(evidence, missing),
        circular_information_flow(evidence),
        inconsistent_offsets(evidence),
        non_monotonic_sends(evidence),
        non_monotonic_polls(evidence),
        poll_skips(evidence),
        zombie_writes(evidence),
        offset_divergence(evidence, offsets, missing),
        invisible_records(evidence, missing),
    )
    return Report(counts=_counts(evidence), found=found)


def _counts(evidence: Evidence) -> dict[str, int]:
    history = evidence.history
    written = np.zeros(len(history.names.values), dtype=bool)
    written[history.sends.value] = True
    return {
        "operations": len(history.ops),
        "clients": len(history.names.clients),
        "records_sent": len(history.sends),
        "records_read": len(history.reads),
        "records_of_nobody": int((~written[evidence.records.rows.value]).sum()),
        "transactions": len(history.names.transactions),
    }
