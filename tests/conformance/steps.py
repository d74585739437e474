"""The steps that scenarios are made of: each is one call and what it must answer.

Times are milliseconds after the scenario's start, so that no producer is too old on a reopening.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PID = 1
# In the place of a base offset: every file with the suffix, or the newest one.
ALL = -1
NEWEST = -2


@dataclass(frozen=True)
class Append:
    """A client's batch of one producer. `offset`: of its first record; or the error's class.

    `verified`: the transaction's coordinator knows that this partition belongs to it.
    """

    sequence: int
    count: int = 1
    offset: int | None = None
    error: str | None = None
    duplicate: bool = False
    epoch: int = 0
    producer_id: int = PID
    at_ms: int = 0
    value_bytes: int = 1
    transactional: bool = False
    verified: bool = True


@dataclass(frozen=True)
class Marker:
    """A transaction's end, "commit" or "abort". `written`: False where it was in the log already.

    `newer_epoch`: each transaction raises the epoch, so the marker's must be above the data's.
    """

    kind: str
    epoch: int
    offset: int | None = None
    error: str | None = None
    written: bool = True
    coordinator_epoch: int = 0
    producer_id: int = PID
    newer_epoch: bool = True
    at_ms: int = 0


@dataclass(frozen=True)
class Plain:
    """A batch without a producer id."""

    count: int = 1
    offset: int | None = None
    at_ms: int = 0
    value_bytes: int = 1
    times_ms: tuple[int, ...] = ()


@dataclass(frozen=True)
class Stored:
    """A batch with offsets of its own, as in a copied file: closed, written behind, recovered."""

    offset: int
    sequence: int = -1
    count: int = 1
    epoch: int = -1
    producer_id: int = -1
    at_ms: int = 0
    transactional: bool = False
    control: bool = False
    kept_indexes: tuple[int, ...] | None = None
    leader_epoch: int = 0


@dataclass(frozen=True)
class StoredMarker:
    """A transaction's end, by a copied file: "commit" or "abort"."""

    offset: int
    kind: str
    epoch: int
    coordinator_epoch: int = 0
    producer_id: int = PID
    at_ms: int = 0


@dataclass(frozen=True)
class State:
    """What the partition remembers of a producer; fields left out are not looked at."""

    producer_id: int = PID
    epoch: int | None = None
    first_sequence: int | None = None
    last_sequence: int | None = None
    last_offset: int | None = None
    first_offset: int | None = None
    coordinator_epoch: int | None = None
    transaction_first_offset: int | None = None
    batch_count: int | None = None


@dataclass(frozen=True)
class Unknown:
    """The partition remembers nothing of the producer."""

    producer_id: int = PID


@dataclass(frozen=True)
class Reopen:
    """Close and open with the partition's own files; unclean: as after a kill."""

    clean: bool = True
    recovery_point: int = 0
    restored_from: str | None = None


@dataclass(frozen=True)
class Bounds:
    """Offsets, segments and snapshot files; fields left out are not looked at."""

    start: int | None = None
    end: int | None = None
    segments: tuple[int, ...] | None = None
    segment_count: int | None = None
    snapshots: tuple[int, ...] | None = None
    snapshots_up_to: int | None = None
    recovery_point: int | None = None
    largest_times_ms: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Roll:
    """Seal the active segment; the next one starts at `base`."""

    base: int


@dataclass(frozen=True)
class Flush:
    """Sync; the recovery point is then `recovery_point`."""

    recovery_point: int


@dataclass(frozen=True)
class Truncate:
    offset: int


@dataclass(frozen=True)
class AdvanceStart:
    offset: int
    error: str | None = None


@dataclass(frozen=True)
class DeleteSegments:
    """Delete whole segments below `up_to`; `count` go."""

    up_to: int
    count: int


@dataclass(frozen=True)
class Expire:
    """Run the expiry at that time; `expired` are forgotten."""

    at_ms: int
    expired: tuple[int, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """Write a snapshot; `written` says whether there was anything new."""

    written: bool = True


@dataclass(frozen=True)
class Read:
    """Offsets of the records that a reader at `offset` gets, or the error's class.

    `committed`: only what is decided and not aborted; `position` is where it stands then.
    """

    offset: int
    offsets: tuple[int, ...] | None = None
    record_count_max: int = 1_000_000
    error: str | None = None
    committed: bool = False
    position: int | None = None


@dataclass(frozen=True)
class Stable:
    """The last stable offset, and the open transactions as (producer id, first offset)."""

    offset: int
    opened: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class Aborted:
    """Those of a range, as (producer id, first offset, marker's offset, last stable offset)."""

    entries: tuple[tuple[int, int, int, int], ...]
    first: int = 0
    upper_bound: int = 2**63 - 1


@dataclass(frozen=True)
class FindTime:
    """The first offset at or after a time."""

    at_ms: int
    offset: int | None


@dataclass(frozen=True)
class BreakFile:
    """Change a file while the partition is closed, then open it.

    `how`: "empty", "half", "zeros" (the first 37 bytes), "spaces" (two of them), "delete",
    "noise" (random bytes in place of all), "append_noise".
    """

    base: int
    suffix: str
    how: str
    clean: bool = False
    recovery_point: int = 0


@dataclass(frozen=True)
class StrayFile:
    """A file that nothing accounts for appears while the partition is closed, then it is opened."""

    base: int
    suffix: str
    removed: bool
    data: bytes = b""
    clean: bool = True


Step = (
    Append | Plain | Stored | StoredMarker | State | Unknown | Reopen | Bounds | Roll | Flush
    | Truncate | AdvanceStart | DeleteSegments | Expire | Snapshot | Read | FindTime | BreakFile
    | StrayFile | Marker | Stable | Aborted
)  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """One row of the reference: a number that stays, what it shows, and its steps."""

    number: int
    name: str
    steps: tuple[Step, ...]
    variant: str = ""
    config: dict[str, int] = field(default_factory=dict)
    log_start_offset: int = 0
    note: str = ""
    letter: str = "S"
    # False: the steps leave a transaction that no coordinator knows, and a store ends such a one,
    # or they read past offsets that are in no batch, which a store calls damage.
    told_by_store: bool = True

    @property
    def id(self) -> str:
        return f"{self.letter}{self.number:02d}{'-' + self.variant if self.variant else ''}"
