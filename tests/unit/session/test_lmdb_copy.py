"""A copy of LMDB's file that is made beside a writer is one transaction's, whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lmdb
from harness.waiting import eventually

from eoslog.session import lmdb_copy

COPIES = 150
KEYS = 2000
# Each transaction changes some rows, and the sum of all; it takes pages that older ones freed.
WRITER = f"""
import lmdb, random, sys, time
environment = lmdb.open(sys.argv[1], map_size=1 << 26, sync=False)
rows = dict.fromkeys(range({KEYS}), 0)
def put(transaction, key, number):
    transaction.put(b"%06d" % key, b"%012d" % number * 40)
    rows[key] = number
with environment.begin(write=True) as transaction:
    for key in rows:
        put(transaction, key, 0)
    transaction.put(b"sum", b"0")
while True:
    with environment.begin(write=True) as transaction:
        for key in random.sample(sorted(rows), 20):
            put(transaction, key, random.randrange(10**6))
        transaction.put(b"sum", b"%d" % sum(rows.values()))
    time.sleep(random.random() * float(sys.argv[2]))
"""


def test_each_copy_holds_one_transaction(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lmdb_copy, "_PIECE_BYTES", 1 << 14)
    source = tmp_path / "source"
    source.mkdir()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(source), "0.004"])
    copy = tmp_path / "copy"
    copy.mkdir()
    found: set[int] = set()
    try:
        data = source / "data.mdb"
        eventually(lambda: data.exists() and data.stat().st_size > 480 * KEYS)
        for _ in range(COPIES):
            if lmdb_copy.copy_lmdb(source / "data.mdb", copy / "data.mdb"):
                found.add(checked_sum(copy))
            else:
                assert not (copy / "data.mdb").exists()
    finally:
        writer.kill()
        writer.wait()
    assert len(found) > COPIES // 10, "hardly any copy was made beside the writer"


def checked_sum(copy: Path) -> int:
    """Return the sum that a copy holds; it is that of its rows."""
    opened = lmdb.open(str(copy), lock=False, readonly=True)
    with opened as environment, environment.begin() as transaction:
        rows = {bytes(key): bytes(value) for key, value in transaction.cursor()}
    noted = int(rows.pop(b"sum", b"0"))
    assert len(rows) in (0, KEYS)
    assert all(value == value[:12] * 40 for value in rows.values())
    assert sum(int(value[:12]) for value in rows.values()) == noted
    return noted


def test_heads_have_the_pages_of_the_file_not_of_the_kernel(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 20) as environment:
        page_bytes = environment.stat()["psize"]
    data = tmp_path / "data.mdb"
    assert lmdb_copy.bytes_of_heads(data) == 2 * page_bytes
    with data.open("r+b") as file:
        file.seek(16 + 24)
        assert int.from_bytes(file.read(4), "little") == page_bytes
        file.seek(16 + 24)
        file.write((1 << 16).to_bytes(4, "little"))  # As a kernel with larger pages makes it.
    assert lmdb_copy.bytes_of_heads(data) == 2 << 16
    data.write_bytes(b"no head" * 100)
    assert lmdb_copy.bytes_of_heads(data) == 0
    data.write_bytes(b"too short")
    assert lmdb_copy.bytes_of_heads(data) > len(b"too short")
