"""Writing a history: a line before each call that may not be survived, and one after it.

Invariant: a line is handed to the system whole, by one write. So whatever a killed process had
begun is in its file, as an operation of unknown outcome.
"""

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from eoslog import OffsetAndMetadata
from eoslog.common.config import INT64_MAX
from eoslog.common.synchronous_call import check_synchronous
from eoslog.common.topic_partition import TopicPartition, as_topic_partition
from eoslog.common.whole_number import whole_number
from eoslog.errors import EoslogError, ForkedProcessError, LogClosedError

if TYPE_CHECKING:
    from eoslog import Consumer, Producer, TransactionalProducer
    from eoslog.checking.recorded_consumer import RecordedConsumer
    from eoslog.checking.recorded_producer import RecordedProducer

Identify = Callable[[bytes | None, bytes | None], str | int]

# A value that is not longer is its own identity.
_IDENTITY_BYTES_MAX = 100

_encode = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


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


class Call:
    """A call that was written down: `ok`, `fail` or `unknown` ends one that is under way.

    `Recorder.start` makes it, as unknown: what is never ended stays so.
    """

    def __init__(self, recorder: "Recorder", line: dict[str, Any]) -> None:
        self._recorder = recorder
        self._line = line
        recorder._write(line)

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
        self._recorder._write(self._line)

    def _end(self, outcome: str, fields: dict[str, Any]) -> None:
        self._line |= {"outcome": outcome, "end_ns": time.monotonic_ns(), **fields}
        self._recorder._write(self._line)


class Recorder:
    """Writes the history of this process to a file; threads may share it.

    Lines are appended to the file, which is made if need be; a process has a file of its own.
    `identify(key, value)` gives each record its identity, a text or a whole number that no other
    record of its topic has; by default that is the value, or a digest of a long one.

    Raises TypeError, and OSError if the file cannot be written. What is recorded survives the
    process's death.
    """

    def __init__(self, path: str | PathLike[str], *, identify: Identify = identity_of) -> None:
        check_synchronous(identify, "identify")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._identify = identify
        self._lock = threading.RLock()
        self._process_id = os.getpid()
        self._prefix = f"{self._process_id}-{os.urandom(3).hex()}"
        self._numbers: dict[str, int] = {}
        self._closed = False

    def start(self, client: str, kind: str, **fields: Any) -> Call:
        """Record that a client begins an operation; end it with the `Call`'s `ok` or `fail`.

        `client` is one producer or consumer as one thread uses it; no other file names it. `fields`
        are those of docs/checking.md.
        """
        line = {"client": client, "op": self._number(client), "kind": kind}
        times = {"begin_ns": time.monotonic_ns(), "end_ns": None}
        return Call(self, line | times | {"outcome": "unknown"} | fields)

    def write(self, client: str, kind: str, begin_ns: int, **fields: Any) -> Call:
        """Record an operation that began at `begin_ns` (`time.monotonic_ns()`) and is done now, ok.

        For what changes nothing, and so need not be known if the process dies meanwhile.
        """
        line = {"client": client, "op": self._number(client), "kind": kind}
        times = {"begin_ns": begin_ns, "end_ns": time.monotonic_ns()}
        return Call(self, line | times | {"outcome": "ok"} | fields)

    def producer(
        self, producer: "Producer | TransactionalProducer", *, client: str | None = None
    ) -> "RecordedProducer":
        """A producer of eoslog whose calls are recorded; one thread uses it."""
        from eoslog.checking.recorded_producer import RecordedProducer

        return RecordedProducer(self, producer, client or self.new_client("producer"))

    def consumer(self, consumer: "Consumer", *, client: str | None = None) -> "RecordedConsumer":
        """A consumer of eoslog whose calls are recorded."""
        from eoslog.checking.recorded_consumer import RecordedConsumer

        return RecordedConsumer(self, consumer, client or self.new_client("consumer"))

    def new_client(self, what: str) -> str:
        """A name that no other client has, in any process."""
        return f"{what}-{self._prefix}-{self._number('')}"

    def identity(self, key: bytes | None, value: bytes | None) -> str | int:
        """Return the name of a record in the history."""
        return self._identify(key, value)

    def close(self) -> None:
        """Write no more. A second call does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _number(self, client: str) -> int:
        """The number of a client's next operation."""
        with self._lock:
            number = self._numbers.get(client, 0)
            self._numbers[client] = number + 1
        return number

    def _write(self, line: Mapping[str, Any]) -> None:
        data = f"{_encode(line)}\n".encode()
        if os.getpid() != self._process_id:
            raise ForkedProcessError("the recorder was made before a fork: make one in the child")
        with self._lock:
            if self._closed:
                raise LogClosedError("the recorder is closed")
            written = os.write(self._file, data)
            while written < len(data):
                written += os.write(self._file, data[written:])
