"""One call in a history: what is written when it begins, and when its outcome is known."""

import hashlib
import time
from collections.abc import Mapping
from typing import Any, Protocol

from eoslog import OffsetAndMetadata
from eoslog.common.arguments import whole_number
from eoslog.common.config import INT64_MAX
from eoslog.common.topic_partition import TopicPartition, as_topic_partition
from eoslog.errors import EoslogError

# A value that is not longer is its own identity.
_IDENTITY_BYTES_MAX = 100


def identity_of(key: bytes | None, value: bytes | None) -> str | int:
    """A record's identity by its value: short texts are themselves, all else is a digest."""
    if value is None:
        raise ValueError("a record without a value has no identity: give the recorder `identify`")
    if len(value) <= _IDENTITY_BYTES_MAX:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return f"blake2b:{hashlib.blake2b(value, digest_size=16).hexdigest()}"


def partitions_as_json(positions: Mapping[TopicPartition, Any]) -> dict[str, Any]:
    """Partitions by the names that a history gives them."""
    return {f"{topic}-{partition}": given for (topic, partition), given in positions.items()}


def offsets_as_json(offsets: object) -> dict[str, int]:
    """Offsets to commit, as callers name them. TypeError or ValueError for what no commit takes."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"a mapping of partitions to offsets, not {type(offsets).__name__}")
    return partitions_as_json({as_topic_partition(tp): _offset(at) for tp, at in offsets.items()})


def _offset(given: object) -> int:
    at = given.offset if isinstance(given, OffsetAndMetadata) else given
    offset = whole_number(at, "an offset")
    if not 0 <= offset <= INT64_MAX:
        raise ValueError(f"offset {offset} is outside [0, {INT64_MAX}]")
    return offset


def had_no_effect(error: BaseException) -> bool:
    """True if it is an error of eoslog that states that nothing was appended."""
    return isinstance(error, EoslogError) and error.outcome == "not_appended"


class CallWriter(Protocol):
    """The recorder, as a recorded producer or consumer uses it; see `Recorder`."""

    def start(self, client: str, kind: str, **fields: Any) -> "Call":
        """Record that a client begins an operation."""

    def write(self, client: str, kind: str, begin_ns: int, **fields: Any) -> "Call":
        """Record an operation that is over."""

    def write_line(self, line: Mapping[str, Any]) -> None:
        """Append a line to the history."""

    def identity(self, key: bytes | None, value: bytes | None) -> str | int:
        """Return the name of a record in the history."""


class Call:
    """A call that was written down: `ok`, `fail` or `unknown` ends one that is under way.

    `Recorder.start` makes it, as unknown: what is never ended stays so.
    """

    def __init__(self, recorder: CallWriter, line: dict[str, Any]) -> None:
        self._recorder = recorder
        self._line = line
        recorder.write_line(line)

    def ok(self, **fields: Any) -> None:
        """The call did what it was to do; `fields` are what it answered."""
        self._end("ok", fields)

    def fail(self, error: object = None) -> None:
        """The call certainly had no effect, and never will have."""
        self._end("fail", {} if error is None else {"error": str(error)})

    def unknown(self, error: object = None) -> None:
        """The call may have had its effect, or have it later, or not at all."""
        self._end("unknown", {} if error is None else {"error": str(error)})

    def raised(self, error: BaseException) -> None:
        """The call raised: `fail` if the error is one of eoslog's that says so, else `unknown`."""
        end = self.fail if had_no_effect(error) else self.unknown
        end(f"{type(error).__name__}: {error}")

    def again(self, **fields: Any) -> None:
        """Write the ended call once more, with more fields: the last line counts."""
        self._line |= fields
        self._recorder.write_line(self._line)

    def _end(self, outcome: str, fields: dict[str, Any]) -> None:
        self._line |= {"outcome": outcome, "end_ns": time.monotonic_ns(), **fields}
        self._recorder.write_line(self._line)
