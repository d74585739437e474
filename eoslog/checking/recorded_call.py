"""One call in a history: lines at its begin and when its outcome is known."""

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
    """Return a record's identity by its value: a short text itself, else a digest."""
    if value is None:
        raise ValueError("a record without a value has no identity: give the recorder `identify`")
    if len(value) <= _IDENTITY_BYTES_MAX:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return f"blake2b:{hashlib.blake2b(value, digest_size=16).hexdigest()}"


def partitions_as_json(positions: Mapping[TopicPartition, Any]) -> dict[str, Any]:
    """Return partitions by their names in a history."""
    return {f"{topic}-{partition}": given for (topic, partition), given in positions.items()}


def offsets_as_json(offsets: object) -> dict[str, int]:
    """Return offsets to commit. Raises TypeError or ValueError if no commit takes them."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets must be a mapping of partitions, got {type(offsets).__name__}")
    return partitions_as_json({as_topic_partition(tp): _offset(at) for tp, at in offsets.items()})


def _offset(given: object) -> int:
    at = given.offset if isinstance(given, OffsetAndMetadata) else given
    offset = whole_number(at, "an offset")
    if not 0 <= offset <= INT64_MAX:
        raise ValueError(f"offset {offset} is outside [0, {INT64_MAX}]")
    return offset


def had_no_effect(error: BaseException) -> bool:
    """True if an error of eoslog states that nothing was appended."""
    return isinstance(error, EoslogError) and error.outcome == "not_appended"


class CallWriter(Protocol):
    """Methods of `Recorder` that a recorded producer or consumer uses."""

    def start(self, client: str, kind: str, **fields: Any) -> "Call":
        """Record that a client begins an operation."""

    def write(self, client: str, kind: str, begin_ns: int, **fields: Any) -> "Call":
        """Record an operation that is over."""

    def write_line(self, line: Mapping[str, Any]) -> None:
        """Append a line to the history."""

    def identity(self, key: bytes | None, value: bytes | None) -> str | int:
        """Return the name of a record in the history."""


class Call:
    """A recorded call; `ok`, `fail` or `unknown` ends it.

    `Recorder.start` records it with an unknown outcome, which stays if it is never ended.
    """

    def __init__(self, recorder: CallWriter, line: dict[str, Any]) -> None:
        self._recorder = recorder
        self._line = line
        recorder.write_line(line)

    def ok(self, **fields: Any) -> None:
        """Record that the call succeeded, with the fields of its result."""
        self._end("ok", fields)

    def fail(self, error: object = None) -> None:
        """Record that the call certainly had no effect, and never will have."""
        self._end("fail", {} if error is None else {"error": str(error)})

    def unknown(self, error: object = None) -> None:
        """Record that the call had its effect, or has it later, or never."""
        self._end("unknown", {} if error is None else {"error": str(error)})

    def raised(self, error: BaseException) -> None:
        """Record an error: as `fail` if it states that nothing was appended, else as `unknown`."""
        end = self.fail if had_no_effect(error) else self.unknown
        end(f"{type(error).__name__}: {error}")

    def again(self, **fields: Any) -> None:
        """Write the ended call once more, with more fields: the last line counts."""
        self._line |= fields
        self._recorder.write_line(self._line)

    def _end(self, outcome: str, fields: dict[str, Any]) -> None:
        self._line |= {"outcome": outcome, "end_ns": time.monotonic_ns(), **fields}
        self._recorder.write_line(self._line)
