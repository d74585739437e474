"""Kafka's storage scenarios that concern the log without transactions, as data.

Numbers are the reference's and stay. Where a case speaks of a part below the log (a producer's
entry, a snapshot file), it is told through the log; `note` says how.
"""

from __future__ import annotations

from conformance.steps import (
    ALL,
    NEWEST,
    PID,
    AdvanceStart,
    Append,
    Bounds,
    BreakFile,
    DeleteSegments,
    Expire,
    FindTime,
    Flush,
    Plain,
    Read,
    Reopen,
    Roll,
    Scenario,
    Snapshot,
    State,
    Stored,
    StoredMarker,
    StrayFile,
    Truncate,
    Unknown,
)

MAX_SEQUENCE = 2**31 - 1
EXPIRATION_MS = 86_400_000
OUT_OF_ORDER = "OutOfOrderSequenceError"
OLD_EPOCH = "InvalidProducerEpochError"
OUT_OF_RANGE = "OffsetOutOfRangeError"

PRODUCERS = [
    Scenario(
        1,
        "sequences and epochs are checked",
        (
            Append(0, offset=0),
            Append(1, offset=1),
            Append(1, offset=1, duplicate=True),
            Append(5, error=OUT_OF_ORDER),
            Append(0, epoch=1, offset=2),
            Append(0, epoch=0, error=OLD_EPOCH),
            State(epoch=1, last_sequence=0, last_offset=2),
        ),
        note="the log looks for duplicates first, so the repeated sequence 1 is answered as one",
    ),
    Scenario(
        2,
        "a marker of an unknown producer fences",
        (
            StoredMarker(27, "commit", epoch=2),
            State(epoch=2, last_sequence=-1),
            Append(0, epoch=0, error=OLD_EPOCH),
            Append(17, epoch=2, error=OUT_OF_ORDER),
            Append(0, epoch=2, offset=28),
            State(epoch=2, last_sequence=0),
        ),
    ),
    Scenario(
        3,
        "a sequence wraps to zero",
        (
            Stored(735, sequence=MAX_SEQUENCE, epoch=15, producer_id=PID),
            Stored(736, count=499),
            Append(0, epoch=15, offset=1235),
            State(first_sequence=MAX_SEQUENCE, last_sequence=0, last_offset=1235),
        ),
    ),
    Scenario(
        4,
        "a copied batch may start anywhere",
        (
            Stored(735, sequence=16, epoch=5, producer_id=PID),
            State(epoch=5, first_sequence=16, last_sequence=16, last_offset=735),
        ),
    ),
    Scenario(
        5,
        "an abort of a newer epoch clears the window",
        (
            Append(0, offset=0),
            StoredMarker(1, "abort", epoch=1),
            State(epoch=1, last_sequence=-1, batch_count=0, transaction_first_offset=-1),
            Append(0, epoch=1, offset=2),
        ),
    ),
    Scenario(
        6,
        "batches widen the window",
        (
            Stored(0, count=15),
            Append(0, count=6, offset=15),
            State(first_sequence=0, last_sequence=5, last_offset=20),
            Plain(5, offset=21),
            Append(6, count=5, offset=26),
            State(first_sequence=0, last_sequence=10, last_offset=30),
            Append(13, count=2, error=OUT_OF_ORDER),
            State(first_sequence=0, last_sequence=10, last_offset=30),
        ),
        note="a refused batch leaves the window as it was",
    ),
    Scenario(
        8,
        "no plain batch inside an open transaction",
        (
            Stored(0, sequence=0, epoch=0, producer_id=PID, transactional=True),
            State(transaction_first_offset=0),
            Append(1, error="InvalidTxnStateError"),
            State(last_sequence=0, last_offset=0),
        ),
        told_by_store=False,
        note="the transactional batch came by a copied file",
    ),
    Scenario(
        9,
        "a copied batch of a forgotten producer is taken",
        (
            Append(0, offset=0),
            Append(1, offset=1),
            Expire(EXPIRATION_MS + 1, expired=(PID,)),
            Unknown(),
            Stored(2, sequence=2, epoch=0, producer_id=PID),
            State(first_sequence=2, last_sequence=2, last_offset=2),
        ),
        note="forgotten by its expiry, since a reload here replays the log",
    ),
    Scenario(
        10,
        "a copied batch may leave a gap, a client's may not",
        (
            Append(0, offset=0),
            Append(3, error=OUT_OF_ORDER),
            State(last_sequence=0),
            Stored(1, sequence=3, epoch=0, producer_id=PID),
            State(last_sequence=3),
        ),
    ),
    Scenario(
        14,
        "an expired producer starts anywhere",
        (
            Plain(1, offset=0),
            Append(0, epoch=5, offset=1),
            Expire(EXPIRATION_MS + 1, expired=(PID,)),
            Append(1, epoch=5, offset=2),
            State(first_sequence=1, last_sequence=1, last_offset=2),
            Bounds(end=3),
        ),
    ),
    Scenario(
        15,
        "a producer with an open transaction does not expire",
        (
            Stored(99, sequence=0, epoch=0, producer_id=PID, transactional=True),
            Expire(EXPIRATION_MS + 1),
            Expire(EXPIRATION_MS + 1),
            State(transaction_first_offset=99),
        ),
        told_by_store=False,
        note="the transactional batch came by a copied file",
    ),
    Scenario(
        16,
        "producers below the log start are kept",
        (
            Append(0, offset=0, producer_id=1),
            Append(0, offset=1, producer_id=2),
            AdvanceStart(1),
            Reopen(),
            State(1, last_sequence=0, last_offset=0),
            State(2, last_sequence=0, last_offset=1),
        ),
    ),
    Scenario(
        36,
        "a producer expires when it was idle long enough",
        (
            Append(0, offset=0),
            Expire(199),
            State(last_sequence=0),
            Expire(200, expired=(PID,)),
            Unknown(),
        ),
        config={"producer.id.expiration.ms": 200},
    ),
]

