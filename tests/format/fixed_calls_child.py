"""Make the same calls on a new store each time, with the same random bytes; see test_same_bytes."""

import collections
import hashlib
import os
import random
import sys
from pathlib import Path

drawn: collections.Counter[int] = collections.Counter()


def fixed_bytes(size: int) -> bytes:
    """The same bytes as in any other run, for the same draw of this size."""
    drawn[size] += 1
    return hashlib.shake_128(b"%d of %d" % (drawn[size], size)).digest(size)


os.urandom = fixed_bytes
random._urandom = fixed_bytes  # type: ignore[attr-defined]
os.getpid = lambda: 4242
os.uname = lambda: os.uname_result(("Linux", "host", "", "", ""))

import pyarrow as pa  # noqa: E402

import eoslog  # noqa: E402
from eoslog import TopicPartition  # noqa: E402
from eoslog.staging.leftovers import Leftovers  # noqa: E402
from eoslog.store.store import engine_of  # noqa: E402

# The background thread would remove the trash between two moves or not: the later move makes it
# again, and then draws a second name.
Leftovers.empty_trash = lambda *_, **__: None  # type: ignore[method-assign]
NOW_MS = 2_000_000_000_000
# A journal's thread draws bytes of its own, and has decisions name what they rest on.
WITHOUT_JOURNAL = {"eoslog.journal.bytes": 0}


def without_transactions(store: eoslog.Store) -> None:
    with store.producer() as producer:
        for number in range(20):
            producer.send(
                "orders",
                value=b"v%d" % number,
                key=b"k%d" % (number % 7),
                headers=[("number", b"%d" % number), ("none", None)],
                timestamp_ms=NOW_MS + number,
            )
        producer.flush()
        producer.append("orders", 0, [b"a", None, b"c"], keys=[b"x", b"y", None])
        producer.append("orders", 1, pa.array(["ä", None, ""]), timestamps=[NOW_MS] * 3)
    with store.producer(name="loader") as loader:
        loader.append("sums", 1, [b"named %d" % number for number in range(5)])


def transactions(store: eoslog.Store) -> None:
    with store.producer(transactional_id="payments") as producer:
        producer.init_transactions()
        for number in range(3):
            producer.begin_transaction()
            for topic in ("orders", "sums"):
                producer.send(topic, value=b"t%d" % number, partition=number % 2)
            place = {TopicPartition("orders", 0): 5 + number}
            producer.send_offsets_to_transaction(place, "readers")
            if number == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()


def groups(store: eoslog.Store) -> None:
    with store.consumer("assigned") as consumer:
        consumer.assign([TopicPartition("orders", 0), TopicPartition("orders", 1)])
        consumer.poll(0)
        consumer.commit()
    with store.consumer("subscribed") as consumer:
        consumer.subscribe(["sums"])
        consumer.poll(10)
        consumer.commit()


def staged(store: eoslog.Store) -> None:
    for number in range(2):
        records = [b"staged %d" % one for one in range(10)]
        offsets = {"job": {TopicPartition("orders", 1): 3}}
        run_id = store.begin_run("job")
        with eoslog.StagedWriter(
            store.path, "job", run_id, "0", partitions={"orders": 2, "sums": 2}
        ) as writer:
            for topic in ("orders", "sums"):
                writer.append(topic, number, records)
        version = store.application("job").version + 1
        store.commit_staged("job", version, [writer.message], offsets=offsets)


def main(path: Path) -> None:
    with eoslog.open(path, create=True, config=WITHOUT_JOURNAL) as store:
        store.create_topic("orders", partitions=2)
        store.create_topic("sums", partitions=2, config={"segment.bytes": 1 << 20})
        without_transactions(store)
        transactions(store)
        groups(store)
        staged(store)
        with store.producer(transactional_id="prepared") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("sums", value=b"prepared", partition=0)
            token = producer.prepare_transaction()
        engine_of(store).partition("sums", 0).roll()
    with eoslog.open(path, config=WITHOUT_JOURNAL) as store:
        without_transactions(store)
        transactions(store)
        store.commit_prepared([token])
        store.producer(transactional_id="idle").init_transactions()
        store.delete_group("assigned")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
