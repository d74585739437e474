"""Logs as Kafka's cleaner leaves them, and stores that such logs are moved into."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

from partition_files import segment_name
from reference_model import batch_codec as codec
from reference_model.batch_codec import ModelRecord

import eoslog
from eoslog.common.config import parse_kafka_topic_config
from eoslog.store import topics as store_topics

BASE_MS = 1_700_000_000_000
HORIZON_MS = BASE_MS + 86_400_000
DERIVED = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
)


def cleaned(
    base_offset: int,
    count: int,
    kept: Sequence[int],
    *,
    horizon_ms: int | None = None,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """A batch of `count` offsets of which the records at some are left; empty if none is.

    Each has the timestamp of its offset. With `horizon_ms` the base timestamp is that of when
    tombstones may go.
    """
    records = [
        ModelRecord(offset, BASE_MS + offset, b"k%d" % offset, b"v%d" % offset) for offset in kept
    ]
    return codec.encode_batch(
        records,
        base_offset=base_offset,
        attributes=attributes | (0 if horizon_ms is None else codec.DELETE_HORIZON),
        last_offset_delta=count - 1,
        base_timestamp=horizon_ms,
        max_timestamp=None if records else BASE_MS + base_offset + count - 1,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def records_in(segments: Mapping[int, bytes]) -> list[ModelRecord]:
    """The records of data batches, in the order of their offsets."""
    found: list[ModelRecord] = []
    for _, data in sorted(segments.items()):
        while data:
            batch = codec.decode_header(data)
            if not batch.is_control:
                found += codec.decode_records(batch.data)
            data = data[len(batch.data) :]
    return found


# Holes before the first batch, between batches and between segments; gaps within batches; empty
# batches within a segment, at its end and at the end of the log; a delete horizon.
COMPACTED = {
    0: cleaned(7, 5, [8, 11]) + cleaned(20, 1, [20]) + cleaned(25, 3, [], producer_id=3,
       producer_epoch=0, base_sequence=4),
    40: cleaned(44, 4, [44], horizon_ms=HORIZON_MS) + cleaned(50, 10, [52, 57, 58])
    + cleaned(60, 2, []),
    70: cleaned(70, 3, [70, 72]) + cleaned(80, 4, [], producer_id=4, producer_epoch=2,
        base_sequence=10),
}  # fmt: skip
COMPACTED_END = 84
COMPACTED_HOLES = [(0, 7), (12, 20), (21, 25), (28, 44), (48, 50), (62, 70), (73, 80)]


def create_topic_of_kafka(store: eoslog.Store, name: str, config: Mapping[str, object]) -> None:
    """A topic with settings that only an import gives, as `cleanup.policy` with "compact"."""
    with mock.patch.object(store_topics, "parse_topic_config", parse_kafka_topic_config):
        store.create_topic(name, config=dict(config))


def replace_logs(store_path: Path, segments: Mapping[int, bytes], directory: str) -> None:
    """Put other segments in the place of a closed store's partition; its metadata stay."""
    path = store_path / directory
    for one in path.iterdir():
        if one.name != "partition.metadata":
            one.unlink()
    for base_offset, data in segments.items():
        (path / segment_name(base_offset)).write_bytes(data)


def forget_all(store_path: Path) -> None:
    """Remove what the store derived from its logs, as who moves a broker's logs into it does."""
    for name in (".kafka_cleanshutdown", *DERIVED):
        (store_path / name).unlink(missing_ok=True)
    for name in ("lmdb", "control"):
        shutil.rmtree(store_path / "state" / name, ignore_errors=True)