SNAPSHOTS = [
    Scenario(
        19,
        "snapshots outside the log are removed",
        (
            Plain(1, offset=0),
            Roll(1),
            Plain(1, offset=1),
            Roll(2),
            Plain(1, offset=2),
            Roll(3),
            Plain(2, offset=3),
            AdvanceStart(1),
            StrayFile(6, ".snapshot", removed=True, data=bytes.fromhex("00014867 4bc700000000")),
            Bounds(snapshots=(1, 2, 3, 5)),
        ),
        note="those of live segments and of the end stay; the one beyond the end goes",
    ),
    Scenario(
        20,
        "nothing new makes no snapshot",
        (
            Append(0, offset=0),
            Append(1, offset=1),
            Snapshot(written=True),
            Snapshot(written=False),
            Bounds(snapshots=(2,)),
        ),
    ),
    Scenario(
        21,
        "a snapshot keeps the last batch and the open transaction",
        (
            Stored(0, sequence=0, epoch=0, producer_id=PID, transactional=True),
            Stored(1, sequence=1, epoch=0, producer_id=PID, transactional=True),
            Reopen(restored_from="snapshot"),
            State(first_sequence=1, last_sequence=1, first_offset=1, transaction_first_offset=0),
            Stored(2, sequence=2, epoch=0, producer_id=PID, transactional=True),
            State(first_sequence=1, last_sequence=2, transaction_first_offset=0),
        ),
        told_by_store=False,
        note="its batches came by a copied file",
    ),
    Scenario(
        22,
        "snapshots go with their segments",
        (
            Plain(2, offset=0),
            Roll(2),
            Plain(1, offset=2),
            Roll(3),
            Plain(1, offset=3),
            Roll(4),
            Bounds(snapshots=(2, 3, 4)),
            DeleteSegments(3, count=2),
            Bounds(snapshots=(3, 4), start=3),
            DeleteSegments(4, count=1),
            Bounds(snapshots=(4,), start=4),
        ),
    ),
    Scenario(
        23,
        "truncation to the start removes all snapshots",
        (
            Append(0, count=2, offset=0),
            Roll(2),
            Append(2, offset=2),
            Roll(3),
            Truncate(0),
            Bounds(snapshots=(), end=0),
            Unknown(),
            Append(0, offset=0),
            Snapshot(),
            Bounds(snapshots=(1,)),
        ),
    ),
    *(
        Scenario(
            24,
            "a broken snapshot is passed over",
            (
                Append(0, offset=0),
                Roll(1),
                Append(1, offset=1),
                Roll(2),
                BreakFile(2, ".snapshot", how, clean=clean),
                State(first_sequence=0, last_sequence=1, last_offset=1, batch_count=2),
                Append(1, offset=1, duplicate=True),
                Append(2, offset=2),
            ),
            variant=f"{how}-{'clean' if clean else 'unclean'}",
            note="the older snapshot, and the replay of what came after it",
        )
        for how in ("empty", "half", "zeros")
        for clean in (True, False)
    ),
    Scenario(
        25,
        "of the stray snapshots the newest stays",
        (
            Stored(5, count=37),
            StrayFile(20, ".snapshot", removed=True, data=bytes.fromhex("000148674bc700000000")),
            Bounds(start=5, end=42, segments=(5,), snapshots=(5, 42)),
        ),
        log_start_offset=5,
    ),
    Scenario(
        26,
        "deleting a segment whose snapshot is gone is no error",
        (
            Append(0, offset=0),
            Roll(1),
            Append(1, offset=1),
            Roll(2),
            BreakFile(1, ".snapshot", "delete", clean=True),
            DeleteSegments(2, count=2),
            Bounds(start=2, snapshots=(2,)),
        ),
    ),
]

