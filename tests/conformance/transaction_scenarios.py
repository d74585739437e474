"""Kafka's storage scenarios that concern transactions, as data.

A single copy's high watermark is the log's end: where the reference waits for it, nothing waits.
"""

from __future__ import annotations

from functools import partial

from conformance.steps import (
    ALL,
    PID,
    Aborted,
    AdvanceStart,
    Append,
    Bounds,
    BreakFile,
    Marker,
    Plain,
    Read,
    Reopen,
    Roll,
    Scenario,
    Stable,
    State,
    Stored,
    StoredMarker,
    Truncate,
)

COORDINATOR_FENCED = "TransactionCoordinatorFencedError"
OLD_EPOCH = "InvalidProducerEpochError"
OUT_OF_ORDER = "OutOfOrderSequenceError"
WRONG_STATE = "InvalidTxnStateError"

Data = partial(Append, transactional=True)
# As before each transaction had an epoch of its own: the marker has its data's.
OldMarker = partial(Marker, newer_epoch=False)
StoredData = partial(Stored, epoch=0, producer_id=PID, transactional=True)

PRODUCER_STATE = [
    *(
        Scenario(
            7,
            "one producer's plain batch, its transaction, and the end of it",
            (
                Stored(9, sequence=0, epoch=0, producer_id=PID),
                StoredData(16, sequence=1, count=5),
                StoredData(26, sequence=6, count=5),
                Stable(16, opened=((PID, 16),)),
                StoredMarker(40, kind, epoch=0, coordinator_epoch=15),
                State(last_sequence=10, last_offset=30, coordinator_epoch=15, batch_count=1),
                Stable(41, opened=()),
                Aborted(entries),
            ),
            variant=kind,
            told_by_store=False,
            note="it came by a copied file, and was closed between: a snapshot keeps one batch",
        )
        for kind, entries in (("commit", ()), ("abort", ((PID, 16, 40, 41),)))
    ),
    Scenario(
        11,
        "a marker of an older epoch is refused",
        (
            Data(0, epoch=5, offset=0),
            Marker("commit", epoch=3, error=OLD_EPOCH),
            OldMarker("commit", epoch=3, error=OLD_EPOCH),
            Stable(0, opened=((PID, 0),)),
            Marker("commit", epoch=6, offset=1),
            Stable(2, opened=()),
        ),
    ),
    Scenario(
        12,
        "a marker of an older coordinator is refused",
        (
            Data(0, offset=0),
            Marker("commit", epoch=1, coordinator_epoch=1, offset=1),
            State(epoch=1, coordinator_epoch=1),
            Marker("commit", epoch=1, coordinator_epoch=1, written=False),
            Marker("abort", epoch=2, coordinator_epoch=2, offset=2),
            State(epoch=2, coordinator_epoch=2),
            Marker("abort", epoch=3, coordinator_epoch=1, error=COORDINATOR_FENCED),
            Bounds(end=3),
        ),
        note="a marker that the log has with nothing open is a success and not written again",
    ),
    Scenario(
        13,
        "the first open transaction bounds decided data",
        (
            Plain(99, offset=0),
            Data(0, offset=99, producer_id=1),
            Plain(5, offset=100),
            Data(0, offset=105, producer_id=2),
            Plain(3, offset=106),
            Stable(99, opened=((1, 99), (2, 105))),
            Marker("commit", epoch=1, producer_id=1, offset=109),
            Stable(105, opened=((2, 105),)),
            Plain(2, offset=110),
            Marker("abort", epoch=1, producer_id=2, offset=112),
            Stable(113, opened=()),
            Aborted(((2, 105, 112, 113),)),
        ),
    ),
    Scenario(
        29,
        "the coordinator is asked once a transaction",
        (
            Append(3, producer_id=23, epoch=1, offset=0),
            Data(4, producer_id=23, epoch=1, verified=False, error=WRONG_STATE),
            Data(4, producer_id=23, epoch=1, offset=1),
            Data(5, producer_id=23, epoch=1, verified=False, offset=2),
            Marker("commit", epoch=2, producer_id=23, offset=3),
            Data(0, producer_id=23, epoch=2, verified=False, error=WRONG_STATE),
            Data(0, producer_id=23, epoch=2, offset=4),
            Stable(4, opened=((23, 4),)),
        ),
        note="there is no guard object: who appends says whether the coordinator knows of it",
    ),
    Scenario(
        30,
        "what no coordinator knows of opens nothing",
        (
            Data(0, verified=False, error=WRONG_STATE),
            Bounds(end=0),
            Stable(0, opened=()),
            Data(0, offset=0),
            Stable(0, opened=((PID, 0),)),
        ),
    ),
    Scenario(
        31,
        "an unknown producer's transaction begins at zero",
        (
            Data(3, epoch=1, error=OUT_OF_ORDER),
            Bounds(end=0),
            Data(0, epoch=1, offset=0),
            State(first_sequence=0, last_sequence=0, transaction_first_offset=0),
        ),
        note="each transaction has an epoch of its own, so none begins later",
    ),
    Scenario(
        34,
        "an older coordinator's abort comes too late",
        (
            Data(0, offset=0),
            OldMarker("abort", epoch=0, coordinator_epoch=1, offset=1),
            Data(1, offset=2),
            OldMarker("commit", epoch=0, coordinator_epoch=2, offset=3),
            OldMarker("abort", epoch=0, coordinator_epoch=1, error=COORDINATOR_FENCED),
            Aborted(((PID, 0, 1, 2),)),
            Read(0, (2,), committed=True, position=4),
        ),
    ),
    Scenario(
        35,
        "an abort fences older ones",
        (
            Marker("abort", epoch=5, offset=0),
            Marker("abort", epoch=4, error=OLD_EPOCH),
            Bounds(end=1),
        ),
    ),
]

