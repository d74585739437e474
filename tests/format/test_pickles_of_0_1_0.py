"""Public objects that an application may have kept as pickles of version 0.1.0 load as the same.

What the engine reports of a log (`AppendResult`, `ProducerState`, ...) is not among them.
"""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import eoslog
from eoslog import TopicPartition, errors

GOLDEN = Path(__file__).parent / "golden" / "pickles_0_1_0.json"
PICKLES = {
    name: base64.b64decode(pickled) for name, pickled in json.loads(GOLDEN.read_text()).items()
}
MS = 1_700_000_000_000
TOPIC_ID = "hpPvcqwkQ2OK9Is9sl0uDA"
T3 = TopicPartition("orders", 3)
FILE = eoslog.StagedFile("orders", 3, "orders-3.0.batches", 4096, 10, 1 << 62, 12345, TOPIC_ID)
MEMBER = eoslog.MemberDescription("m-1", "client", "host", "host/42", 3, ("orders",), (T3,), ())
OBJECTS = {
    "ApplicationState": eoslog.ApplicationState("bulk", 7, "run-1", 2, "complete", "source", 5),
    "ConsumerGroupMetadata": eoslog.ConsumerGroupMetadata(
        "g", 3, "m-1", None, {"orders": TOPIC_ID}
    ),
    "GroupDescription": eoslog.GroupDescription("g", "Stable", 3, "range", (MEMBER,)),
    "HangingTransaction": eoslog.HangingTransaction("orders", 3, 1000, 5, 0, 42, MS, 15, "t"),
    "MemberDescription": MEMBER,
    "OffsetAndMetadata": eoslog.OffsetAndMetadata(7, "note", 1),
    "OffsetAndTimestamp": eoslog.OffsetAndTimestamp(7, MS),
    "PreparedTransaction": eoslog.PreparedTransaction("t", 1000, 5),
    "Record": eoslog.Record("orders", 3, 42, MS, 0, b"key", None, (("a", b"1"), ("b", None))),
    "StagedCommit": eoslog.StagedCommit(True, 10, {T3: (5, 15)}),
    "StagedFile": FILE,
    "StagedMessage": eoslog.StagedMessage("bulk", "run-1", "attempt-0", (FILE,), True),
    "TopicDescription": eoslog.TopicDescription("orders", TOPIC_ID, 4, {"segment.bytes": 4096}),
    "TopicPartition": T3,
    "TransactionDescription": eoslog.TransactionDescription(
        *(0, "t", 1000, 5, "Ongoing", 60_000, MS, 100, (T3,), False, "process 42")
    ),
    "TransactionListing": eoslog.TransactionListing("t", 0, 1000, "Ongoing"),
}


def test_the_file_has_them_all():
    of_errors = {name for name in PICKLES if name.startswith("errors.")}
    assert PICKLES.keys() - of_errors == OBJECTS.keys()
    assert len(of_errors) > 50


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_is_equal(name):
    loaded = pickle.loads(PICKLES[name])
    assert loaded == OBJECTS[name]
    assert type(loaded) is type(OBJECTS[name]) is getattr(eoslog, name)
    # With the fields that 0.1.0 did not have.
    assert repr(loaded) == repr(OBJECTS[name])
    assert pickle.loads(pickle.dumps(loaded)) == loaded


@pytest.mark.parametrize("name", [name for name in PICKLES if name.startswith("errors.")])
def test_an_error_is_of_its_class_and_says_the_same(name):
    loaded = pickle.loads(PICKLES[name])
    assert type(loaded) is getattr(errors, name.removeprefix("errors."))
    if name == "errors.CorruptRecordError":
        assert (loaded.path, loaded.position_bytes, loaded.reason) == ("a/b.log", 61, "checksum")
    else:
        assert str(loaded) == "what happened"


def test_a_process_that_imported_nothing_loads_them():
    code = (
        "import base64, json, pickle\n"
        f"pickles = json.load(open({str(GOLDEN)!r}))\n"
        "for pickled in pickles.values():\n    pickle.loads(base64.b64decode(pickled))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