APPENDS = [
    Scenario(
        32,
        "five batches are remembered",
        (
            *(Append(sequence, offset=sequence) for sequence in range(6)),
            Append(6, count=3, offset=6),
            Append(6, count=3, offset=6, duplicate=True),
            Append(7, count=2, error=OUT_OF_ORDER),
            Append(2, offset=2, duplicate=True),
            Append(1, error=OUT_OF_ORDER),
            Append(9, offset=9),
            Append(9, offset=9, duplicate=True),
            Bounds(end=10),
        ),
    ),
    Scenario(
        33,
        "an older epoch is refused",
        (
            Append(0, epoch=1, offset=0),
            Append(0, epoch=0, error=OLD_EPOCH),
            Bounds(end=1),
        ),
    ),
    Scenario(
        44,
        "each roll leaves a snapshot",
        (
            Plain(1, offset=0),
            Roll(1),
            Plain(1, offset=1),
            Roll(2),
            Plain(1, offset=2),
            Roll(3),
            Bounds(snapshots=(1, 2, 3)),
            Plain(1, offset=3),
            Flush(4),
            Bounds(snapshots=(1, 2, 3), segments=(0, 1, 2, 3)),
        ),
    ),
    Scenario(
        45,
        "a roll's snapshot holds what came before it",
        (
            Append(0, offset=0, value_bytes=512),
            Append(1, offset=1, value_bytes=512),
            Bounds(segments=(0, 1), snapshots=(1,)),
            Truncate(1),
            Bounds(segments=(0, 1), end=1),
            State(first_sequence=0, last_sequence=0, first_offset=0, last_offset=0),
            Append(1, offset=1, value_bytes=512),
        ),
        config={"segment.bytes": 1024},
    ),
    Scenario(
        46,
        "truncation removes the snapshots above it",
        (
            Plain(1, offset=0),
            Plain(1, offset=1),
            Snapshot(),
            Plain(1, offset=2),
            Snapshot(),
            Bounds(snapshots=(2, 3)),
            Truncate(2),
            Bounds(snapshots=(2,), end=2),
            Truncate(1),
            Bounds(snapshots_up_to=1, end=1),
            Truncate(0),
            Bounds(snapshots=(), end=0),
        ),
    ),
    Scenario(
        47,
        "a compacted batch keeps its last sequence",
        (
            Stored(23, sequence=0, count=4, epoch=0, producer_id=PID, kept_indexes=(0, 2)),
            Stored(27, sequence=4, epoch=0, producer_id=PID),
            Truncate(27),
            State(last_sequence=3, last_offset=26),
            Bounds(end=27),
        ),
        note="the compacted batch came by a copied file",
    ),
    Scenario(
        48,
        "retention may leave nothing but the empty segment",
        (
            *(step for base in range(3) for step in (Plain(1, offset=base), Roll(base + 1))),
            DeleteSegments(3, count=3),
            Bounds(start=3, end=3, snapshots=(3,), segments=(3,)),
            Plain(1, offset=3),
        ),
        note="the policy that chooses the segments is the store's",
    ),
    Scenario(
        49,
        "producers outlive their segments",
        (
            Append(0, offset=0, producer_id=1),
            Roll(1),
            Append(0, offset=1, producer_id=2),
            Roll(2),
            AdvanceStart(2),
            DeleteSegments(2, count=2),
            Bounds(start=2, snapshots=(2,)),
            State(1, last_sequence=0),
            State(2, last_sequence=0),
            Reopen(),
            State(1, last_sequence=0),
            State(2, last_sequence=0),
            Append(0, offset=0, producer_id=1, duplicate=True),
            Append(1, offset=2, producer_id=1),
        ),
    ),
    Scenario(
        50,
        "segments know their newest time",
        (
            Plain(1, offset=0, at_ms=100),
            Roll(1),
            Plain(1, offset=1, at_ms=0),
            Roll(2),
            Plain(1, offset=2, at_ms=100),
            Bounds(largest_times_ms=(100, 0, 100)),
            AdvanceStart(1),
            DeleteSegments(2, count=2),
            DeleteSegments(2, count=0),
            Bounds(start=2, end=3),
        ),
        note="the policy that chooses the segments is the store's",
    ),
    Scenario(
        51,
        "a segment takes what fits and no more",
        (
            *(Plain(1, offset=offset, value_bytes=30) for offset in range(11)),
            Bounds(segment_count=2, segments=(0, 9)),
        ),
        # 10 x (the batch's size - 1); a record with a value of 30 bytes makes a batch of 98.
        config={"segment.bytes": 970},
    ),
]

