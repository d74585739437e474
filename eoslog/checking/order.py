"""Records at wrong places or out of order: duplicates, offsets, sends, polls, skips."""

import numpy as np

from eoslog.checking.evidence import Evidence, sent_offsets, starts_of
from eoslog.checking.history import (
    NONE,
    OK,
    READ_COMMITTED,
    Flags,
    Numbers,
    distinct,
    group_numbers,
    place_keys,
    rows_of,
    running_greatest,
    same_as_before,
)
from eoslog.checking.report import Anomaly, Found

# Duplicates: a record that is in the log twice, both times for good.


DUPLICATE = "duplicate"


def duplicates(evidence: Evidence) -> Found:
    """Values that certainly committed records have at two places or more."""
    rows = evidence.records.rows
    places = np.flatnonzero(rows.committed)
    counts = np.bincount(rows.value[places], minlength=len(evidence.history.names.values))
    values = np.flatnonzero(counts > 1)

    def show(value: int) -> Anomaly:
        copies = [int(one) for one in places[rows.value[places] == value]]
        where = " and at ".join(evidence.key(int(rows.key[one])) for one in copies)
        writers = {evidence.send_op(int(rows.writer[one])) for one in copies}
        ops = sorted(writers) + [evidence.place_op(one) for one in copies]
        return evidence.anomaly(DUPLICATE, f"{evidence.value(value)} is at {where}", ops)

    return evidence.found(DUPLICATE, values, show)


# Inconsistent offsets: an offset that holds two records, a record in a partition not its own.


INCONSISTENT = "inconsistent offsets"


def inconsistent_offsets(evidence: Evidence) -> Found:
    """Two records at one offset, by polls or answers; records in another partition than sent to."""
    rows, sends = evidence.records.rows, evidence.history.sends
    same = np.zeros(len(rows), dtype=bool)
    same[1:] = rows.key[1:] == rows.key[:-1]
    keys = distinct(rows.key[same])
    known = np.flatnonzero(rows.writer != NONE)
    sent_to = sends.partition[rows.writer[known]]
    strayed = known[(sent_to != NONE) & (sent_to != rows.partition[known])]

    def show(at: int) -> Anomaly:
        if at >= len(keys):
            place = int(strayed[at - len(keys)])
            writer = int(rows.writer[place])
            what = (
                f"{evidence.place(place)} was sent to {evidence.partition(sends.partition[writer])}"
            )
            return evidence.anomaly(
                INCONSISTENT, what, [evidence.send_op(writer), evidence.place_op(place)]
            )
        key = int(keys[at])
        places = range(len(rows))[rows_of(rows.key, key)]
        values = " and ".join(evidence.value(int(rows.value[place])) for place in places)
        what = f"{evidence.key(key)} holds {values}"
        return evidence.anomaly(INCONSISTENT, what, [evidence.place_op(place) for place in places])

    return evidence.found(INCONSISTENT, range(len(keys) + len(strayed)), show)


# Non-monotonic sends and polls: a client's records stand, or were handed out, in another order.


SENDS, POLLS = "non-monotonic send", "non-monotonic poll"


def non_monotonic_sends(evidence: Evidence) -> Found:
    """Records of a client that stand before one that it had sent earlier.

    Two at the same offset are inconsistent offsets, whoever sent them.
    A record that was sent several times counts as sent later only if all tries of it were.
    """
    history, tries = evidence.history, evidence.tries
    ops, sends = history.ops, history.sends
    offsets = sent_offsets(history, evidence.records)
    rows = np.flatnonzero(
        (offsets != NONE) & (ops.outcome[sends.op] == OK) & (sends.partition != NONE)
    )
    rows = rows[np.lexsort((tries.turn[rows], sends.partition[rows], ops.client[sends.op[rows]]))]
    lane = group_numbers(same_as_before(sends.partition[rows], ops.client[sends.op[rows]]))
    highest = _highest_before(evidence, rows, lane, offsets[rows])
    wrong = np.flatnonzero((highest != NONE) & (offsets[rows] < highest))

    def show(at: int) -> Anomaly:
        earlier = (lane == lane[at]) & (offsets[rows] == highest[at])
        earlier &= tries.turn[rows] < tries.first_turn[rows[at]]
        one, other = int(rows[earlier][-1]), int(rows[at])
        what = (
            f"{evidence.value(int(sends.value[one]))} was sent before "
            f"{evidence.value(int(sends.value[other]))}, and stands behind it in "
            f"{evidence.partition(int(sends.partition[one]))}: "
            f"offsets {offsets[one]} and {offsets[other]}"
        )
        return evidence.anomaly(SENDS, what, [evidence.send_op(one), evidence.send_op(other)])

    return evidence.found(SENDS, wrong, show)


