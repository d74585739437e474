"""Faults of one store, each as a call of a test."""

import errno
from collections.abc import Callable
from typing import Any, Self

from eoslog.bindings.transaction_entry import (
    TransactionEntry,
    encode_transaction_value,
    transaction_key,
)
from eoslog.common import clock
from eoslog.common.arguments import whole_number
from eoslog.common.topic_partition import TopicPartition, as_topic_partition
from eoslog.errors import IllegalStateError, InvalidTxnStateError
from eoslog.producer.producer import Producer, ProducerInternals
from eoslog.producer.transaction_states import ClientState
from eoslog.producer.transactional_producer import DEFAULT_TIMEOUT_MS, TransactionalProducer
from eoslog.store.store import Store, parts_of
from eoslog.testing.fault import Fault, FaultNotFiredError, give_calls_back, take_calls_over
from eoslog.testing.killed_child import MOMENTS, run_and_die
from eoslog.transactions.compacted_partition import StateRecord
from eoslog.transactions.entries import EPOCH_BUMPING_VERSION, ONGOING, UNDECIDED_STATES
from eoslog.transactions.owner import timed_out

Place = TopicPartition | tuple[str, int] | str

# The last epoch that a producer is given: its next transaction has another producer id.
LAST_EPOCH = 32_766
_CHILD_S_MAX = 120.0
_NO_SYNCS = (
    "; a store of durability 'process' waits for no sync: open it with 'commit', in a test with "
    '@pytest.mark.eoslog(durability="commit")'
)


