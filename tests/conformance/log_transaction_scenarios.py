"""The rows of Kafka's transaction scenarios that concern one partition's log, as data.

Markers (K), sequences and producer state (L), and what readers see of it all (T).
"""

from __future__ import annotations

from conformance.steps import (
    PID,
    Aborted,
    Append,
    Bounds,
    BreakFile,
    Marker,
    Plain,
    Read,
    Reopen,
    Roll,
    Scenario,
    Snapshot,
    Stable,
    State,
    StoredMarker,
)
from conformance.transaction_scenarios import (
    COORDINATOR_FENCED,
    OLD_EPOCH,
    OUT_OF_ORDER,
    WRONG_STATE,
    Data,
    OldMarker,
    StoredData,
)

MARKERS = [
    Scenario(
        7,
        "markers of older coordinators are refused",
        (
            Data(0, producer_id=7, offset=0),
            Marker("abort", epoch=1, producer_id=7, coordinator_epoch=5, offset=1),
            Data(0, epoch=1, producer_id=7, offset=2),
            Marker("abort", epoch=2, producer_id=7, coordinator_epoch=4, error=COORDINATOR_FENCED),
            Stable(2, opened=((7, 2),)),
            Marker("abort", epoch=2, producer_id=7, coordinator_epoch=5, offset=3),
            Marker("abort", epoch=3, producer_id=7, coordinator_epoch=6, offset=4),
            Reopen(clean=False),
            State(7, coordinator_epoch=6),
            Marker("abort", epoch=4, producer_id=7, coordinator_epoch=5, error=COORDINATOR_FENCED),
        ),
        letter="K",
    ),
    Scenario(
        8,
        "the same marker twice",
        (
            Data(0, count=3, offset=0),
            OldMarker("abort", epoch=0, offset=3),
            Stable(4, opened=()),
            OldMarker("abort", epoch=0, offset=4),
            Stable(5, opened=()),
            Aborted(((PID, 0, 3, 4),)),
        ),
        variant="same-epoch",
        letter="K",
    ),
    Scenario(
        8,
        "a marker of the partition's epoch with nothing open did its work before",
        (
            Data(0, count=3, offset=0),
            Marker("abort", epoch=1, offset=3),
            Marker("abort", epoch=1, written=False),
            Marker("commit", epoch=1, written=False),
            Stable(4, opened=()),
            Aborted(((PID, 0, 3, 4),)),
            Bounds(end=4),
        ),
        variant="newer-epoch",
        letter="K",
    ),
    Scenario(
        8,
        "a file in which a marker stands twice",
        (
            StoredData(0, sequence=0, count=3),
            StoredMarker(3, "abort", epoch=0),
            StoredMarker(4, "abort", epoch=0),
            StoredData(5, sequence=3, count=2),
            StoredMarker(7, "commit", epoch=0),
            Aborted(((PID, 0, 3, 4),)),
            Stable(8, opened=()),
            Read(0, (5, 6), committed=True, position=8),
        ),
        variant="stored",
        letter="K",
        told_by_store=False,
    ),
    Scenario(
        10,
        "a marker of the epoch that its data has is a stale one",
        (
            Data(0, epoch=3, offset=0),
            Marker("commit", epoch=3, error=OLD_EPOCH),
            Marker("abort", epoch=3, error=OLD_EPOCH),
            Stable(0, opened=((PID, 0),)),
            Marker("commit", epoch=4, offset=1),
            Stable(2, opened=()),
        ),
        letter="K",
    ),
    Scenario(
        12,
        "sequences go on behind a marker of the same epoch",
        (
            Data(0, count=10, offset=0),
            OldMarker("commit", epoch=0, offset=10),
            State(last_sequence=9, batch_count=1),
            Data(11, error=OUT_OF_ORDER),
            Data(0, error=OUT_OF_ORDER),
            Data(10, offset=11),
        ),
        letter="K",
    ),
    Scenario(
        13,
        "sequences begin anew behind a marker of a newer epoch",
        (
            Data(0, count=10, offset=0),
            Marker("abort", epoch=1, offset=10),
            Data(10, epoch=1, error=OUT_OF_ORDER),
            Data(10, epoch=0, error=OLD_EPOCH),
            Data(0, count=10, epoch=0, error=OLD_EPOCH),
            Data(0, epoch=1, offset=11),
        ),
        letter="K",
    ),
]

