"""What an import and a first commit load: the face alone, and what a transaction takes."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, sys
before = set(sys.modules)
import eoslog
imported = set(sys.modules) - before
face = [name for name in imported if sys.modules[name] is eoslog]
with eoslog.open(sys.argv[1], create=True) as store:
    store.create_topic("t")
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"v")
print(json.dumps([sorted(imported), face, sorted(set(sys.modules) - before)]))
"""
# Each takes longer than all that the face loads.
HEAVY = {
    "concurrent.futures",
    "contextlib",
    "enum",
    "inspect",
    "logging",
    "pathlib",
    "re",
    "typing",
}
UNUSED = {
    *("numpy", "concurrent.futures", "difflib", "hashlib", "secrets", "shutil", "socket", "uuid"),
    *("tempfile", "eoslog.consumer.consumer", "eoslog.staging.commit", "eoslog.staging.job"),
    *("eoslog.staging.message", "eoslog.store.backup", "eoslog.transactions.admin"),
}


def test_an_import_loads_the_face_and_a_commit_what_it_uses(tmp_path):
    command = [sys.executable, "-c", PROGRAM, tmp_path / "store"]
    done = subprocess.run(command, capture_output=True, check=True)
    imported, face, loaded = json.loads(done.stdout)
    assert [name for name in imported if name.startswith("eoslog") and name not in face] == []
    assert HEAVY & set(imported) == set()
    assert UNUSED & set(loaded) == set()
    assert {"eoslog.staging.on_demand", "eoslog.producer.transactional_producer"} <= set(loaded)


CONSUMES = """
import sys
import eoslog
from eoslog.store.store import parts_of
with eoslog.open(sys.argv[1], create=True) as store:
    follow = parts_of(store).files.topics.notice_changes
    store.create_topics({"t": 1, "u": 1})
    store.consumer(group="g").subscribe(["t"])
    store.alter_topic("t", partitions=2)
    follow([])
    store.delete_topic("u")
    follow([])
print([name for name in sys.modules if name.startswith("eoslog.producer.p")])
"""


def test_a_process_that_only_consumes_follows_topics_without_loading_producers(tmp_path):
    """A first import in the background thread could hold up a child that is forked then."""
    command = [sys.executable, "-c", CONSUMES, tmp_path / "store"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "['eoslog.producer.parts']\n"