SEGMENTS = [
    *(
        Scenario(
            52,
            "offsets that a segment cannot hold are not taken in",
            (Stored(offset), Bounds(start=base, end=base), Read(base, ())),
            variant=f"base-{base}-offset-{offset}",
            log_start_offset=base,
            note="in a file it is cut off and kept aside; an append rolls before it overflows",
        )
        for base, offset in (
            (0, -(2**31)),
            (0, 2**31),
            (1, 0),
            (100, 10),
            (2**31, 0),
            (2**31, 2**32),
        )
    ),
    Scenario(
        52,
        "an append beyond the span of a segment rolls",
        (
            Stored(2**31 - 3),
            Plain(2, offset=2**31 - 2),
            Bounds(segments=(0,)),
            Plain(1, offset=2**31),
            Bounds(segments=(0, 2**31), end=2**31 + 1),
            Read(2**31 - 3, (2**31 - 3, 2**31 - 2, 2**31 - 1, 2**31)),
        ),
        variant="append",
    ),
    Scenario(
        53,
        "a read between batches starts at the next one",
        (
            Stored(50, count=2),
            Stored(60, count=2),
            Read(41, (50, 51, 60, 61)),
            Read(55, (60, 61)),
            Read(62, ()),
            Read(63, error=OUT_OF_RANGE),
            Read(39, error=OUT_OF_RANGE),
        ),
        log_start_offset=40,
        config={"eoslog.holes.below": 62},
        told_by_store=False,
        note="a store has no log that leaves offsets out: tests/crash/test_missing_segment.py",
    ),
    Scenario(
        54,
        "a segment cut to nothing starts anew",
        (
            Plain(2, offset=40),
            Truncate(40),
            Bounds(start=40, end=40),
            Plain(2, offset=40, at_ms=700_000_000),
            Plain(1, offset=42, at_ms=700_000_000),
            Bounds(segments=(40,)),
        ),
        log_start_offset=40,
        config={"segment.ms": 604_800_000},
        note="its age restarts: records a week younger than the cut ones do not roll it",
    ),
    Scenario(
        55,
        "an offset is found by time",
        (
            *(Plain(1, offset=offset, at_ms=10 * offset) for offset in range(40, 50)),
            FindTime(420, 42),
            FindTime(421, 43),
            FindTime(430, 43),
            FindTime(431, 44),
            FindTime(491, None),
            FindTime(401, 41),
            FindTime(399, 40),
        ),
        log_start_offset=40,
    ),
    Scenario(
        55,
        "inside a batch too",
        (
            Plain(10, offset=40, times_ms=tuple(10 * offset for offset in range(40, 50))),
            FindTime(420, 42),
            FindTime(421, 43),
            FindTime(491, None),
            FindTime(399, 40),
        ),
        variant="one-batch",
        log_start_offset=40,
    ),
    *(
        Scenario(
            57,
            "damaged indexes are made anew",
            (
                *(Plain(1, offset=offset, at_ms=10 * offset) for offset in range(100)),
                BreakFile(0, suffix, "noise", clean=clean),
                *(Read(offset, tuple(range(offset, 100))) for offset in range(0, 100, 7)),
                *(FindTime(10 * offset, offset) for offset in range(100)),
                FindTime(991, None),
            ),
            variant=f"{suffix[1:]}-{'clean' if clean else 'unclean'}",
            config={"index.interval.bytes": 200},
        )
        for suffix in (".index", ".timeindex")
        for clean in (False, True)
    ),
    Scenario(
        59,
        "each offset is found through a full index",
        (
            *(Plain(2, offset=45 + 2 * index) for index in range(30)),
            Reopen(),
            *(Read(45 + at, tuple(range(45 + at, 105))) for at in (0, 1, 2, 30, 57, 58, 59)),
            Read(105, ()),
        ),
        log_start_offset=45,
        config={"index.interval.bytes": 0},
    ),
    Scenario(
        61,
        "a full index rolls the segment",
        (
            *(Plain(1, offset=offset) for offset in range(11)),
            Bounds(segments=(0, 5, 10)),
            Read(0, tuple(range(11))),
        ),
        # Room for four entries; the first batch of a segment has none.
        config={"index.interval.bytes": 0, "segment.index.bytes": 36},
        note="an index is never asked for more entries than it has room for",
    ),
]

