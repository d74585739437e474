"""What a check finds: anomalies, each with the operations that prove it."""

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
        """As values of JSON."""
        return asdict(self) | {"operations": [asdict(one) for one in self.operations]}


@dataclass(frozen=True)
class Found:
    """All anomalies of one kind: how many there are, and the first of them."""

    kind: str
    count: int
    examples: list[Anomaly]