SEQUENCES = [
    Scenario(
        1,
        "batches in order",
        (
            Data(0, count=10, offset=0),
            Data(10, count=10, offset=10),
            State(last_sequence=19, transaction_first_offset=0),
        ),
        letter="L",
    ),
    Scenario(
        2,
        "the last batch again",
        (
            Data(0, count=10, offset=0),
            Data(10, count=10, offset=10),
            Data(10, count=10, offset=10, duplicate=True),
            Data(10, count=10, offset=10, duplicate=True, verified=False),
            Bounds(end=20),
        ),
        letter="L",
    ),
    Scenario(
        3,
        "five batches are remembered",
        (
            *(Data(10 * index, count=10, offset=10 * index) for index in range(6)),
            Data(10, count=10, offset=10, duplicate=True),
            Data(0, count=10, error=OUT_OF_ORDER),
            Bounds(end=60),
        ),
        letter="L",
    ),
    Scenario(
        5,
        "no gap is accepted",
        (
            Data(0, count=20, offset=0),
            *(Data(20 + missing, error=OUT_OF_ORDER) for missing in range(1, 6)),
            Data(20, offset=20),
        ),
        letter="L",
    ),
    Scenario(
        6,
        "sequences wrap",
        (
            Append(2**31 - 2, offset=0),
            Data(2**31 - 1, offset=1),
            Data(1, error=OUT_OF_ORDER),
            Data(0, offset=2),
            Stable(1, opened=((PID, 1),)),
        ),
        letter="L",
    ),
    Scenario(
        8,
        "a new epoch begins at zero",
        (
            Data(0, count=20, offset=0),
            Marker("commit", epoch=1, offset=20),
            Data(5, epoch=1, error=OUT_OF_ORDER),
            Data(0, epoch=1, offset=21),
        ),
        letter="L",
    ),
    Scenario(
        9,
        "an unknown producer begins anywhere",
        (
            Append(500, offset=0),
            Data(501, offset=1),
            State(first_sequence=500, transaction_first_offset=1),
        ),
        letter="L",
    ),
    Scenario(
        11,
        "no plain batch inside the own open transaction",
        (
            Data(0, producer_id=7, offset=0),
            Append(1, producer_id=7, error=WRONG_STATE),
            Append(0, producer_id=8, offset=1),
            Data(1, producer_id=7, offset=2),
            Marker("commit", epoch=1, producer_id=7, offset=3),
            Append(0, epoch=1, producer_id=7, offset=4),
            Stable(5, opened=()),
        ),
        letter="L",
    ),
    Scenario(
        12,
        "the oldest open transaction",
        (
            Plain(99, offset=0),
            Data(0, producer_id=1, offset=99),
            Plain(5, offset=100),
            Data(0, producer_id=2, offset=105),
            Plain(4, offset=106),
            Stable(99),
            Marker("abort", epoch=1, producer_id=1, offset=110),
            Stable(105),
            Plain(1, offset=111),
            Marker("commit", epoch=1, producer_id=2, offset=112),
            Stable(113),
        ),
        letter="L",
    ),
    *(
        Scenario(
            16,
            "a snapshot keeps the newest batch of each, and the open transaction",
            (
                Append(0, producer_id=1, offset=0),
                Append(1, producer_id=1, offset=1),
                Data(0, producer_id=2, offset=2),
                Data(1, producer_id=2, offset=3),
                Data(0, producer_id=3, offset=4),
                Marker("commit", epoch=1, coordinator_epoch=9, producer_id=3, offset=5),
                Roll(6),
                *(() if clean else (Plain(1, offset=6),)),
                Reopen(clean=clean, recovery_point=6, restored_from="snapshot"),
                State(1, epoch=0, last_sequence=1, batch_count=1, transaction_first_offset=-1),
                State(2, epoch=0, last_sequence=1, batch_count=1, transaction_first_offset=2),
                State(3, epoch=1, coordinator_epoch=9, batch_count=0),
                Stable(2, opened=((2, 2),)),
            ),
            variant="clean" if clean else "unclean",
            letter="L",
        )
        for clean in (True, False)
    ),
    *(
        Scenario(
            18,
            "behind a broken snapshot the log is replayed",
            (
                Data(0, producer_id=2, offset=0),
                Roll(1),
                Data(1, producer_id=2, offset=1),
                Data(0, producer_id=3, offset=2),
                Marker("abort", epoch=1, producer_id=3, offset=3),
                Snapshot(),
                BreakFile(4, ".snapshot", how, clean=clean),
                State(2, last_sequence=1, batch_count=2, transaction_first_offset=0),
                State(3, epoch=1, batch_count=0, transaction_first_offset=-1),
                Stable(0, opened=((2, 0),)),
                Aborted(((3, 2, 3, 0),)),
            ),
            variant=f"{how}-{'clean' if clean else 'unclean'}",
            letter="L",
        )
        for how in ("empty", "half", "zeros", "delete")
        for clean in (True, False)
    ),
    Scenario(
        19,
        "what was verified before the abort comes after it",
        (
            Data(0, offset=0),
            Marker("abort", epoch=1, offset=1),
            Data(1, error=OLD_EPOCH),
            Data(0, error=OLD_EPOCH),
            Data(1, verified=False, error=OLD_EPOCH),
            Data(0, epoch=1, verified=False, error=WRONG_STATE),
            Stable(2, opened=()),
            Bounds(end=2),
        ),
        letter="L",
    ),
]