RECOVERY = [
    *(
        Scenario(
            66,
            "the recovery point stays until the next flush",
            (
                *(Plain(1, offset=offset, at_ms=offset) for offset in range(100)),
                Reopen(clean=False, recovery_point=recovery_point),
                Bounds(end=100, recovery_point=recovery_point),
                Read(0, tuple(range(100))),
                Flush(100),
                Bounds(recovery_point=100),
            ),
            variant=str(recovery_point),
            config={"segment.bytes": 700, "index.interval.bytes": 100},
        )
        for recovery_point in (100, 10)
    ),
    *(
        Scenario(
            67,
            "all records are found without the indexes",
            (
                *(Plain(1, offset=offset, at_ms=10 * offset) for offset in range(60)),
                BreakFile(ALL, "*index", how, clean=clean),
                Read(0, tuple(range(60))),
                *(Read(offset, tuple(range(offset, 60))) for offset in range(0, 60, 11)),
                *(FindTime(10 * offset, offset) for offset in range(60)),
            ),
            variant=f"{how}-{'clean' if clean else 'unclean'}",
            config={"segment.bytes": 700, "index.interval.bytes": 100},
        )
        for how in ("delete", "spaces")
        for clean in (False, True)
    ),
    *(
        Scenario(
            68,
            "index files without a log are removed",
            (
                Plain(1, offset=0),
                StrayFile(5, ".index", removed=True, clean=clean),
                StrayFile(5, ".timeindex", removed=True, clean=clean),
                Read(0, (0,)),
            ),
            variant="clean" if clean else "unclean",
        )
        for clean in (False, True)
    ),
    Scenario(
        69,
        "noise behind the log and its index is cut off",
        (
            *(Plain(1, offset=offset) for offset in range(75)),
            Flush(75),
            BreakFile(NEWEST, ".index", "append_noise", recovery_point=50),
            BreakFile(NEWEST, ".log", "append_noise", recovery_point=50),
            Bounds(end=75),
            Read(0, tuple(range(75))),
            Plain(1, offset=75),
        ),
        config={"segment.bytes": 3000, "index.interval.bytes": 200},
    ),
    Scenario(
        71,
        "producers below the log start survive an unclean stop",
        (
            Append(0, offset=0, producer_id=1),
            Append(0, offset=1, producer_id=2),
            AdvanceStart(1),
            State(1, last_sequence=0),
            State(2, last_sequence=0),
            Reopen(clean=False),
            State(1, last_sequence=0),
            State(2, last_sequence=0),
        ),
    ),
    Scenario(
        72,
        "a stray snapshot between segments is removed",
        (
            Plain(1, offset=0),
            Roll(1),
            Plain(1, offset=1),
            Roll(2),
            Plain(2, offset=2),
            StrayFile(3, ".snapshot", removed=True, data=bytes.fromhex("000148674bc700000000")),
            Bounds(end=4, snapshots=(1, 2, 4)),
        ),
    ),
]

