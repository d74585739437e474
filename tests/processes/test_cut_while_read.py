"""A reader recovers a torn tail in its own memory while another process cuts it off the file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from c_library import built_library

import eoslog
from eoslog.store.store import abandon

TORN_BYTES = 3 << 20
READER = """
import ctypes, sys
import eoslog
path, log, size = sys.argv[1:]
name = ctypes.create_string_buffer(log.encode())
with eoslog.open(path, read_only=True) as store:
    ctypes.CDLL(None).cut_after_map(name, ctypes.c_long(int(size)))
    consumer = store.consumer()
    consumer.assign([eoslog.TopicPartition("t", 0)])
    print([len(record.value) for record in consumer.poll(0)])
"""


def test_a_reader_outlives_the_cut_of_what_it_recovers(tmp_path):
    path = tmp_path / "store"
    store = eoslog.open(path, create=True, durability="process")
    store.create_topic("t", config={"max.message.bytes": 2 * TORN_BYTES})
    with store.producer() as producer:
        producer.append("t", 0, values=[b"x" * 1000])
        whole_bytes = store.partition("t", 0).size_bytes
        producer.append("t", 0, values=[b"y" * TORN_BYTES])
    abandon(store)
    log = next((path / "t-0").glob("*.log"))
    with log.open("r+b") as file:
        file.seek(TORN_BYTES - 100)
        file.write(b"torn")
    # The header of the torn batch is there still, as if it had been read just before the cut.
    cut_bytes = whole_bytes + 100
    library = built_library(Path(__file__).with_name("cut_after_map.c"), tmp_path)
    words = (sys.executable, "-c", READER, str(path), str(log), str(cut_bytes))
    environment = os.environ | {"LD_PRELOAD": str(library)}
    reader = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert (reader.returncode, reader.stdout) == (0, "[1000]\n"), reader.stderr
    assert log.stat().st_size == cut_bytes
