"""Recorder of a history: a line before each call that the process may not survive, one after it.

Invariant: one write passes a whole line to the system. So every call that a killed process had
begun is in its file, as an operation of unknown outcome.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

from eoslog.checking.recorded_call import Call, identity_of
from eoslog.checking.recorded_consumer import RecordedConsumer
from eoslog.checking.recorded_producer import RecordedProducer
from eoslog.common.arguments import check_synchronous
from eoslog.errors import ForkedProcessError, LogClosedError

if TYPE_CHECKING:
    from eoslog import Consumer, Producer, TransactionalProducer

Identify = Callable[[bytes | None, bytes | None], str | int]

_encode = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


class Recorder:
    """Writer of the history of this process; threads may share it.

    Lines are appended to the file, which is created if it is missing; each process has a file of
    its own. Recorded lines survive the death of the process.

    Parameters
    ----------
    path : str or PathLike
        The file.
    identify : callable
        Called with key and value; returns the record's identity, a text or int that no other record
        of its topic has. By default the value, or a digest of a long one.

    Raises
    ------
    TypeError
        `identify` is no plain function.
    OSError
        The file cannot be written.
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

        Parameters
        ----------
        client : str
            One producer or consumer as one thread uses it; no other file names it.
        kind : str
            Kind of the operation.
        fields
            Those of `docs/checking.md`.
        """
        line = {"client": client, "op": self._number(client), "kind": kind}
        times = {"begin_ns": time.monotonic_ns(), "end_ns": None}
        return Call(self, line | times | {"outcome": "unknown"} | fields)

    def write(self, client: str, kind: str, begin_ns: int, **fields: Any) -> Call:
        """Record an operation that began at `begin_ns` (`time.monotonic_ns()`) and is done now, ok.

        For a call that changes nothing, and is not needed if the process dies during it.
        """
        line = {"client": client, "op": self._number(client), "kind": kind}
        times = {"begin_ns": begin_ns, "end_ns": time.monotonic_ns()}
        return Call(self, line | times | {"outcome": "ok"} | fields)

    def producer(
        self, producer: "Producer | TransactionalProducer", *, client: str | None = None
    ) -> RecordedProducer:
        """Return a producer that records its calls; one thread uses it."""
        return RecordedProducer(self, producer, client or self.new_client("producer"))

    def consumer(self, consumer: "Consumer", *, client: str | None = None) -> RecordedConsumer:
        """Return a consumer that records its calls; one thread uses it."""
        return RecordedConsumer(self, consumer, client or self.new_client("consumer"))

    def new_client(self, what: str) -> str:
        """Return a name that no other client of any process has."""
        return f"{what}-{self._prefix}-{self._number('')}"

    def identity(self, key: bytes | None, value: bytes | None) -> str | int:
        """Return the name of a record in the history."""
        return self._identify(key, value)

    def close(self) -> None:
        """Close the file. A second call does nothing, nor does one after a fork."""
        if os.getpid() != self._process_id:
            return  # The lock may be another thread's, which is not in this process.
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: object, error: object, traceback: object) -> None:
        self.close()

    def _number(self, client: str) -> int:
        """Return the number of a client's next operation. Raises ForkedProcessError."""
        self._check_process()
        with self._lock:
            number = self._numbers.get(client, 0)
            self._numbers[client] = number + 1
        return number

    def write_line(self, line: Mapping[str, Any]) -> None:
        """Append a line to the history. Raises ForkedProcessError, LogClosedError, OSError."""
        data = f"{_encode(line)}\n".encode()
        self._check_process()
        with self._lock:
            if self._closed:
                raise LogClosedError("the recorder is closed")
            written = 0
            try:
                while written < len(data):
                    written += os.write(self._file, data[written:])
            except BaseException:
                # The next line must not follow a half on the same one.
                with suppress(OSError):
                    os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                raise

    def _check_process(self) -> None:
        """Check that this is no fork. A lock may be held there for ever: call it before."""
        if os.getpid() != self._process_id:
            raise ForkedProcessError("the recorder is of the process before a fork: create another")