CONSUMERS = [
    Scenario(
        86,
        "a reader inside a batch drops what lies before it",
        (
            Stored(10, count=11),
            Read(5, tuple(range(10, 20)), record_count_max=10),
            Read(20, (20,), record_count_max=10),
            Read(21, (), record_count_max=10),
        ),
        config={"eoslog.holes.below": 21},
        told_by_store=False,
        note="as S53; the variant tells it of a store",
    ),
    Scenario(
        86,
        "a reader inside a batch drops what lies before it",
        (
            Stored(0, count=11),
            Read(5, tuple(range(5, 10)), record_count_max=5),
            Read(10, (10,), record_count_max=10),
            Read(11, (), record_count_max=10),
        ),
        variant="contiguous",
    ),
]

PLAIN_SCENARIOS = [*PRODUCERS, *SNAPSHOTS, *APPENDS, *SEGMENTS, *RECOVERY, *CONSUMERS]

# Told by tests of their own, since they are about bytes of files.
IN_OTHER_TESTS = {
    18: "tests/conformance/test_files_of_scenarios.py",
    42: "tests/crash/test_lost_abort_index.py",
    58: "tests/conformance/test_files_of_scenarios.py",
    62: "tests/crash/test_lost_abort_index.py",
    64: "tests/crash/test_lost_abort_index.py",
    65: "tests/crash/test_lost_abort_index.py",
    87: "tests/conformance/test_files_of_scenarios.py",
    88: "tests/conformance/test_files_of_scenarios.py",
    89: "tests/conformance/test_files_of_scenarios.py",
}

_COMPACTION = "compaction is not in this version"

NOT_IN_THIS_STAGE = {
    17: "no count of late transactions is kept: `eoslog transactions find-hanging` looks for them",
    27: "there is no guard object: who appends says whether the coordinator knows of it",
    28: "a guard's lowest sequence: there is no guard object",
    60: "aborted transactions are looked up by offsets, never by a position in the file",
    73: "the files in question are written by compaction alone",
    74: "a single copy has one leader epoch, 0",
    75: _COMPACTION,
    76: _COMPACTION,
    77: _COMPACTION,
    78: _COMPACTION,
    79: _COMPACTION,
    80: _COMPACTION,
    81: _COMPACTION,
}
