"""Byte sequences worked out by hand, with what they mean; the model and the engine must agree."""

from __future__ import annotations

from reference_model.batch_codec import ModelRecord
from reference_model.producer_model import ProducerModel, WindowBatch

BASE_MS = 1_700_000_000_000

DATA_BATCH = bytes.fromhex(
    """
    00 00 00 00 00 00 00 64 00 00 00 52 00 00 00 00
    02 cd c5 31 10 00 00 00 00 00 02 00 00 01 8b cf
    e5 68 00 00 00 01 8b cf e5 68 05 00 00 00 00 00
    00 04 d2 00 07 00 00 00 28 00 00 00 03 1c 00 00
    00 04 6b 31 04 76 31 02 02 68 02 78 10 00 0a 02
    01 04 76 32 00 10 00 05 04 04 6b 33 01 00
    """
)
DATA_RECORDS = [
    ModelRecord(100, BASE_MS, b"k1", b"v1", (("h", b"x"),)),
    ModelRecord(101, BASE_MS + 5, None, b"v2"),
    ModelRecord(102, BASE_MS - 3, b"k3", None),
]
DATA_CRC = 0xCDC53110
DATA_RECORD_BYTES = (15, 9, 9)
PRODUCER_ID = 1234
PRODUCER_EPOCH = 7
BASE_SEQUENCE = 40

COMMIT_MARKER = bytes.fromhex(
    """
    00 00 00 00 00 00 00 67 00 00 00 42 00 00 00 00
    02 8d 0b 31 8e 00 30 00 00 00 00 00 00 01 8b cf
    e5 68 0a 00 00 01 8b cf e5 68 0a 00 00 00 00 00
    00 04 d2 00 07 ff ff ff ff 00 00 00 01 20 00 00
    00 08 00 00 00 01 0c 00 00 00 00 00 05 00
    """
)
MARKER_OFFSET = 103
MARKER_MS = BASE_MS + 10
COORDINATOR_EPOCH = 5
ABORT_MARKER = bytearray(COMMIT_MARKER)
ABORT_MARKER[17:21] = bytes.fromhex("79 35 e7 c6")
ABORT_MARKER[68:70] = b"\x00\x00"
ABORT_MARKER = bytes(ABORT_MARKER)

EMPTY_BATCH = bytes.fromhex(
    """
    00 00 00 00 00 00 00 64 00 00 00 31 00 00 00 00
    02 bf af 36 95 00 10 00 00 00 02 ff ff ff ff ff
    ff ff ff 00 00 01 8b cf e5 68 05 00 00 00 00 00
    00 04 d2 00 07 00 00 00 28 00 00 00 00
    """
)

# That transaction as aborted, were its data and nothing else open: 100 to 103, stable to 104.
ABORT_INDEX_ENTRY = bytes.fromhex(
    """
    00 00 00 00 00 00 00 00 04 d2 00 00 00 00 00 00
    00 64 00 00 00 00 00 00 00 67 00 00 00 00 00 00
    00 68
    """
)

SNAPSHOT = bytes.fromhex(
    """
    00 01 52 12 7a a7 00 00 00 02 00 00 00 00 00 00
    04 d2 00 07 00 00 00 2a 00 00 00 00 00 00 00 66
    00 00 00 02 00 00 01 8b cf e5 68 05 00 00 00 05
    ff ff ff ff ff ff ff ff 00 00 00 00 00 00 00 09
    00 00 00 00 00 00 00 00 00 00 00 00 00 68 00 00
    00 00 00 00 01 8b cf e5 68 14 ff ff ff ff 00 00
    00 00 00 00 00 68
    """
)
SNAPSHOT_PRODUCERS = [
    ProducerModel(1234, 7, 5, BASE_MS + 5, -1, [WindowBatch(40, 42, 100, 102, BASE_MS + 5)]),
    ProducerModel(9, 0, -1, BASE_MS + 20, 104, [WindowBatch(0, 0, 104, 104, BASE_MS + 20)]),
]
EMPTY_SNAPSHOT = bytes.fromhex("00 01 48 67 4b c7 00 00 00 00")

# Base 0; a batch whose last offset is 5 starts at byte 4160.
OFFSET_INDEX_ENTRY = bytes.fromhex("00 00 00 05 00 00 10 40")
# The largest timestamp so far is that of the segment's base + 2.
TIME_INDEX_ENTRY = bytes.fromhex("00 00 01 8b cf e5 68 05 00 00 00 02")

VARINTS = {
    0: "00",
    -1: "01",
    1: "02",
    63: "7e",
    -64: "7f",
    64: "80 01",
    300: "d8 04",
    2147483647: "fe ff ff ff 0f",
    -2147483648: "ff ff ff ff 0f",
    1700000000000: "80 a0 ab fe f9 62",
}

SEQUENCE_SUMS = [
    (2147483647, 1, 0),
    (2147483637, 20, 9),
    (2147483640, 7, 2147483647),
    (2147483640, 8, 0),
]
SEQUENCE_DIFFERENCES = [(0, 1, 2147483647), (9, 20, 2147483637)]
