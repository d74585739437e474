"""Batches that three encoders wrote once into `golden/`: ours to read for ever.

Each case is a list of (timestamp_ms, key, value, headers), and the producer's three numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reference_model.batch_codec import MAX_SEQUENCE, Header, ModelRecord, encode_batch

GOLDEN = Path(__file__).parent / "golden"
BASE_MS = 1_700_000_000_000


@dataclass(frozen=True)
class GoldenCase:
    """One batch's content."""

    name: str
    rows: list[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]]
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1

    def records(self, base_offset: int = 0) -> list[ModelRecord]:
        return [
            ModelRecord(base_offset + index, timestamp_ms, key, value, headers)
            for index, (timestamp_ms, key, value, headers) in enumerate(self.rows)
        ]


def _noise(size: int) -> bytes:
    """Bytes without a pattern, the same ones every time."""
    state = 12345
    out = bytearray()
    for _ in range(size):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        out.append(state >> 16 & 0xFF)
    return bytes(out)


CASES = [
    GoldenCase("one", [(BASE_MS, b"key", b"value", ())]),
    GoldenCase(
        "nulls",
        [
            (BASE_MS, None, b"value", ()),
            (BASE_MS + 1, b"key", None, ()),
            (BASE_MS + 2, None, None, ()),
            (BASE_MS + 3, b"", b"", ()),
        ],
    ),
    GoldenCase(
        "headers",
        [
            (BASE_MS, b"k", b"v", (("trace", b"\x00\x01"), ("trace", b""), ("empty", None))),
            (BASE_MS, b"k", b"v", (("größe", b"5"), ("名前", "値".encode()), ("🦉", b"owl"))),
            (BASE_MS, None, b"v", (("", b"a name of no characters"),)),
            (BASE_MS, None, b"v", tuple((f"h{index}", bytes([index])) for index in range(70))),
        ],
    ),
    GoldenCase(
        "timestamps",
        [
            (BASE_MS, None, b"first", ()),
            (BASE_MS - 1, None, b"one before", ()),
            (BASE_MS - 86_400_000, None, b"a day before", ()),
            (BASE_MS + 8_640_000_000, None, b"a hundred days later", ()),
            (0, None, b"the beginning", ()),
        ],
    ),
    GoldenCase(
        "sizes",
        [
            (BASE_MS, _noise(size), _noise(size + 1), ())
            for size in (0, 1, 62, 63, 64, 127, 128, 8190, 8191, 8192)
        ],
    ),
    GoldenCase("large", [(BASE_MS, b"k", _noise(40_000), ())]),
    GoldenCase("many", [(BASE_MS + index, None, b"%d" % index, ()) for index in range(300)]),
    GoldenCase("idempotent", [(BASE_MS, b"k", b"v", ())] * 3, 4242, 3, 17),
    GoldenCase("wrapping", [(BASE_MS, None, b"v", ())] * 4, 2**62, 32766, MAX_SEQUENCE - 1),
]
CASES_BY_NAME = {case.name: case for case in CASES}


def by_model(case: GoldenCase) -> bytes:
    return encode_batch(
        case.records(),
        producer_id=case.producer_id,
        producer_epoch=case.producer_epoch,
        base_sequence=case.base_sequence,
    )


def by_aiokafka(case: GoldenCase) -> bytes:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    return _by_builder(DefaultRecordBatchBuilder, case)


def by_kafka_python(case: GoldenCase) -> bytes:
    from kafka.record.default_records import DefaultRecordBatchBuilder

    return _by_builder(DefaultRecordBatchBuilder, case)


def _by_builder(builder_class: type, case: GoldenCase) -> bytes:
    """Both packages kept the builder they have in common."""
    builder = builder_class(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=case.producer_id,
        producer_epoch=case.producer_epoch,
        base_sequence=case.base_sequence,
        batch_size=1 << 20,
    )
    for index, (timestamp_ms, key, value, headers) in enumerate(case.rows):
        added = builder.append(index, timestamp_ms, key, value, list(headers))
        assert added is not None, f"{case.name}: record {index} was not taken"
    return bytes(builder.build())


ENCODERS = {"model": by_model, "aiokafka": by_aiokafka, "kafka_python": by_kafka_python}


def golden_path(encoder: str, case: GoldenCase) -> Path:
    return GOLDEN / f"batch_{case.name}_by_{encoder}.bin"


def write_golden() -> list[Path]:
    """Write the files that are not there yet; one that is there is never touched."""
    written = []
    for encoder, encode in ENCODERS.items():
        for case in CASES:
            path = golden_path(encoder, case)
            if not path.exists():
                path.write_bytes(encode(case))
                written.append(path)
    return written


if __name__ == "__main__":
    for path in write_golden():
        print(path)