STABLE_OFFSET = [
    Scenario(
        37,
        "one transaction's end",
        (
            Data(0, count=3, offset=0),
            Data(3, offset=3),
            Stable(0, opened=((PID, 0),)),
            Marker("commit", epoch=1, offset=4),
            Stable(5, opened=()),
        ),
    ),
    Scenario(
        38,
        "two transactions and plain records between them",
        (
            Data(0, count=5, offset=0, producer_id=1),
            Plain(3, offset=5),
            Data(0, count=2, offset=8, producer_id=2),
            Data(5, count=4, offset=10, producer_id=1),
            Plain(2, offset=14),
            Data(9, count=10, offset=16, producer_id=1),
            Stable(0),
            Read(0, (), committed=True),
            Read(16, (), committed=True),
            Marker("commit", epoch=1, producer_id=1, offset=26),
            Stable(8),
            Read(0, tuple(range(8)), committed=True, position=8),
            *(Read(offset, (), committed=True) for offset in range(8, 28)),
            Marker("abort", epoch=1, producer_id=2, offset=27),
            Stable(28),
            Read(0, (*range(8), *range(10, 26)), committed=True, position=28),
            Read(28, (), committed=True),
        ),
    ),
    Scenario(
        40,
        "the next open transaction takes over",
        (
            Data(0, count=3, offset=0, producer_id=1),
            Plain(3, offset=3),
            Data(0, count=3, offset=6, producer_id=2),
            Stable(0),
            Marker("abort", epoch=1, producer_id=1, offset=9),
            Stable(6),
            Read(0, (3, 4, 5), committed=True, position=6),
            Marker("commit", epoch=1, producer_id=2, offset=10),
            Stable(11, opened=()),
            Read(0, (3, 4, 5, 6, 7, 8), committed=True, position=11),
        ),
    ),
    Scenario(
        41,
        "a log start inside an open transaction",
        (
            Data(0, count=5, offset=0),
            Plain(3, offset=5),
            Roll(8),
            Data(5, count=5, offset=8),
            Stable(0),
            AdvanceStart(5),
            Stable(5, opened=((PID, 0),)),
            Read(5, (), committed=True),
            Marker("commit", epoch=1, offset=13),
            Stable(14),
            Read(5, tuple(range(5, 13)), committed=True),
        ),
    ),
    *(
        Scenario(
            43,
            "an abort in a later segment concerns the earlier ones",
            (
                Data(0, count=3, offset=0),
                Roll(3),
                Data(3, count=3, offset=3),
                Roll(6),
                Marker("abort", epoch=1, offset=6),
                *((Roll(7),) if rolled else ()),
                Aborted(((PID, 0, 6, 7),), first=0, upper_bound=1),
                Aborted(((PID, 0, 6, 7),), first=0, upper_bound=3),
                Aborted(((PID, 0, 6, 7),), first=3, upper_bound=6),
                Aborted((), first=7),
                Read(0, (), committed=True, position=7),
                Read(0, tuple(range(6))),
            ),
            variant="rolled" if rolled else "active",
        )
        for rolled in (False, True)
    ),
]

