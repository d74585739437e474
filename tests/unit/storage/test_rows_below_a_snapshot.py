"""Rows in LMDB that are older than the snapshot which another process began with."""

import pytest
from harness.crew import started

import eoslog
from eoslog.errors import OutOfOrderSequenceError
from eoslog.store.store import engine_of, parts_of

WRITER = """
import eoslog
store = eoslog.open({path!r}, durability="process")
producer, another = store.producer(), store.producer()
for _ in range(3):
    producer.append("orders", 0, [b"early"])
say(producer.producer_id)
wait()
producer.append("orders", 0, [b"late"])
while engine_of(store).partition("orders", 0).active_base_offset == 0:
    another.append("orders", 0, [b"x" * 100])
say(store.partition("orders", 0).log_end_offset)
wait()
"""
SUCCESSOR = """
import eoslog
from eoslog.store.store import parts_of
with eoslog.open({path!r}, durability="process") as store:
    partition = engine_of(store).partition("orders", 0)
    say("opened")
    wait()
    store.producer().append("orders", 0, [b"of the successor"])
    partition.producer_state.persist()
"""


def test_what_a_snapshot_told_is_stored_though_older_rows_come_later(tmp_path):
    """Else the rows say less of a producer than they claim, and a repeated batch is taken."""
    path = tmp_path / "store"
    with eoslog.open(path, create=True, durability="process") as store:
        parts_of(store).checkpointer.stop()  # It would store better rows once the writer is dead.
        store.create_topic("orders", config={"segment.bytes": 1024})
        partition = engine_of(store).partition("orders", 0)
        with (
            started(WRITER.format(path=str(path))) as writer,
            started("wait()\n" + SUCCESSOR.format(path=str(path))) as successor,
        ):
            producer_id = int(writer.hear().word)
            real, end = partition.producer_state.rows.write_rows, 0

            def late(*given, **named):
                """The rows were gathered; what happens until they are in LMDB."""
                nonlocal end
                partition.producer_state.rows.write_rows = real
                writer.tell()
                end = int(writer.hear().word)
                writer.kill()
                successor.tell()
                successor.hear("opened")
                return real(*given, **named)

            partition.producer_state.rows.write_rows = late
            partition.producer_state.persist()
            successor.tell()
            successor.end()
        assert store.verify() == []
    with eoslog.open(path, durability="process") as store:
        partition = engine_of(store).partition("orders", 0)
        assert partition.producer(producer_id).last_sequence == 3
        with pytest.raises(OutOfOrderSequenceError):
            partition.append_columns(
                [b"late"], producer_id=producer_id, producer_epoch=0, base_sequence=5
            )
        again = partition.append_columns(
            [b"late"], producer_id=producer_id, producer_epoch=0, base_sequence=3
        )
        assert (again.duplicate, again.base_offset) == (True, 3)
        assert partition.log_end_offset == end + 1
