"""Report of a check: anomalies, each with the operations that prove it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

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
class OperationReference:
    """An operation of the history, and where its line is."""

    file: str
    line: int
    client: str
    kind: str
    outcome: str
    begin_ns: int
    end_ns: int | None

    def __str__(self) -> str:
        ended = "" if self.outcome == "ok" else f" ({self.outcome})"
        return f"{self.file}:{self.line} {self.client} {self.kind}{ended}"


@dataclass(frozen=True)
class Anomaly:
    """One anomaly: its kind, what was seen, and the operations that prove it."""

    kind: str
    what: str
    operations: tuple[OperationReference, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the anomaly as values of JSON."""
        return asdict(self) | {"operations": [asdict(one) for one in self.operations]}


@dataclass(frozen=True)
class Found:
    """All anomalies of one kind: how many there are, and the first of them."""

    kind: str
    count: int
    examples: list[Anomaly]


# The result of a check: what was looked at, and what was found, for people and as JSON.


@dataclass(frozen=True)
class Report:
    """Report of the check of a history.

    `counts` says how much of each thing the history holds; `found` has every kind of anomaly, in
    the order of `ANOMALIES`, with how many there are and the first of them.
    """

    counts: dict[str, int]
    found: tuple[Found, ...]

    @property
    def clean(self) -> bool:
        """True if nothing was found."""
        return all(one.count == 0 for one in self.found)

    @property
    def anomalies(self) -> list[Anomaly]:
        """The anomalies that are shown, those of one kind together."""
        return [anomaly for one in self.found for anomaly in one.examples]

    def count(self, kind: str) -> int:
        """Return how many anomalies of a kind there are. Raises KeyError for a name that is no
        kind.
        """
        return {one.kind: one.count for one in self.found}[kind]

    def lines(self) -> Iterator[str]:
        """The report as text, line by line."""
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
