"""A process that makes wrong calls of a transaction's entry, and says what came of it.

Argument: a directory. Standard output: the number of calls and a list of complaints, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from partition_files import PartitionFiles
from wrong_calls import ARGUMENTS, NAMED, Calls

from eoslog.bindings import transaction_record as record
from eoslog.bindings.accumulator import RecordAccumulator
from eoslog.bindings.column_set import open_columns
from eoslog.bindings.known_transaction import KnownTransaction
from eoslog.bindings.transaction_entry import (
    PartitionLost,
    ProducerIdNeeded,
    TransactionEntry,
    TransactionPart,
)

ALLOWED = (
    *NAMED,
    ProducerIdNeeded,
    PartitionLost,
    AttributeError,
    RuntimeError,
)
FIELDS = {
    "producer_id": 7,
    "producer_epoch": 0,
    "timeout_ms": 1,
    "state": "Ongoing",
    "partitions": [("a", 0)],
    "last_update_ms": 1,
    "start_ms": 1,
}
TAGGED = {
    "version": 1,
    "previous_producer_id": -1,
    "next_producer_id": -1,
    "next_producer_epoch": -1,
    "client_transaction_version": 0,
    "last_producer_epoch": -1,
    "prepared": False,
}


def entry_calls(entry: TransactionEntry, part: TransactionPart) -> dict[str, dict[str, Any]]:
    """The entry's methods with good arguments, in an order in which all of them get work to do."""
    ids = {"producer_id": 7, "producer_epoch": 0}
    numbers = {"last_producer_epoch": -1, "previous_producer_id": -1, "timeout_ms": 1, "now_ms": 1}
    filled = {"filled": [(RecordAccumulator(1000), part)]}
    columns = {"values": [b"x"], "keys": [b"k"], "timestamp_ms": 1}
    return {
        "initialize": ids | numbers,
        "add_partitions": ids | {"parts": [part]},
        "flush": ids | filled,
        "append_columns": ids
        | {"part": part, "columns": open_columns([b"x"], None, None, None, 1)},
        "append_offsets": ids | {"part": part} | columns,
        "prepare": ids,
        "commit": ids | filled | {"next_producer_id": -1},
        "end": ids | {"commit": True, "next_producer_id": -1},
        "load": {"value": record.encode_transaction_value(**FIELDS), "offset": 3},
        "attach": {"parts": [part]},
        "fence": {"next_producer_id": -1},
        "drop_partition": {"topic": "a", "partition": 0},
    }


def main(root: Path) -> None:
    calls = Calls(root)
    state = PartitionFiles(root / "state").open()
    data = PartitionFiles(root / "data").open()
    entry = TransactionEntry("id", state, False)
    part = TransactionPart("a", 0, data)
    for _ in range(2):
        for name, good in entry_calls(entry, part).items():
            calls.each_argument(name, getattr(entry, name), good, allowed=ALLOWED)
    good = {"transactional_id": "id", "state_log": state, "durable": False}
    calls.each_argument("TransactionEntry", TransactionEntry, good)
    calls.each_argument(
        "TransactionPart", TransactionPart, {"topic": "a", "partition": 0, "log": data}
    )
    for one in (TransactionEntry, TransactionPart, KnownTransaction):
        for arguments in ARGUMENTS:
            calls.make(
                f"{one.__name__}.__new__{arguments!r}",
                lambda o=one, a=arguments: o.__new__(o, *a),
                ALLOWED,
            )
    calls.each_argument("encode", record.encode_transaction_value, FIELDS | TAGGED)
    calls.each_argument("decode", record.decode_transaction_value, {"value": b"\0\1"})
    calls.each_argument("transaction_key", record.transaction_key, {"transactional_id": "id"})
    calls.each_argument("transactional_id_of", record.transactional_id_of, {"key": b"\0\0\0\1x"})
    calls.each_argument("state_name", record.state_name, {"number": 1})
    calls.each_argument("state_number", record.state_number, {"name": "Empty"})
    states = {"target": "Empty", "source": "Empty"}
    calls.each_argument("transition_allowed", record.transition_allowed, states)
    print(json.dumps({"count": calls.count, "complaints": calls.complaints[:20]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