END_TO_END = [
    Scenario(
        1,
        "one committed transaction and one aborted",
        (
            Data(0, count=2, offset=0),
            Marker("commit", epoch=1, offset=2),
            Data(0, epoch=1, offset=3),
            Marker("abort", epoch=2, offset=4),
            Read(0, (0, 1), committed=True, position=5),
            Read(0, (0, 1, 3)),
        ),
        letter="T",
    ),
    Scenario(
        2,
        "what comes after an open transaction waits for it",
        (
            Data(0, offset=0),
            Plain(2, offset=1),
            Read(0, (), committed=True, position=0),
            Read(1, (), committed=True),
            Read(0, (0, 1, 2)),
            Marker("abort", epoch=1, offset=3),
            Read(0, (1, 2), committed=True, position=4),
        ),
        letter="T",
    ),
    Scenario(
        4,
        "two producers alternate, one is aborted",
        (
            *(
                Data(index, producer_id=producer_id, offset=2 * index + producer_id - 1)
                for index in range(10)
                for producer_id in (1, 2)
            ),
            Marker("commit", epoch=1, producer_id=1, offset=20),
            Read(0, (0,), committed=True, position=1),
            Marker("abort", epoch=1, producer_id=2, offset=21),
            Read(0, tuple(range(0, 20, 2)), committed=True, position=22),
        ),
        letter="T",
    ),
    Scenario(
        13,
        "five times commit and abort",
        tuple(
            step
            for index in range(5)
            for step in (
                Data(0, epoch=2 * index, offset=4 * index),
                Marker("commit", epoch=2 * index + 1, offset=4 * index + 1),
                Data(0, epoch=2 * index + 1, offset=4 * index + 2),
                Marker("abort", epoch=2 * index + 2, offset=4 * index + 3),
                Read(
                    0,
                    tuple(4 * done for done in range(index + 1)),
                    committed=True,
                    position=4 * index + 4,
                ),
            )
        ),
        letter="T",
    ),
]

LOG_SCENARIOS = [*MARKERS, *SEQUENCES, *END_TO_END]