class Faults:
    """Faults of a store that is open in this process; the fixture `eoslog_faults` makes it.

    `close`, or the end of its block, puts the clock right, and raises FaultNotFiredError if a fault
    was made and did not act.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._path = str(store.path)
        self._made: list[Fault] = []
        self._clock = _MovedClock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: object, error: object, traceback: object) -> None:
        try:
            self.close()
        except FaultNotFiredError:
            if error is None:
                raise

    def close(self) -> None:
        """Put the clock right. Raises FaultNotFiredError if a fault was made and did not act."""
        __tracebackhide__ = True
        self._clock.put_right()
        unfired = [one for one in self._made if not one.fired and not one.is_reported]
        self._made.clear()
        if unfired:
            raise FaultNotFiredError("\n".join(one.explain() for one in unfired))

    @property
    def any_failed(self) -> bool:
        """True if a call was made to fail: then the close of the store may fail too."""
        return any(one.kind != "delay" and one.fired for one in self._made)

    # The disk.

    def fail_sync(
        self,
        where: Place | None = None,
        *,
        number: int = 1,
        error: int = errno.EIO,
    ) -> Fault:
        """Return a block in which a sync of the store fails once, as on a broken disk.

        The partition then refuses writes until the store is opened again.

        Parameters
        ----------
        where : TopicPartition or str, optional
            A partition, or a topic; by default any file of the store.
        number : int
            Which of these syncs fails, from 1.
        error : int
            The errno of the failure.
        """
        return self._sync_fault("sync", where, number, error=_errno(error))

    def delay_sync(
        self,
        seconds: float,
        where: Place | None = None,
        *,
        number: int = 1,
    ) -> Fault:
        """Return a block in which a sync of the store takes so long; else as `fail_sync`."""
        delay_ns = int(seconds * 1e9)
        if not 0 < delay_ns < 1 << 62:
            raise ValueError(f"seconds must be above 0, got {seconds}")
        return self._sync_fault("delay", where, number, delay_ns=delay_ns)

    def fill_disk(self) -> Fault:
        """Return a block in which the store's disk is full: what needs room fails with ENOSPC.

        Writes into room that the store has in reserve go on, as on a disk that is full.
        """
        return self._kept(Fault("full", self._path, None))

    def _sync_fault(
        self,
        kind: str,
        where: TopicPartition | tuple[str, int] | str | None,
        number: int,
        **how: int,
    ) -> Fault:
        count = _count(number, "number")
        known = None if where is None else self._known(where)
        hint = _NO_SYNCS if self._store.durability == "process" else ""
        return self._kept(Fault(kind, self._path, known, number=count, hint=hint, **how))

    def _kept(self, made: Fault) -> Fault:
        self._made.append(made)
        return made

    def _known(self, where: Place) -> TopicPartition | str:
        """Return the topic or partition. Raises UnknownTopicOrPartitionError, TypeError."""
        if isinstance(where, str):
            parts_of(self._store).files.engine.topic(where)
            return where
        partition = as_topic_partition(where)
        self._store.partition(*partition)
        return partition

    # Transactions and producers.

    def fence(self, producer: Producer | str) -> Producer:
        """Fence a producer, as its successor does; return this successor, initialized.

        Parameters
        ----------
        producer : Producer or str
            A producer with a transactional id or a name, or a transactional id.

        Raises
        ------
        ValueError
            The producer has neither.
        """
        if isinstance(producer, Producer) and not isinstance(producer, TransactionalProducer):
            if producer.name is None:
                raise ValueError(
                    f"{producer!r} has no name and no transactional id: nothing fences"
                )
            named = self._store.producer(name=producer.name)
            ProducerInternals(named).check_appendable()
            return named
        successor = self._store.producer(transactional_id=_id_of(producer))
        successor.init_transactions()
        return successor

    def time_out(self, producer: TransactionalProducer | str) -> None:
        """Abort a producer's open transaction now, as if its timeout were over; it is fenced.

        What the producer gathered is appended first. Raises InvalidTxnStateError if no transaction
        with a record is open, or if it is prepared.
        """
        if isinstance(producer, TransactionalProducer):
            producer.flush()
        name = _id_of(producer)
        coordinator = parts_of(self._store).files.transactions
        with coordinator.entries.locked(name) as entry:
            if entry.state != ONGOING or entry.prepared:
                state = "prepared" if entry.prepared else entry.state
                raise InvalidTxnStateError(f"{name!r} is {state}: nothing of it can time out")
            now_ms = entry.start_ms + entry.timeout_ms + 1
            reason = timed_out(name, entry.start_ms, entry.timeout_ms, now_ms)
            coordinator.fence(entry, reason, "timeout")

    def use_up_epochs(self, producer: TransactionalProducer | str) -> None:
        """Have a transactional id at the last epoch of its producer id.

        The next commit or abort of a producer's transaction with a record in the log takes another
        producer id for what follows. By id: the next `init_transactions()` does.

        Parameters
        ----------
        producer : TransactionalProducer or str
            A producer that is initialized and has no transaction open, or an id.

        Raises
        ------
        IllegalStateError
            A transaction is open, or the producer is not initialized.
        """
        name = _id_of(producer)
        files = parts_of(self._store).files
        manager = None
        if isinstance(producer, TransactionalProducer):
            manager = ProducerInternals(producer).transactions
            if manager is None or manager.state is not ClientState.READY:
                raise IllegalStateError(f"{producer!r}: it must be initialized, and nothing open")
        with files.transactions.entries.locked(name, create=True) as entry:
            if entry.state in UNDECIDED_STATES:
                raise IllegalStateError(f"{name!r} is {entry.state}: end its transaction first")
            self._write_last_epoch(entry)
            if manager is not None:
                manager.set_entry(
                    entry, manager.owner, manager.state_partition, entry.producer_id, LAST_EPOCH
                )

    def _write_last_epoch(self, entry: TransactionEntry) -> None:
        """Write a record as if the id had been used for very long."""
        files = parts_of(self._store).files
        is_new = entry.producer_id < 0
        name = entry.transactional_id
        value = encode_transaction_value(
            producer_id=files.producer_ids.take() if is_new else entry.producer_id,
            producer_epoch=LAST_EPOCH,
            last_producer_epoch=-1,
            previous_producer_id=-1,
            timeout_ms=DEFAULT_TIMEOUT_MS if is_new else entry.timeout_ms,
            state="Empty",
            partitions=None,
            last_update_ms=clock.now_ms(),
            start_ms=-1,
            client_transaction_version=EPOCH_BUMPING_VERSION,
            owner=entry.owner,
        )
        partition = files.state_log.partition_of(name)
        with files.state_log.persist_lock:
            appended = partition.append_columns([value], [transaction_key(name)])
            partition.flush()
            files.state_log.moved(name, StateRecord(value, appended.base_offset))
        files.transactions.entries.refresh(name, appended.base_offset)

    # Deaths.

    def kill_before_markers(
        self,
        function: Callable[..., object],
        *arguments: Any,
        start_method: str = "spawn",
        timeout: float = _CHILD_S_MAX,
    ) -> None:
        """Call a function in a child process, which is killed between a transaction's decision and
        its markers.

        On return the child is dead, and its first commit or abort is decided. The processes that
        have the store open complete it within some seconds, or the next opening does.

        Parameters
        ----------
        function : callable
            Called with the store's path and the arguments. It opens the store itself, with
            `eoslog.open(path, durability=None)`, and ends a transaction.
        arguments
            Passed on.
        start_method : {"spawn", "fork", "forkserver"}
            That of `multiprocessing`. With "spawn" the function is one of a module that can be
            imported. A fork takes any function, and copies this process: the stores that are open
            here are closed there.
        timeout : float
            Seconds after which the child has hung.

        Raises
        ------
        FaultNotFiredError
            The function returned: it ended no transaction.
        ChildFailedError
            The function raised an error, hung, or could not be called.
        """
        self._kill("markers", function, arguments, start_method, timeout)

    def kill_before_adoption(
        self,
        function: Callable[..., object],
        *arguments: Any,
        start_method: str = "spawn",
        timeout: float = _CHILD_S_MAX,
    ) -> None:
        """Do as `kill_before_markers`, between the decision of a staged job and the adoption of its
        files: the function calls `Store.commit_staged`.
        """
        self._kill("adoption", function, arguments, start_method, timeout)

    def _kill(
        self,
        moment: str,
        function: Callable[..., object],
        arguments: tuple[Any, ...],
        start_method: str,
        timeout: float,
    ) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, got {type(function).__name__}")
        if not run_and_die(moment, function, (self._path, *arguments), start_method, timeout):
            raise FaultNotFiredError(f"the function returned, and {MOMENTS[moment]}")

    # The clock.

    def advance_clock(self, seconds: float) -> None:
        """Have time pass for this store's process: eoslog reads the wall clock so much later, until
        the end of the test.

        On return all is done that is due by then: transactions are timed out, retention and the
        expiry of ids and offsets are applied. Waits are not shortened. A negative number moves the
        clock back.
        """
        self._clock.advance(int(seconds * 1e9))
        parts = parts_of(self._store)
        if not self._store.closed:
            parts.checkpointer.do_all_now()


class _MovedClock:
    """The wall clock of eoslog, in Python and in its compiled modules."""

    def __init__(self) -> None:
        self._ahead_ns = 0
        self._is_taken = False

    def advance(self, by_ns: int) -> None:
        """Move it on from where it is now."""
        if not self._is_taken:
            take_calls_over()
            self._is_taken = True
        self._move(self._ahead_ns + by_ns)

    def put_right(self) -> None:
        """Have it be the system's."""
        self._move(0)
        if self._is_taken:
            self._is_taken = False
            give_calls_back()

    def _move(self, ahead_ns: int) -> None:
        if not self._is_taken:
            return
        from eoslog.bindings import call_faults

        self._ahead_ns = ahead_ns
        call_faults.move_clock(ahead_ns)
        clock.move(ahead_ns // 1_000_000)


def _id_of(producer: object) -> str:
    if isinstance(producer, TransactionalProducer):
        return producer.transactional_id
    if isinstance(producer, str):
        return producer
    raise TypeError(
        f"expected a transactional producer or a transactional id, got {type(producer).__name__}"
    )


def _count(given: object, name: str) -> int:
    number = whole_number(given, name)
    if not 1 <= number < 1 << 62:
        raise ValueError(f"{name} must be 1 or more, got {number}")
    return number


def _errno(given: object) -> int:
    number = whole_number(given, "error")
    if number not in errno.errorcode:
        raise ValueError(f"error must be one of the module errno, got {number}")
    return number
