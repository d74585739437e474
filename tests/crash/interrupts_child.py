"""Makes one call again and again, interrupted at random steps, and closes the store."""

import random
import signal
import sys
import threading

import eoslog
from eoslog import TopicPartition


class Interrupt(BaseException):
    """What the handler raises, as Python's own raises KeyboardInterrupt."""


def raise_it(number, frame):
    raise Interrupt


def interrupted(call, count):
    """Call until so many interrupts came in the middle of it."""
    came = 0
    generator = random.Random(count)
    while came < count:
        try:
            signal.setitimer(signal.ITIMER_REAL, generator.uniform(1e-6, 4e-4))
            try:
                call()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:
            came += 1
        except RuntimeError as error:
            # Python's own: a condition that was interrupted before it had its lock again, as where
            # a thread is started, releases it all the same.
            if not isinstance(error.__context__, Interrupt):
                raise
            came += 1
    return came


def calls(store):
    producer = store.producer(config={"linger.ms": 1})
    consumer = store.consumer()
    consumer.assign([TopicPartition("t", 0)])
    mover = store.producer(transactional_id="mover")
    mover.init_transactions()

    def send():
        producer.send("t", b"v", partition=0)
        producer.flush()

    def poll():
        consumer.poll(timeout=0.0005)

    def transaction():
        try:
            with mover.transaction():
                mover.send("t", b"v", partition=1)
        except eoslog.errors.IllegalStateError:
            finish(mover)
        except eoslog.errors.TransactionAbortableError:
            mover.abort_transaction()

    return {
        "send": send,
        "poll": poll,
        "snapshot": lambda: store.snapshot(["t"]),
        "transaction": transaction,
    }


def finish(mover):
    """An interrupted commit or abort ends with the same call."""
    for call in (mover.commit_transaction, mover.abort_transaction):
        try:
            call()
        except (eoslog.errors.IllegalStateError, eoslog.errors.TransactionAbortableError):
            continue
        return


def main(path, name, count):
    signal.signal(signal.SIGALRM, raise_it)
    store = eoslog.open(path, create=True, durability="process")
    store.create_topic("t", partitions=2)
    call = calls(store)[name]
    # What is loaded on first use is loaded: Python's own import keeps its lock if it is interrupted
    # between two of its steps, in any program.
    call()
    came = interrupted(call, count)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    # Another thread can do all of it too: no lock is held by one that was interrupted.
    other = threading.Thread(target=use_everything, args=(store,))
    other.start()
    other.join(timeout=30)
    assert not other.is_alive(), "a lock is held"
    store.close()
    print("closed", came)


def use_everything(store):
    with store.producer() as producer:
        producer.send("t", b"other", partition=0)
    with store.consumer() as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.poll(timeout=0.01)
    store.snapshot(["t"])
    mover = store.producer(transactional_id="mover")
    mover.init_transactions()
    with mover.transaction():
        mover.send("t", b"other", partition=1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