# p1(5) n(3) p2(2) p1(4) p3(3) n(2) p1(10) and so on: one batch a step.
FOUR_PRODUCERS = (
    Data(0, count=5, offset=0, producer_id=1),
    Plain(3, offset=5),
    Data(0, count=2, offset=8, producer_id=2),
    Data(5, count=4, offset=10, producer_id=1),
    Data(0, count=3, offset=14, producer_id=3),
    Plain(2, offset=17),
    Data(9, count=10, offset=19, producer_id=1),
    Stable(0),
    Marker("abort", epoch=1, producer_id=1, offset=29),
    Stable(8),
    Data(2, count=6, offset=30, producer_id=2),
    Data(0, count=3, offset=36, producer_id=4),
    Plain(10, offset=39),
    Data(3, count=9, offset=49, producer_id=3),
    Marker("commit", epoch=1, producer_id=3, offset=58),
    Stable(8),
    Data(3, count=8, offset=59, producer_id=4),
    Data(8, count=7, offset=67, producer_id=2),
    Marker("abort", epoch=1, producer_id=2, offset=74),
    Stable(36),
    Plain(10, offset=75),
    Data(11, count=4, offset=85, producer_id=4),
    Marker("commit", epoch=1, producer_id=4, offset=89),
    Stable(90, opened=()),
)
FOUR_ABORTED = Aborted(((1, 0, 29, 8), (2, 8, 74, 36)))
FOUR_COMMITTED = (
    *range(5, 8),
    *range(14, 19),
    *range(36, 58),
    *range(59, 67),
    *range(75, 89),
)
FOUR_READS = (
    Read(0, FOUR_COMMITTED, committed=True, position=90),
    *(
        Read(start, tuple(o for o in FOUR_COMMITTED if o >= start), committed=True, position=90)
        for start in (1, 6, 16, 30, 40, 68, 74, 75)
    ),
)

INDEX = [
    Scenario(
        39,
        "four producers, two of them aborted",
        (
            *FOUR_PRODUCERS,
            FOUR_ABORTED,
            Aborted(((1, 0, 29, 8),), first=0, upper_bound=8),
            Aborted(FOUR_ABORTED.entries, first=29),
            Aborted(((2, 8, 74, 36),), first=30),
            Aborted((), first=75),
            *FOUR_READS,
        ),
    ),
    *(
        Scenario(
            39,
            "the same in small segments, read again after each way to open",
            (
                *FOUR_PRODUCERS,
                FOUR_ABORTED,
                *FOUR_READS,
                Reopen(clean=clean),
                Stable(90, opened=()),
                FOUR_ABORTED,
                *FOUR_READS,
            ),
            variant=f"small-{'clean' if clean else 'unclean'}",
            config={"segment.bytes": 400, "index.interval.bytes": 100},
        )
        for clean in (True, False)
    ),
    Scenario(
        56,
        "recovery finds the aborted transaction",
        (
            *(StoredData(o, sequence=o - 100, epoch=0, producer_id=5) for o in (100, 101)),
            *(StoredData(o, sequence=o - 102, epoch=0, producer_id=10) for o in (102, 103)),
            Stored(104, count=2),
            StoredMarker(106, "abort", epoch=0, producer_id=10),
            Stable(100, opened=((5, 100),)),
            StoredMarker(107, "commit", epoch=0, producer_id=5),
            Aborted(((10, 102, 106, 100),)),
            Stable(108, opened=()),
            Reopen(clean=False),
            Aborted(((10, 102, 106, 100),)),
            Bounds(end=108),
            Read(100, (100, 101, 104, 105), committed=True, position=108),
        ),
        log_start_offset=100,
        told_by_store=False,
    ),
    Scenario(
        56,
        "a transaction that began in an earlier segment",
        (
            Stored(75, sequence=0, epoch=0, producer_id=10, transactional=True),
            Roll(76),
            Stored(100, sequence=0, epoch=0, producer_id=5, transactional=True),
            Stored(102, sequence=1, epoch=0, producer_id=10, transactional=True),
            Stored(104, count=2),
            StoredMarker(106, "abort", epoch=0, producer_id=10),
            StoredMarker(107, "commit", epoch=0, producer_id=5),
            Aborted(((10, 75, 106, 100),)),
            Reopen(clean=False, recovery_point=76),
            Aborted(((10, 75, 106, 100),)),
            Bounds(end=108),
        ),
        variant="earlier",
        log_start_offset=75,
    ),
    *(
        Scenario(
            63,
            "a truncation takes the aborts above it",
            (
                Data(0, count=10, offset=0, producer_id=1),
                Marker("abort", epoch=1, producer_id=1, offset=10),
                Data(0, count=4, offset=11, producer_id=2),
                Marker("abort", epoch=1, producer_id=2, offset=15),
                Data(0, count=19, offset=16, producer_id=3),
                Marker("abort", epoch=1, producer_id=3, offset=35),
                Data(0, count=14, offset=36, producer_id=4),
                Marker("abort", epoch=1, producer_id=4, offset=50),
                Truncate(cut),
                Aborted(((1, 0, 10, 11), (2, 11, 15, 16), (3, 16, 35, 36), (4, 36, 50, 51))[:kept]),
                Stable(stable),
                *(
                    step
                    for clean in (True, False)
                    for step in (Reopen(clean=clean), Stable(stable))
                ),
                Aborted(((1, 0, 10, 11), (2, 11, 15, 16), (3, 16, 35, 36), (4, 36, 50, 51))[:kept]),
            ),
            variant=str(cut),
            note="where its marker is cut off a transaction is open again",
        )
        for cut, kept, stable in ((51, 4, 51), (50, 3, 36), (16, 2, 16), (10, 0, 0), (0, 0, 0))
    ),
    *(
        Scenario(
            70,
            "the abort index is made anew",
            (
                *FOUR_PRODUCERS,
                BreakFile(ALL, suffix, how, clean=clean),
                FOUR_ABORTED,
                Stable(90, opened=()),
                *FOUR_READS,
            ),
            variant=f"{suffix[2:]}-{how}-{'clean' if clean else 'unclean'}",
            config={"segment.bytes": 400, "index.interval.bytes": 100},
        )
        for suffix in ("*.txnindex", "*index")
        for how in ("delete", "empty", "half", "noise", "append_noise")
        for clean in (False, True)
    ),
]

