"""The result of a check: what was looked at, and what was found, for people and as JSON."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from eoslog.checking.anomaly import Anomaly, Found


@dataclass(frozen=True)
class Report:
    """What a check of a history found.

    `counts` says how much of each thing the history holds; `found` has every kind of anomaly, in
    the order of `ANOMALIES`, with how many there are and the first of them.
    """

    counts: dict[str, int]
    found: tuple[Found, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return all(one.count == 0 for one in self.found)

    @property
    def anomalies(self) -> list[Anomaly]:
        """The anomalies that are shown, those of one kind together."""
        return [anomaly for one in self.found for anomaly in one.examples]

    def count(self, kind: str) -> int:
        """How many anomalies of a kind there are. Raises KeyError for a name that is no kind."""
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
        """As values of JSON."""
        return {
            "clean": self.clean,
            **self.counts,
            "found": {one.kind: one.count for one in self.found},
            "anomalies": [anomaly.as_json() for anomaly in self.anomalies],
        }
