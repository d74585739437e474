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
