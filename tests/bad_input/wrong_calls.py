"""A process that makes wrong calls of the bindings, one after the other, and says what came of it.

Arguments: a directory, and what to do ("log", "constructor", "batches", "unmade", "strangers",
"closed"). Before each call its name is written to the file `last-call`, so that a crash has one.
Standard output: the number of calls and a list of complaints, as JSON.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pyarrow
from partition_files import CONFIG, PartitionFiles
from reference_model import batch_codec as codec

from eoslog.bindings import (
    accumulator,
    client_transaction,
    column_set,
    columns,
    partition_log,
    partitioner,
    record_batch,
    sender,
)
from eoslog.errors import EoslogError

NAMED = (EoslogError, TypeError, ValueError, OverflowError, BufferError, MemoryError)
# Of a path that does not exist; the store says which one and why.
OF_PATHS = (OSError,)

SOUND_BATCH = codec.simple_batch([b"value"])
PRODUCED = codec.simple_batch([b"value"], producer_id=5, producer_epoch=0, base_sequence=0)
IN_TRANSACTION = codec.simple_batch(
    [b"value"],
    producer_id=6,
    producer_epoch=0,
    base_sequence=0,
    attributes=codec.TRANSACTIONAL,
)


class Odd:
    """Of no use to anybody; says yes to every question about attributes."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: object, **named: object) -> Any:
        return self


