"""The same for the public API: a process that makes wrong calls of a store and its objects.

Argument: a directory. Standard output: as that of wrong_calls.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from io import BytesIO
from pathlib import Path

from bad_input.small_store import PARTITIONS, TOPIC, make_store
from bad_input.wrong_calls import APPEND, IDENTITY, MARKER, SOUND_BATCH, Calls, bad_values, shown

import eoslog
from eoslog import TopicPartition
from eoslog.errors import EoslogError, LogClosedError, UnknownTopicOrPartitionError
from eoslog.store.store import engine_of

WHERE = TopicPartition(TOPIC, 0)
SETTINGS = (
    "segment.bytes",
    "retention.ms",
    "batch.size",
    "linger.ms",
    "enable.idempotence",
    "eoslog.checkpoint.interval.ms",
    "max.poll.records",
    "no.such.setting",
)
# Names that Kafka refuses, and names that only look as if they could be paths of ours.
TOPIC_NAMES = (
    "", ".", "..", "a/b", "../up", "with space", "é", "a" * 250, "tab\t", "nul\x00", "a:b", "state",
    "staging", "__consumer_offsets", "__transaction_state", "a\n",
)  # fmt: skip


class Store:
    """An open store and how far each of its partitions went."""

    def __init__(self, calls: Calls, path: Path) -> None:
        make_store(path)
        self.calls = calls
        self.path = path
        self.store = eoslog.open(path)
        self.ends = self.all_ends()

    def all_ends(self) -> list[int]:
        numbers = range(PARTITIONS)
        return [self.store.partition(TOPIC, number).log_end_offset for number in numbers]

    def check(self, what: str, passed: bool) -> None:
        ends = self.all_ends()
        if ends != self.ends and not passed:
            self.calls.complaints.append(f"{what}: refused, and something was appended")
        self.ends = ends

    def each(self, name, function, good) -> None:
        self.calls.each_argument(name, function, good, self.check)


def fuzz_store(made: Store, calls: Calls) -> None:
    store = made.store
    made.each("create_topic", store.create_topic, {"name": TOPIC, "partitions": 1, "config": {}})
    made.each("create_topics", store.create_topics, {"partitions": {TOPIC: 1}, "config": {}})
    altered = {"name": TOPIC, "config": {}, "partitions": 1}
    made.each("alter_topic", store.alter_topic, altered)
    made.each("partition", store.partition, {"topic": TOPIC, "number": 0})
    made.each("delete_topic", store.delete_topic, {"name": "absent"})
    made.each("application", store.application, {"app_id": "app"})
    made.each("backup", partial(store.backup, store.path / "inside"), {"progress": None})
    taken = {"topic": TOPIC, "name": "n", "format": None, "partition": 0, "progress": None}
    line = BytesIO(b'{"value": "x"}')
    made.each("import_file", partial(eoslog.import_file, store, file=line), taken)
    given = {"topic": TOPIC, "format": None, "partitions": [0], "start": 0, "end": 0}
    given |= {"progress": None}
    made.each("export_topic", partial(eoslog.export_topic, store, file=BytesIO()), given)
    commit = {"app_id": "app", "version": 1, "messages": [None], "run_id": "run"}
    made.each("commit_staged", store.commit_staged, commit)
    made.each("begin_run", store.begin_run, {"app_id": "app"})
    made.each("sweep_run", store.sweep_run, {"app_id": "app", "run_id": "run"})
    made.each("producer", store.producer, {"name": "n", "config": None, "transactional_id": None})
    consumer = {"group": None, "isolation_level": "read_committed"}
    consumer |= {"auto_offset_reset": "earliest", "config": None}
    made.each("consumer", store.consumer, consumer)
    for name in TOPIC_NAMES:
        for function in (store.create_topic, store.delete_topic):
            what = f"{function.__name__}({name!r:.40})"
            if calls.make(what, lambda f=function, n=name: f(n), (EoslogError,)):
                if name in ("state", "staging") and function.__name__ == "create_topic":
                    continue
                if name not in ("state", "staging"):
                    calls.complaints.append(f"{what}: taken")
    for setting in SETTINGS:
        for value in bad_values():
            for kind in ("create_topic", "producer", "consumer"):
                config = {setting: value}
                topic = {"name": TOPIC} if kind == "create_topic" else {}
                call = getattr(store, kind)
                what = f"{kind}({setting}={shown(value)})"
                calls.make(what, lambda c=call, t=topic, s=config: c(**t, config=s))


def fuzz_producer(made: Store) -> None:
    # What was gathered stays where it is: only then an append is one of the call that was made.
    with made.store.producer(config={"linger.ms": 3_600_000, "batch.size": 1 << 20}) as producer:
        send = {"topic": TOPIC, "value": b"v", "key": b"k", "partition": 0}
        send |= {"headers": None, "timestamp_ms": 1_790_000_000_000}
        made.each("send", producer.send, send)
        made.calls.make("discard", producer.discard_gathered)
        append = {"topic": TOPIC, "partition": 0}
        append |= {name: APPEND[name] for name in ("values", "keys", "timestamps", "headers")}
        made.each("append", producer.append, append)
        made.each("append by key", producer.append, append | {"partition": None})
    with made.store.producer(name="fuzz") as producer:
        asked = {"topic": TOPIC, "partition": 0}
        made.each("next_sequence", producer.next_sequence, asked)


def fuzz_consumer(made: Store, calls: Calls) -> None:
    with made.store.consumer() as consumer:
        consumer.assign([WHERE])
        made.each("assign", consumer.assign, {"partitions": [WHERE]})
        consumer.assign([WHERE])
        made.each("seek", consumer.seek, {"topic_partition": WHERE, "offset": 0})
        for name in ("position", "lag"):
            made.each(name, getattr(consumer, name), {"topic_partition": WHERE})
        for name in ("beginning_offsets", "end_offsets"):
            made.each(name, getattr(consumer, name), {"partitions": [WHERE]})
        made.calls.each_argument(
            "offsets_for_times", consumer.offsets_for_times, {"times": {WHERE: 0}}, positional=1
        )
        for value in bad_values():
            calls.make(
                f"offsets_for_times({shown(value)})",
                lambda v=value: consumer.offsets_for_times({WHERE: v}),
            )
            calls.make(f"seek_to_end({shown(value)})", lambda v=value: consumer.seek_to_end(v))
            for place in (TopicPartition(TOPIC, value), TopicPartition(value, 0)):
                calls.make(f"seek({shown(value)})", lambda p=place: consumer.seek(p, 0))
        consumer.seek(WHERE, 0)
        for name in ("poll", "poll_arrow"):
            limit = {"max_records": 1} if name == "poll" else {"max_bytes": 10}
            for value in bad_values():
                consumer.seek(WHERE, 0)
                for argument in limit:
                    what = f"{name}({argument}={shown(value)})"
                    arguments = {"timeout": 0, argument: value}
                    calls.make(what, lambda n=name, a=arguments: getattr(consumer, n)(**a))
                if not isinstance(value, int | float) or value <= 0:
                    what = f"{name}(timeout={shown(value)})"
                    calls.make(what, lambda n=name, v=value: getattr(consumer, n)(timeout=v))


def fuzz_partition(made: Store) -> None:
    view, log = made.store.partition(TOPIC, 1), engine_of(made.store).partition(TOPIC, 1)
    made.each("append_batch", view.append_batch, {"batch": SOUND_BATCH})
    made.each("append_columns", log.append_columns, APPEND | IDENTITY)
    made.each(
        "read", view.read, {"offset": 0, "max_bytes": 100, "isolation_level": "read_committed"}
    )
    made.each("fetch_records", log.fetch_records, {"offset": 0, "max_records": 5, "max_bytes": 100})
    columns = {"offset": 0, "max_bytes": 100, "max_records": 5}
    made.each("fetch_columns", log.fetch_columns, columns)
    made.each("scan_headers", log.log.scan_headers, {"offset": 0, "upper_bound": -1})
    made.each("offset_for_timestamp", view.offset_for_timestamp, {"timestamp_ms": 0})
    made.each("producer of a partition", log.producer, {"producer_id": 1})
    made.each("aborted_transactions", view.aborted_transactions, {"first": 0, "last": 10})
    made.each("append_marker", log.append_marker, MARKER)


def fuzz_transactions(made: Store, calls: Calls) -> None:
    """Whatever is asked for in a transaction, it can be aborted, and nothing of it is read."""
    store = made.store
    made.each(
        "transactional producer",
        store.producer,
        {"transactional_id": "fuzz", "transaction_timeout_ms": 1000},
    )
    producer = store.producer(transactional_id="fuzz")
    made.each("init_transactions", producer.init_transactions, {"keep_prepared": False})
    producer = store.producer(transactional_id="fuzz")
    producer.init_transactions()
    send = {"topic": TOPIC, "value": b"v", "key": b"k", "partition": 0}
    send |= {"headers": None, "timestamp_ms": 1_790_000_000_000}
    append = {"topic": TOPIC, "partition": 0}
    append |= {name: APPEND[name] for name in ("values", "keys", "timestamps", "headers")}
    offsets = {"offsets": {WHERE: 1}, "group": "fuzz"}
    before = committed_count(store)
    for name, good in (
        ("send", send),
        ("append", append),
        ("send_offsets_to_transaction", offsets),
    ):

        def in_a_transaction(name=name, **arguments) -> None:
            producer.begin_transaction()
            try:
                getattr(producer, name)(**arguments)
                producer.flush()
            finally:
                producer.abort_transaction()

        calls.each_argument(f"{name} in a transaction", in_a_transaction, good)
    for value in bad_values():
        for name in ("partition", "offset"):
            if name == "partition" and not is_hashable(value):
                continue
            place = WHERE if name == "offset" else TopicPartition(TOPIC, value)
            given = {place: value if name == "offset" else 1}
            what = f"send_offsets_to_transaction({name} {shown(value)})"
            calls.make(what, lambda g=given: in_a_transaction(offsets=g, group="fuzz"))
    if committed_count(store) != before:
        calls.complaints.append("records of an aborted transaction are read")
    made.ends = made.all_ends()


def is_hashable(value: object) -> bool:
    try:
        hash(value)
    except (TypeError, ValueError):
        return False
    return True


def committed_count(store: eoslog.Store) -> int:
    with store.consumer() as consumer:
        consumer.assign([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        count = 0
        while records := consumer.poll(timeout=0):
            count += len(records)
        return count


def fuzz_groups(made: Store) -> None:
    store = made.store
    made.each("delete_group", store.delete_group, {"name": "absent"})
    offsets = {"group": "absent", "partitions": [WHERE]}
    made.each("delete_offsets", store.delete_offsets, offsets)
    made.each("delete_records", store.delete_records, {"offsets": {WHERE: 0}})
    made.each("deletable_records", store.deletable_records, {"before_ms": 0, "topics": [TOPIC]})
    made.each("snapshot", store.snapshot, {"topics": [TOPIC]})
    scan = {"topic": TOPIC, "offsets": {0: (0, None)}, "time": (0, None), "columns": ["value"]}
    scan |= {"isolation_level": "read_committed", "max_bytes": 1000}
    made.each("scan", lambda **named: list(store.scan(**named)), scan)
    with store.consumer(group="fuzz") as consumer:
        made.each("commit", consumer.commit, {"offsets": {WHERE: 1}})
        made.each("committed", consumer.committed, {"topic_partition": WHERE})
        made.each("committed_metadata", consumer.committed_metadata, {"topic_partition": WHERE})


def fuzz_operators(made: Store) -> None:
    store = made.store
    listing = {"states": ["Ongoing"], "producer_ids": [1], "pattern": "f.*", "duration_ms": 0}
    made.each("transactions", store.transactions, listing)
    one = {"transactional_id": "fuzz"}
    made.each("describe_transaction", store.describe_transaction, one)
    made.each("abort_transaction", store.abort_transaction, {"transactional_id": "absent"})
    place = {"topic": TOPIC, "partition": 0, "start_offset": 0}
    made.each("abort_transaction at a partition", store.abort_transaction, place)
    hanging = {"max_transaction_timeout_ms": 1000, "topic": TOPIC, "partition": 0}
    made.each("find_hanging_transactions", store.find_hanging_transactions, hanging)
    explained = {"topic": TOPIC, "partition": 0}
    made.each("explain_last_stable_offset", store.explain_last_stable_offset, explained)
    for name in ("commit_prepared", "abort_prepared"):
        made.each(name, getattr(store, name), {"prepared": []})


def fuzz_open(calls: Calls, root: Path) -> None:
    good = {"path": root / "second", "create": True, "durability": "commit", "config": None}
    make_store(root / "second")

    def open_and_close(**named) -> None:
        eoslog.open(**named).close()

    for argument in ("durability", "config", "create"):
        for value in bad_values():
            what = f"open({argument}={shown(value)})"
            calls.make(what, lambda a=argument, v=value: open_and_close(**(good | {a: v})))
    for name in (-1, PARTITIONS, 10**9):
        with eoslog.open(root / "second") as store:
            calls.make(
                f"partition {name}",
                lambda n=name, s=store: s.partition(TOPIC, n),
                (UnknownTopicOrPartitionError,),
            )


def fuzz_closed(made: Store, calls: Calls) -> None:
    """After close() every call of every object that was handed out says so."""
    store = made.store
    producer, named, consumer = store.producer(), store.producer(name="late"), store.consumer()
    transactional = store.producer(transactional_id="late")
    transactional.init_transactions()
    member = store.consumer(group="late")
    consumer.assign([WHERE])
    log = store.partition(TOPIC, 0)
    store.close()
    closed = {
        "store.topics": store.topics,
        "store.partition": lambda: store.partition(TOPIC, 0),
        "store.producer": store.producer,
        "store.consumer": store.consumer,
        "store.create_topic": lambda: store.create_topic("x"),
        "store.create_topics": lambda: store.create_topics({"x": 1}),
        "store.alter_topic": lambda: store.alter_topic("x"),
        "store.backup": lambda: store.backup(store.path.with_name("x")),
        "import_file": lambda: eoslog.import_file(store, TOPIC, BytesIO(), name="n"),
        "export_topic": lambda: eoslog.export_topic(store, TOPIC, BytesIO()),
        "store.delete_topic": lambda: store.delete_topic(TOPIC),
        "store.verify": store.verify,
        "store.flush": store.flush,
        "store.metrics": store.metrics,
        "store.explain_last_stable_offset": lambda: store.explain_last_stable_offset(TOPIC),
        "store.describe_log_dirs": store.describe_log_dirs,
        "store.producers": store.producers,
        "producer.send": lambda: producer.send(TOPIC, value=b"x"),
        "producer.append": lambda: producer.append(TOPIC, partition=0, values=[b"x"]),
        "producer.flush": producer.flush,
        "store.groups": store.groups,
        "store.delete_group": lambda: store.delete_group("late"),
        "store.delete_offsets": lambda: store.delete_offsets("late", [WHERE]),
        "store.delete_records": lambda: store.delete_records({WHERE: 0}),
        "store.deletable_records": lambda: store.deletable_records({WHERE: 0}),
        "store.scan": lambda: store.scan(TOPIC),
        "store.snapshot": store.snapshot,
        "store.transactions": store.transactions,
        "store.describe_transaction": lambda: store.describe_transaction("late"),
        "store.abort_transaction": lambda: store.abort_transaction("late"),
        "store.find_hanging_transactions": store.find_hanging_transactions,
        "store.commit_prepared": lambda: store.commit_prepared([]),
        "transactional.begin_transaction": transactional.begin_transaction,
        "transactional.init_transactions": transactional.init_transactions,
        "member.commit": lambda: member.commit({WHERE: 1}),
        "member.committed": lambda: member.committed(WHERE),
        "named.next_sequence": lambda: named.next_sequence(TOPIC, 0),
        "consumer.poll": lambda: consumer.poll(timeout=0),
        "consumer.seek": lambda: consumer.seek(WHERE, 0),
        "partition.read": lambda: log.read(0),
        "partition.append_batch": lambda: log.append_batch(SOUND_BATCH),
        "partition.log_end_offset": lambda: log.log_end_offset,
        "partition.size_bytes": lambda: log.size_bytes,
        "partition.verify": log.verify,
        "partition.open_transactions": log.open_transactions,
        "partition.aborted_transactions": lambda: log.aborted_transactions(0, 1),
    }
    for name, call in closed.items():
        if calls.make(f"closed {name}", call, (LogClosedError,)):
            calls.complaints.append(f"closed {name}: it answered")
    for again in (store.close, producer.close, named.close, consumer.close):
        if not calls.make(f"closed {again.__qualname__}", again):
            calls.complaints.append(f"{again.__qualname__}: a second close is refused")


def main() -> None:
    root = Path(sys.argv[1])
    calls = Calls(root)
    made = Store(calls, root / "store")
    fuzz_store(made, calls)
    fuzz_producer(made)
    fuzz_consumer(made, calls)
    fuzz_transactions(made, calls)
    fuzz_groups(made)
    fuzz_operators(made)
    fuzz_partition(made)
    # A partition takes any producer id, also one that only staged files have: that is reported.
    reported = made.store.verify()
    problems = [one for one in reported if "is of a staged file" not in str(one["reason"])]
    if problems:
        calls.complaints.append(f"the store is damaged: {problems}")
    fuzz_open(calls, root)
    fuzz_closed(made, calls)
    print(json.dumps({"count": calls.count, "complaints": calls.complaints}))


if __name__ == "__main__":
    main()
