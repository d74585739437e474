"""History of the clients of a test, checked as a whole when the test asks for it.

Invariant: a client that is made by a recorded store writes each of its calls to the history.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from eoslog.checking.check import VISIBLE_WITHIN_S, Report, check
from eoslog.checking.recorded_call import identity_of
from eoslog.checking.recorded_consumer import RecordedConsumer
from eoslog.checking.recorded_producer import RecordedProducer
from eoslog.checking.recorder import Recorder
from eoslog.store.opening import open
from eoslog.store.store import Store

Identify = Callable[[bytes | None, bytes | None], str | int]

_SHOWN_OPERATIONS = 6
# Calls that would read records past the history.
_NOT_RECORDED = frozenset({"scan"})


class History:
    """Recorded calls of clients of a store; the fixture `eoslog_history` makes it.

    Parameters
    ----------
    store : Store
        An open store.
    directory : Path
        Where the history is written. Other processes of the test write theirs there, each with an
        `eoslog.checking.Recorder` for a file of its own, `<any name>.jsonl`.

    Attributes
    ----------
    store : RecordedStore
        The store, with clients that are recorded.
    directory : Path
        As given.
    """

    def __init__(self, store: Store, directory: Path) -> None:
        self.directory = directory
        self._path = store.path
        self._identify: Identify = identity_of
        self._recorder = Recorder(directory / "test.jsonl", identify=self._identity)
        self._client_count = 0
        self.store = self.record(store)

    def record(self, store: Store) -> "RecordedStore":
        """Return a store with clients that are recorded: for one that the test opened again."""
        self._newest = store
        return RecordedStore(store, self)

    def identify_by(self, identify: Identify) -> None:
        """Have a record be known by what a function returns for key and value, instead of by its
        value, which no two records of a topic may share.
        """
        if not callable(identify):
            raise TypeError(f"identify must be callable, got {type(identify).__name__}")
        self._identify = identify

    def _identity(self, key: bytes | None, value: bytes | None) -> str | int:
        return self._identify(key, value)

    def recorded_producer(self, producer: Any) -> RecordedProducer:
        """Return a producer that is recorded."""
        name = getattr(producer, "transactional_id", None) or producer.name
        return self._recorder.producer(producer, client=self._new_client("producer", name))

    def recorded_consumer(self, consumer: Any, group: str | None) -> RecordedConsumer:
        """Return a consumer that is recorded."""
        return self._recorder.consumer(consumer, client=self._new_client("consumer", group))

    def _new_client(self, kind: str, name: str | None) -> str:
        self._client_count += 1
        shown = "" if name is None else f" {name!r}"
        return f"{kind} {self._client_count}{shown}"

    def assert_exactly_once(self, *, visible_within_s: float = VISIBLE_WITHIN_S) -> None:
        """Check all that the clients did and saw so far, after a last read of every topic.

        Parameters
        ----------
        visible_within_s : float
            Longest time until a waiting reader gets a committed record, in seconds.

        Raises
        ------
        AssertionError
            A record is lost, twice there, seen too early, or out of order, or an offset and its
            output differ: with topic, partition, offset, value and the clients' calls.
        """
        __tracebackhide__ = True
        with self._opened() as store:
            self._read_all(store)
        report = check(sorted(self.directory.glob("*.jsonl")), visible_within_s=visible_within_s)
        if not report.clean:
            raise AssertionError("\n".join(_lines_of(report)))

    @contextmanager
    def _opened(self) -> Iterator[Store]:
        """Give the newest store, or open it if the test closed it."""
        if not self._newest.closed:
            yield self._newest
            return
        with open(self._path, durability=None) as store:
            yield store

    def _read_all(self, store: Store) -> None:
        partitions = [where for one in store.topics().values() for where in one.topic_partitions()]
        for isolation in ("read_uncommitted", "read_committed"):
            with self.recorded_consumer(
                store.consumer(isolation_level=isolation), f"last reader, {isolation}"
            ) as consumer:
                consumer.assign(partitions)
                consumer.seek_to_beginning()
                while consumer.poll(timeout=0):
                    pass
                if partitions:
                    consumer.end_offsets(partitions)
        for group in store.groups():
            with self.recorded_consumer(store.consumer(group=group), group) as consumer:
                consumer.committed(partitions)

    def close(self) -> None:
        """Close the history."""
        self._recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: object, error: object, traceback: object) -> None:
        self.close()


class RecordedStore:
    """A store whose producers and consumers are recorded, those of `eoslog.read_process_write` too.
    All else is the store's own, but for `scan`. Other calls that make clients refuse it.
    """

    def __init__(self, store: Store, history: History) -> None:
        self._store = store
        self._history = history

    @property
    def unrecorded(self) -> Store:
        """The store itself: its clients are not recorded."""
        return self._store

    def producer(self, *arguments: Any, **named: Any) -> RecordedProducer:
        """Return a producer that is recorded, as `Store.producer`."""
        return self._history.recorded_producer(self._store.producer(*arguments, **named))

    def consumer(self, group: str | None = None, *arguments: Any, **named: Any) -> RecordedConsumer:
        """Return a consumer that is recorded, as `Store.consumer`."""
        consumer = self._store.consumer(group, *arguments, **named)
        return self._history.recorded_consumer(consumer, group)

    def __getattr__(self, name: str) -> Any:
        if name in _NOT_RECORDED:
            raise AttributeError(
                f"{name!r} of a store is not recorded: call it on the store itself"
            )
        return getattr(self._store, name)

    def __repr__(self) -> str:
        return f"<eoslog.testing.RecordedStore of {self._store!r}>"


def _lines_of(report: Report) -> Iterable[str]:
    """The anomalies as lines, each with the calls that prove it."""
    total = sum(one.count for one in report.found)
    yield f"not exactly once: {total} anomal{'y' if total == 1 else 'ies'}"
    for anomaly in report.anomalies:
        yield f"{anomaly.kind}: {anomaly.what}"
        for one in anomaly.operations[:_SHOWN_OPERATIONS]:
            ended = "" if one.outcome == "ok" else f" ({one.outcome})"
            yield f"  {one.kind}{ended} of {one.client}, {Path(one.file).name} line {one.line}"
        if len(anomaly.operations) > _SHOWN_OPERATIONS:
            yield f"  and {len(anomaly.operations) - _SHOWN_OPERATIONS} calls more"
    shown = len(report.anomalies)
    if shown < total:
        yield f"and {total - shown} anomalies more"