class Failing:
    """An iterable that breaks in the middle."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"one"
        raise ValueError("broken in the middle")

    def __len__(self) -> int:
        return 2


def bad_values() -> list[Any]:
    return [
        None,
        True,
        -1,
        0,
        1,
        -(2**31) - 1,
        2**31,
        2**63 - 1,
        -(2**63),
        2**63,
        2**64,
        -(10**30),
        1.5,
        math.nan,
        math.inf,
        "",
        "text",
        "with\x00zero",
        "\ud800",
        b"",
        b"bytes",
        bytes(61),
        bytes(1000),
        SOUND_BATCH[:-1],
        SOUND_BATCH + b"\x00",
        bytearray(b"array"),
        memoryview(b"view")[::2],
        memoryview(bytes(8)).cast("q"),
        [],
        [None],
        [1],
        ["text"],
        [b"value"],
        [b"value"] * 3,
        [b"value", "text"],
        [[b"nested"]],
        [(b"name", b"value")],
        [("name", "value")],
        [[("name", "value")]],
        [[("\ud800", b"value")]],
        [[("a", b"b", b"c")]],
        [7],
        (),
        {},
        {"a": b"b"},
        {"segment.bytes": -1},
        {b"value"},
        object(),
        object,
        Odd(),
        Failing(),
        range(3),
        iter([b"value"]),
        lambda: None,
        numpy.array([1, 2, 3]),
        numpy.array([1.5]),
        numpy.array(5),
        numpy.array([b"value"]),
        numpy.array(["text"]),
        numpy.array([[b"two", b"dimensions"]]),
        numpy.zeros((0, 5), numpy.uint8),
        numpy.zeros((3, 0), numpy.uint8),
        numpy.zeros((2, 3, 4), numpy.uint8),
        numpy.zeros((3, 3), numpy.int8),
        numpy.array([None, 1, b"x"], dtype=object),
        numpy.array(["2020-01-01"], dtype="datetime64[D]"),
        numpy.array(["NaT"], dtype="datetime64[ms]"),
        pyarrow.array([1, 2, 3]),
        pyarrow.array([1, None, 3]),
        pyarrow.array([b"value", None]),
        pyarrow.array([[b"nested"]]),
        pyarrow.array(["a", "b"]).dictionary_encode(),
        pyarrow.array([b"a", b"b"], pyarrow.binary_view()),
        pyarrow.array([b"abc"], pyarrow.binary(3)).slice(1),
        pyarrow.array([], pyarrow.binary()),
        pyarrow.nulls(3),
        pyarrow.array([True]),
        pyarrow.chunked_array([], pyarrow.binary()),
        pyarrow.record_batch({"a": [b"value"]}),
    ]


def broken_offsets() -> pyarrow.Array:
    """An array made by hand, whose offsets go down."""
    offsets = numpy.array([0, 9, 2, 4], numpy.int32)
    return pyarrow.Array.from_buffers(
        pyarrow.binary(), 3, [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(b"abcd")]
    )


def shown(value: object) -> str:
    """A broken Arrow array cannot even be shown."""
    return type(value).__name__ if "pyarrow" in type(value).__module__ else f"{value!r:.60}"


class Calls:
    """Makes calls, and keeps what is wrong about their outcome."""

    def __init__(self, root: Path) -> None:
        self._last_call = (root / "last-call").open("w")
        self.complaints: list[str] = []
        self.count = 0

    def make(
        self, what: str, call: Callable[[], object], allowed: tuple[type, ...] = NAMED
    ) -> bool:
        """Whether the call went through without an error."""
        self._last_call.seek(0)
        self._last_call.truncate()
        self._last_call.write(what)
        self._last_call.flush()
        self.count += 1
        try:
            call()
        except allowed:
            return False
        except BaseException as error:
            self.complaints.append(f"{what}: {type(error).__name__}: {error}"[:300])
            return False
        return True

    def each_argument(
        self,
        name: str,
        function: Callable[..., object],
        good: dict[str, Any],
        check: Callable[[str, bool], None] = lambda what, passed: None,
        allowed: tuple[type, ...] = NAMED,
        positional: int = 0,
    ) -> None:
        """Every argument gets every bad value, while the others are good."""
        for argument in good:
            # Only here: Arrow itself ends the process when the cells of a broken array are shown.
            broken = [broken_offsets()] if argument in ("values", "keys") else []
            for index, value in enumerate(bad_values() + broken):
                what = f"{name}({argument}={shown(value)}) [{index}]"
                named = good | {argument: value}
                first = [named.pop(key) for key in list(good)[:positional]]
                passed = self.make(what, lambda f=first, n=named: function(*f, **n), allowed)
                check(what, passed)
                if passed and isinstance(value, float) and type(good[argument]) is int:
                    self.complaints.append(f"{what}: taken, and it is no whole number")
        for value in (None, -1, b"x", [b"x"]):
            what = f"{name}(unknown={value!r})"
            self.make(what, lambda v=value: function(**good, unknown_argument=v), allowed)


APPEND = {
    "values": [b"a", b"b", b"c"],
    "keys": [b"k", None, b"k"],
    "timestamps": [1_790_000_000_000] * 3,
    "headers": [[("h", b"v")], [], None],
    "timestamp_ms": 1_790_000_000_000,
}
MARKER = {
    "producer_id": 8,
    "producer_epoch": 1,
    "coordinator_epoch": 0,
    "commit": False,
    "timestamp_ms": 1_790_000_000_000,
    "newer_epoch": True,
}
IDENTITY = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}


def log_calls(log: Any) -> dict[str, tuple[Callable[..., object], dict[str, Any], int]]:
    """Every method of a log with good arguments; the number of those without a name."""
    held = accumulator.RecordAccumulator(1000)
    held.add(b"value")
    row = partition_log.empty_row(1)
    return {
        "append_columns": (log.append_columns, APPEND, 0),
        "append_columns of a producer": (
            log.append_columns,
            APPEND | IDENTITY | {"batch_records_max": 0, "batch_bytes_max": 0},
            0,
        ),
        "append_batch": (log.append_batch, {"batch": SOUND_BATCH}, 0),
        "append_accumulated": (log.append_accumulated, {"accumulator": held} | IDENTITY, 0),
        "append_columns of a transaction": (
            log.append_columns,
            APPEND | IDENTITY | {"producer_id": 8, "transactional": True},
            0,
        ),
        "append_batch of a transaction": (
            log.append_batch,
            {"batch": IN_TRANSACTION, "verified": True},
            0,
        ),
        "append_accumulated of a transaction": (
            log.append_accumulated,
            {"accumulator": held} | IDENTITY | {"transactional": True},
            0,
        ),
        "append_marker": (log.append_marker, MARKER, 0),
        "aborted_transactions": (log.aborted_transactions, {"first": 0, "upper_bound": 10}, 0),
        "sync_up_to": (log.sync_up_to, {"offset": 0}, 0),
        "store_abort_files": (log.store_abort_files, {"sync": False}, 0),
        "adopt": (log.adopt, {"data": PRODUCED, "producer_id": 5}, 0),
        "read": (
            log.read,
            {"offset": 0, "max_bytes": 100, "upper_bound": -1, "committed": True},
            0,
        ),
        "fetch_columns": (
            log.fetch_columns,
            {"offset": 0, "max_bytes": 100, "upper_bound": -1, "max_records": 5}
            | {"committed": True},
            0,
        ),
        "fetch_records": (
            log.fetch_records,
            {"offset": 0, "max_records": 5, "max_bytes": 100, "upper_bound": -1}
            | {"committed": True},
            0,
        ),
        "fetch_newest": (
            log.fetch_newest,
            {"prefix": b"k", "offset": 0, "max_bytes": 100, "upper_bound": -1},
            0,
        ),
        "scan_headers": (log.scan_headers, {"offset": 0, "upper_bound": -1}, 0),
        "highest_leader_epoch": (log.highest_leader_epoch, {}, 0),
        "offset_for_timestamp": (
            log.offset_for_timestamp,
            {"timestamp_ms": 0, "upper_bound": -1},
            0,
        ),
        "flush": (log.flush, {"with_indexes": True}, 0),
        "prepare_spare": (log.prepare_spare, {"count": 1}, 0),
        "advance_log_start": (log.advance_log_start, {"offset": 0}, 0),
        "delete_segments": (log.delete_segments, {"up_to_offset": 0}, 0),
        "largest_timestamp_ms": (log.largest_timestamp_ms, {"base_offset": 0}, 0),
        "take_snapshot": (log.take_snapshot, {"sync": False, "evicted_rows": b""}, 0),
        "restore_producers": (
            log.restore_producers,
            {"rows": None, "rows_offset": 0, "evicted_count": 0, "abort_files": [(0, 1, 7)]},
            0,
        ),
        "install_producer": (log.install_producer, {"row": row, "was_evicted": False}, 0),
        "producers_persisted": (log.producers_persisted, {"offset": 0}, 0),
        "evict_producers": (log.evict_producers, {"keep_max": 10}, 0),
        "expired_producers": (log.expired_producers, {"oldest_timestamp_ms": 0}, 0),
        "drop_producers": (log.drop_producers, {"ids": [1]}, 0),
        "producer": (log.producer, {"producer_id": 1}, 0),
        "producer_ids_since": (log.producer_ids_since, {"offset": 0}, 0),
    }


READERS = (
    "roll",
    "segments",
    "segment_files",
    "snapshots",
    "dirty_producers",
    "producers",
    "open_transactions",
    "abort_files",
    "verify",
)


def fuzz_log(calls: Calls, root: Path) -> None:
    """Nothing that was refused is in the log, and everything that was there stays."""
    files = PartitionFiles(root / "log", {"eoslog.spare.segments": 1})
    log = files.open()
    log.append_columns([b"first", b"second"], timestamp_ms=1_790_000_000_000)
    first_batch = log.read(0)
    expected_end = log.log_end_offset

    def check(what: str, passed: bool) -> None:
        nonlocal expected_end
        end = log.log_end_offset
        if end != expected_end and not passed:
            calls.complaints.append(f"{what}: refused, and the log ends at {end} all the same")
        expected_end = end

    by_name = log_calls(log)
    shortening = {name: by_name.pop(name) for name in ("advance_log_start", "delete_segments")}
    for name, (function, good, positional) in by_name.items():
        calls.each_argument(name, function, good, check, positional=positional)
    for name, (function, good, _) in log_calls(log).items():
        calls.make(f"{name}()", lambda f=function, g=good: f(*[None] * (len(g) + 1)))
    for bad in (0.5, "x", None, -1, -(2**63), 2**64):
        calls.make(f"truncate({bad!r})", lambda b=bad: log.truncate(b))
        if log.log_end_offset != expected_end:
            calls.complaints.append(f"truncate({bad!r}) has cut the log")
            expected_end = log.log_end_offset
    if not files.path(0).read_bytes().startswith(first_batch):
        calls.complaints.append("the first records are gone")
    for name, (function, good, positional) in shortening.items():
        calls.each_argument(name, function, good, check, positional=positional)
    if any(problem["path"].endswith(".log") for problem in log.verify()):
        calls.complaints.append(f"the log is damaged: {log.verify()}")
    files.close()


def fuzz_constructor(calls: Calls, root: Path) -> None:
    good = {
        "path": str(root / "made"),
        "topic": "t",
        "partition": 0,
        "control_path": str(root / "made-control"),
        "spare_path": str(root / "made-spare"),
        "cut_path": str(root / "made-cut"),
        "config": CONFIG,
        "clean": False,
        "recovery_point": 0,
        "log_start_offset": 0,
    }
    (root / "made").mkdir()
    calls.each_argument(
        "PartitionLog", partition_log.PartitionLog, good, allowed=NAMED + OF_PATHS, positional=1
    )
    for name in CONFIG:
        for value in bad_values():
            config = CONFIG | {name: value}
            calls.make(
                f"PartitionLog(config {name}={shown(value)})",
                lambda c=config: partition_log.PartitionLog(**(good | {"config": c})),
                NAMED + OF_PATHS,
            )


def fuzz_batches(calls: Calls) -> None:
    encoder = record_batch.BatchEncoder(100)
    encode = APPEND | {"first": 0, "count": 3, "base_offset": 0} | IDENTITY
    calls.each_argument("encode_columns", encoder.encode_columns, encode)
    calls.each_argument("BatchEncoder", record_batch.BatchEncoder, {"initial_bytes": 0})
    calls.each_argument("iter_batches", record_batch.iter_batches, {"data": SOUND_BATCH})
    decode = {"batch": SOUND_BATCH, "topic": "t", "partition": 0}
    calls.each_argument("decode_records", record_batch.decode_records, decode)
    calls.each_argument("crc32c", record_batch.crc32c, {"data": b"x", "crc": 0})
    record = {"topic": "t", "partition": 0, "offset": 0, "timestamp_ms": 0}
    record |= {"timestamp_type": 0, "key": None, "value": None, "headers": ()}
    calls.each_argument("Record", record_batch.Record, record)
    held = accumulator.RecordAccumulator(1000)
    add = {"value": b"v", "key": b"k", "headers": None, "timestamp_ms": 0}

    def check(what: str, passed: bool) -> None:
        if passed:
            held.clear()
        elif held.record_count or held.batch_bytes != codec.HEADER_BYTES:
            calls.complaints.append(f"{what}: refused, and something is held")

    calls.each_argument("add", held.add, add, check)
    calls.each_argument(
        "RecordAccumulator", accumulator.RecordAccumulator, {"batch_bytes_max": 100}, positional=1
    )
    calls.each_argument("murmur2", partitioner.murmur2, {"key": b"k"})
    key = {"key": b"k", "partitions": 3}
    calls.each_argument("partition_for_key", partitioner.partition_for_key, key)
    opened = {"values": [b"v"], "keys": [b"k"], "timestamps": None, "headers": None}
    opened |= {"timestamp_ms": 1}
    calls.each_argument("open_columns", column_set.open_columns, opened)
    some = column_set.open_columns(**opened)
    place = {"partition_count": 3, "first_partition": 0, "batch_bytes_max": 1000}
    calls.each_argument("by_partition", some.by_partition, place)
    calls.each_argument("check_sizes", some.check_sizes, {"batch_bytes_max": 1000})
    calls.each_argument("empty_row", partition_log.empty_row, {"producer_id": 1})
    calls.each_argument("row_state", partition_log.row_state, {"row": partition_log.empty_row(1)})
    noise = [bytes([byte]) * partition_log.PRODUCER_ROW_BYTES for byte in (1, 0x7F, 0x80, 0xFF)]
    for row in noise:
        calls.make(f"row_state({row[:4]!r}…)", lambda r=row: partition_log.row_state(r))


def classes() -> list[type]:
    modules = (accumulator, column_set, columns, partition_log, partitioner, record_batch, sender)
    modules += (client_transaction,)
    found = {
        value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__.startswith("eoslog.bindings")
    }
    return sorted(found, key=lambda one: one.__name__)


NOT_OURS = ("__class__", "__init_subclass__", "__subclasshook__", "__reduce_ex__")
ARGUMENTS = ((), (0,), (b"x",), ("x", 0), (0, 100), ([b"x"],), (None, 0), (b"x", 0, 0, 0))


def fuzz_unmade(calls: Calls) -> None:
    """Objects whose __init__ never ran: every attribute and every method of each class."""
    allowed = (*NAMED, AttributeError, RuntimeError)
    for one in classes():
        made: list[Any] = []
        for arguments in ARGUMENTS:
            what = f"{one.__name__}.__new__{arguments!r}"
            calls.make(what, lambda o=one, a=arguments, m=made: m.append(o.__new__(o, *a)), allowed)
        for thing in made:
            for name in dir(one):
                if name in NOT_OURS or (name[0] == "_" and not name.startswith("__")):
                    continue
                what = f"unmade {one.__name__}.{name}"
                calls.make(what, lambda t=thing, n=name: getattr(t, n), allowed)
                if not callable(getattr(one, name)) or name in ("__new__", "__init__"):
                    continue
                for arguments in ARGUMENTS:
                    calls.make(
                        f"{what}{arguments!r}",
                        lambda t=thing, n=name, a=arguments: getattr(t, n)(*a),
                        allowed,
                    )
        made.clear()
    append = {"timestamp_ms": 0}
    unmade = partition_log.PartitionLog.__new__(partition_log.PartitionLog)
    calls.make("unmade append_columns", lambda: unmade.append_columns([b"x"], **append))


def fuzz_strangers(calls: Calls) -> None:
    """Methods of a class, called on what is of another one."""
    for one in classes():
        for name, method in vars(one).items():
            if not inspect.isroutine(method) or isinstance(method, (classmethod, staticmethod)):
                continue
            if name in ("__new__", *NOT_OURS):
                continue
            for stranger in (object(), 3, None, [b"x"]):
                for arguments in ARGUMENTS:
                    what = f"{one.__name__}.{name}{(stranger, *arguments)!r}"
                    calls.make(what, lambda m=method, s=stranger, a=arguments: m(s, *a))


def fuzz_closed(calls: Calls, root: Path) -> None:
    """A closed log refuses everything by name, and close() may be called again."""
    for clean in (True, False):
        files = PartitionFiles(root / f"closed-{clean}")
        log = files.open()
        log.append_columns([b"first"], timestamp_ms=1_790_000_000_000)
        log.close(clean)
        for name, (function, good, _) in log_calls(log).items():
            if calls.make(f"closed {name}", lambda f=function, g=good: f(**g), (EoslogError,)):
                calls.complaints.append(f"closed {name}: it answered")
        for name in READERS:
            if name != "snapshots":
                calls.make(f"closed {name}", getattr(log, name), (EoslogError,))
        for name in dir(log):
            if not name.startswith("__"):
                calls.make(f"closed .{name}", lambda n=name, one=log: getattr(one, n))
        calls.make("closed close", log.close)
        calls.make("closed init", lambda one=log: one.__init__(str(root)), (TypeError, ValueError))
        records, _ = files.open(clean=clean).fetch_records(0)
        if [record.value for record in records] != [b"first"]:
            calls.complaints.append("a record of the closed log is gone")
        files.close()


def main() -> None:
    root, what = Path(sys.argv[1]), sys.argv[2]
    calls = Calls(root)
    if what == "log":
        fuzz_log(calls, root)
    elif what == "constructor":
        fuzz_constructor(calls, root)
    elif what == "batches":
        fuzz_batches(calls)
    elif what == "unmade":
        fuzz_unmade(calls)
    elif what == "strangers":
        fuzz_strangers(calls)
    elif what == "closed":
        fuzz_closed(calls, root)
    print(json.dumps({"count": calls.count, "complaints": calls.complaints}))


if __name__ == "__main__":
    main()