CONSUMERS = [
    Scenario(
        82,
        "an aborted transaction is not read",
        (
            Data(0, count=10, offset=0),
            Marker("abort", epoch=1, offset=10),
            Read(0, (), committed=True, position=11),
            Read(0, tuple(range(10))),
        ),
    ),
    Scenario(
        83,
        "one producer's committed and aborted transactions beside another's",
        (
            Data(0, count=2, offset=0, producer_id=1),
            Data(0, offset=2, producer_id=2),
            Marker("commit", epoch=1, producer_id=1, offset=3),
            Data(1, offset=4, producer_id=2),
            Marker("abort", epoch=1, producer_id=2, offset=5),
            Data(0, offset=6, producer_id=1, epoch=1),
            Data(0, offset=7, producer_id=2, epoch=1),
            Data(1, offset=8, producer_id=1, epoch=1),
            Marker("abort", epoch=2, producer_id=1, offset=9),
            Marker("commit", epoch=2, producer_id=2, offset=10),
            Aborted(((2, 2, 5, 6), (1, 6, 9, 7))),
            Read(0, (0, 1, 7), committed=True, position=11),
            Read(0, (0, 1, 2, 4, 6, 7, 8)),
        ),
    ),
    Scenario(
        84,
        "a reader's position passes over what was aborted",
        (
            Data(0, count=2, offset=0),
            Marker("abort", epoch=1, offset=2),
            Read(0, (), committed=True, position=3),
            Read(2, (), committed=True, position=3),
        ),
    ),
    Scenario(
        85,
        "an empty control batch is no error",
        (
            Stored(0, epoch=0, producer_id=PID, transactional=True, control=True, kept_indexes=()),
            StoredData(1, sequence=0, count=2),
            StoredMarker(3, "commit", epoch=0),
            Read(0, (1, 2), committed=True, position=4),
            Read(0, (1, 2)),
            Stable(4, opened=()),
        ),
        told_by_store=False,
        note="the empty batch came by a copied file, as a cleaner leaves it",
    ),
]

TRANSACTION_SCENARIOS = [*PRODUCER_STATE, *STABLE_OFFSET, *INDEX, *CONSUMERS]