def _highest_before(evidence: Evidence, rows: Numbers, lane: Numbers, offsets: Numbers) -> Numbers:
    """Return the greatest offset sent before all tries of each send, by lane and turn."""
    tries = evidence.tries
    before = np.arange(len(rows))  # So many rows are sent before it.
    repeated = np.flatnonzero(tries.first_turn[rows] != tries.turn[rows])
    if len(repeated):
        width = len(tries) + 1
        wanted = lane[repeated] * width + tries.first_turn[rows[repeated]] + 1
        before[repeated] = np.searchsorted(lane * width + tries.turn[rows] + 1, wanted)
    greatest = running_greatest(lane, offsets)
    highest = np.full(len(rows), NONE, dtype=np.int64)
    there = before > 0
    there[there] = lane[before[there] - 1] == lane[there]
    highest[there] = greatest[before[there] - 1]
    return highest


def non_monotonic_polls(evidence: Evidence) -> Found:
    """Polls that gave records in another order than the log's, or went back without a seek."""
    passes, reads = evidence.passed.passes, evidence.history.reads
    of_read = evidence.passed.of_read
    order = np.argsort(of_read, kind="stable")
    same = same_as_before(of_read[order])
    down = np.flatnonzero(same[1:] & (reads.offset[order[1:]] <= reads.offset[order[:-1]])) + 1
    back = np.zeros(len(passes), dtype=bool)
    back[of_read[order[down]]] = True
    stood = passes.before != NONE
    back |= stood & ((passes.first < passes.before) | (passes.after < passes.before))
    back |= passes.told < passes.after

    def show(at: int) -> Anomaly:
        rows = np.flatnonzero(of_read == at)
        got = ", ".join(map(str, reads.offset[rows][:10])) or "nothing"
        stood = int(passes.before[at])
        where = f"from {evidence.partition(int(passes.partition[at]))}"
        place = "" if stood == NONE else f" when it stood at offset {stood}"
        what = f"a poll returned {got} {where}{place}, and left it at {passes.told[at]}"
        return evidence.anomaly(POLLS, what, [int(passes.previous_op[at]), int(passes.op[at])])

    return evidence.found(POLLS, np.flatnonzero(back), show)


# Poll skips: a consumer passed a record that others have, and was not given it.


SKIP = "poll skip"


def poll_skips(evidence: Evidence) -> Found:
    """Records that a poll passed without returning them, and that another poll did return.

    A reader of committed data is given what is certainly committed, any other one all that is seen.
    """
    rows, passes = evidence.records.rows, evidence.passed.passes
    ops = evidence.history.ops
    committed = ops.isolation[passes.op] == READ_COMMITTED
    shown = rows.seen & evidence.records.value_seen[rows.value]
    given = _given(evidence)
    to_committed, to_all = rows.committed & shown, rows.seen
    skipped = _skipped(evidence, to_committed, np.flatnonzero(committed), given)
    skipped += _skipped(evidence, to_all, np.flatnonzero(~committed), given)

    def show(at: int) -> Anomaly:
        key, index = skipped[at]
        place = int(np.searchsorted(rows.key, key))
        poll = int(passes.op[index])
        what = (
            f"{evidence.place(place)} was passed: the poll left offset "
            f"{starts_of(passes)[index]} for {passes.after[index]}"
        )
        ops = [evidence.place_op(place), int(passes.previous_op[index]), poll]
        return evidence.anomaly(SKIP, what, ops)

    return evidence.found(SKIP, range(len(skipped)), show)


def _skipped(
    evidence: Evidence, due: Flags, chosen: Numbers, given: tuple[Numbers, Numbers]
) -> list[tuple[int, int]]:
    """Return the places due to the chosen passes that were not given, each with the pass."""
    rows, passes = evidence.records.rows, evidence.passed.passes
    # Two values at one offset are one place here, and another anomaly.
    first_of_key = ~same_as_before(rows.key)
    due_keys = distinct(rows.key[due])
    is_due = np.isin(rows.key, due_keys) if not first_of_key.all() else due
    keys = rows.key[is_due & first_of_key]
    start = starts_of(passes)[chosen]
    proper = start < passes.after[chosen]
    chosen, start = chosen[proper], start[proper]
    partition = passes.partition[chosen]
    first = np.searchsorted(keys, place_keys(partition, start))
    end = np.searchsorted(keys, place_keys(partition, passes.after[chosen]))
    given_pass, given_place = given
    counts = np.bincount(given_pass[is_due[given_place]], minlength=len(passes))
    found = []
    for at in np.flatnonzero(end - first > counts[chosen]):
        index = int(chosen[at])
        left, right = np.searchsorted(given_pass, [index, index + 1])
        missing = np.setdiff1d(keys[first[at] : end[at]], rows.key[given_place[left:right]])
        found += [(int(key), index) for key in missing]
    return found


def _given(evidence: Evidence) -> tuple[Numbers, Numbers]:
    """Return pass and place of the records that passes returned in their own ranges: sorted, no
    offset twice.
    """
    passes, reads = evidence.passed.passes, evidence.history.reads
    of_read = evidence.passed.of_read
    start = starts_of(passes)[of_read]
    inside = np.flatnonzero((reads.offset >= start) & (reads.offset < passes.after[of_read]))
    given_pass, place = of_read[inside], evidence.records.of_read[inside]
    order = np.lexsort((place, given_pass))
    given_pass, place = given_pass[order], place[order]
    new = ~same_as_before(given_pass, evidence.records.rows.key[place])
    return given_pass[new], place[new]
