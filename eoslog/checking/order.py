"""Records at wrong places or out of order, and records that readers were not given."""

import numpy as np

from eoslog.checking.evidence import Evidence, Found, Shown, sent_offsets, starts_of
from eoslog.checking.history import (
    FAIL,
    INIT,
    NEVER_NS,
    NONE,
    OFFSET_MAX,
    OK,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Columns,
    Flags,
    Numbers,
    distinct,
    greatest,
    group_numbers,
    place_keys,
    rows_of,
    running_greatest,
    same_as_before,
)
from eoslog.checking.lost_writes import MissingRecords, offset_brackets

# Duplicates: a record that is in the log twice, both times committed.


def duplicates(evidence: Evidence) -> Found:
    """Find values that certainly committed records have at two places or more."""
    rows = evidence.records.rows
    places = np.flatnonzero(rows.committed)
    counts = np.bincount(rows.value[places], minlength=len(evidence.history.names.values))
    values = np.flatnonzero(counts > 1)

    def show(value: int) -> Shown:
        copies = places[rows.value[places] == value].tolist()
        where = " and at ".join(evidence.key(rows.key[one]) for one in copies)
        writers = {evidence.send_op(rows.writer[one]) for one in copies}
        ops = sorted(writers) + [evidence.place_op(one) for one in copies]
        return f"{evidence.value(value)} is at {where}", ops

    return evidence.found("duplicate", (values, show))


# Inconsistent offsets: an offset with two records, or a record in another partition.


def inconsistent_offsets(evidence: Evidence) -> Found:
    """Find two records at one offset, and records in a partition that they were not sent to."""
    rows, sends = evidence.records.rows, evidence.history.sends
    same = np.zeros(len(rows), dtype=bool)
    same[1:] = rows.key[1:] == rows.key[:-1]
    keys = distinct(rows.key[same])
    known = np.flatnonzero(rows.writer != NONE)
    sent_to = sends.partition[rows.writer[known]]
    strayed = known[(sent_to != NONE) & (sent_to != rows.partition[known])]

    def show_key(key: int) -> Shown:
        places = range(len(rows))[rows_of(rows.key, key)]
        values = " and ".join(evidence.value(rows.value[place]) for place in places)
        return f"{evidence.key(key)} holds {values}", [evidence.place_op(place) for place in places]

    def show_strayed(place: int) -> Shown:
        writer = rows.writer[place]
        to = evidence.partition(sends.partition[writer])
        ops = [evidence.send_op(writer), evidence.place_op(place)]
        return f"{evidence.place(place)} was sent to {to}", ops

    return evidence.found("inconsistent offsets", (keys, show_key), (strayed, show_strayed))


# Non-monotonic sends and polls: a client's records were appended, or returned, in another order.


def non_monotonic_sends(evidence: Evidence) -> Found:
    """Find records of a client with a lower offset than one that it had sent earlier.

    Two at the same offset are inconsistent offsets. A record that was sent several times counts as
    sent later only if all its tries were.
    """
    history, tries = evidence.history, evidence.tries
    ops, sends = history.ops, history.sends
    offsets = sent_offsets(history, evidence.records)
    rows = np.flatnonzero(
        (offsets != NONE) & (evidence.send_outcome == OK) & (sends.partition != NONE)
    )
    rows = rows[np.lexsort((tries.turn[rows], sends.partition[rows], ops.client[sends.op[rows]]))]
    lane = group_numbers(same_as_before(sends.partition[rows], ops.client[sends.op[rows]]))
    highest = _highest_before(evidence, rows, lane, offsets[rows])
    wrong = np.flatnonzero((highest != NONE) & (offsets[rows] < highest))

    def show(at: int) -> Shown:
        earlier = (lane == lane[at]) & (offsets[rows] == highest[at])
        earlier &= tries.turn[rows] < tries.first_turn[rows[at]]
        one, other = int(rows[earlier][-1]), int(rows[at])
        what = (
            f"{evidence.sent(one)} was sent before {evidence.sent(other)}, and stands after it in "
            f"{evidence.partition(sends.partition[one])}: "
            f"offsets {offsets[one]} and {offsets[other]}"
        )
        return what, [evidence.send_op(one), evidence.send_op(other)]

    return evidence.found("non-monotonic send", (wrong, show))


def _highest_before(evidence: Evidence, rows: Numbers, lane: Numbers, offsets: Numbers) -> Numbers:
    """Return the greatest offset sent before all tries of each send, by lane and turn."""
    tries = evidence.tries
    before = np.arange(len(rows))  # So many rows are sent before it.
    repeated = np.flatnonzero(tries.first_turn[rows] != tries.turn[rows])
    if len(repeated):
        width = len(tries) + 1
        wanted = lane[repeated] * width + tries.first_turn[rows[repeated]] + 1
        before[repeated] = np.searchsorted(lane * width + tries.turn[rows] + 1, wanted)
    so_far = running_greatest(lane, offsets)
    highest = np.full(len(rows), NONE, dtype=np.int64)
    there = before > 0
    there[there] = lane[before[there] - 1] == lane[there]
    highest[there] = so_far[before[there] - 1]
    return highest


def non_monotonic_polls(evidence: Evidence) -> Found:
    """Find polls that returned records in another order, or went back without a seek."""
    passes, reads = evidence.passed.passes, evidence.history.reads
    of_read = evidence.passed.of_read
    order = np.argsort(of_read, kind="stable")
    same = same_as_before(of_read[order])
    down = np.flatnonzero(same[1:] & (reads.offset[order[1:]] <= reads.offset[order[:-1]])) + 1
    back = np.zeros(len(passes), dtype=bool)
    back[of_read[order[down]]] = True
    stood = passes.before != NONE
    back |= stood & ((passes.first < passes.before) | (passes.after < passes.before))
    back |= passes.reported < passes.after

    def show(at: int) -> Shown:
        rows = np.flatnonzero(of_read == at)
        got = ", ".join(map(str, reads.offset[rows][:10])) or "nothing"
        stood = passes.before[at]
        where = f"from {evidence.partition(passes.partition[at])}"
        place = "" if stood == NONE else f" when it stood at offset {stood}"
        what = f"a poll returned {got} {where}{place}, and left it at {passes.reported[at]}"
        return what, [passes.previous_op[at], passes.op[at]]

    return evidence.found("non-monotonic poll", (np.flatnonzero(back), show))


# Poll skips: a consumer passed a record that others have, and did not get it.


def poll_skips(evidence: Evidence) -> Found:
    """Find records that a poll passed without returning them, and that another poll returned.

    A reader of committed data gets certainly committed records, any other all that were seen.
    """
    rows, passes = evidence.records.rows, evidence.passed.passes
    ops = evidence.history.ops
    committed = ops.isolation[passes.op] == READ_COMMITTED
    shown = rows.seen & evidence.records.value_seen[rows.value]
    given = _given(evidence)
    to_committed, to_all = rows.committed & shown, rows.seen
    skipped = _skipped(evidence, to_committed, np.flatnonzero(committed), given)
    skipped += _skipped(evidence, to_all, np.flatnonzero(~committed), given)

    def show(at: int) -> Shown:
        key, index = skipped[at]
        place = int(np.searchsorted(rows.key, key))
        what = (
            f"{evidence.place(place)} was passed: the poll left offset "
            f"{starts_of(passes)[index]} for {passes.after[index]}"
        )
        return what, [evidence.place_op(place), passes.previous_op[index], passes.op[index]]

    return evidence.found("poll skip", (range(len(skipped)), show))


def _skipped(
    evidence: Evidence, due: Flags, chosen: Numbers, given: tuple[Numbers, Numbers]
) -> list[tuple[int, int]]:
    """Return the keys due to the chosen passes that they did not return, each with its pass."""
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
    """Return pass and place of the records that passes returned in their ranges, sorted, each
    offset once.
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


# Invisible records: committed, and a reader whose position is before them gets nothing.
#
# A reader waits before a record while its polls return nothing and its position stays. If it waits
# longer than a record may take to be seen, and no open transaction can hold the record back, the
# record is invisible. Open transactions do not hold back readers of all data; but records that they
# may hold back from others are not reported for these either.


class _Waits(Columns):
    """One row per reader and partition where it waited in vain: its polls from first to last."""

    partition: Numbers
    position: Numbers
    begin: Numbers
    last_begin: Numbers
    end: Numbers
    first_op: Numbers
    last_op: Numbers
    to_all: Flags  # The reader gets all data, not only committed records.


class _Hidden(Columns):
    """One row per committed record that no reader has."""

    send: Numbers
    partition: Numbers
    lowest: Numbers  # The least offset that it can have.
    since: Numbers  # No transaction holds it back after this time; NEVER_NS if one always may.
    unseen: Flags  # No reader of all data has it either.


def invisible_records(evidence: Evidence, missing: MissingRecords) -> Found:
    """Find records that no reader got, though one waited there when nothing held them back.

    Records that readers passed are `missing` instead.
    """
    waits, hidden = _waits(evidence), _hidden_records(evidence, missing)
    sends = evidence.history.sends
    found: dict[int, int] = {}
    for partition in np.intersect1d(waits.partition, hidden.partition):
        mine: _Hidden = hidden.where(hidden.partition == partition)
        for wait in np.flatnonzero(waits.partition == partition).tolist():
            waited = waits.end[wait] - np.maximum(mine.since, waits.begin[wait])
            shown = (
                (mine.lowest >= waits.position[wait])
                & (mine.since < waits.last_begin[wait])
                & (waited >= evidence.visible_within_ns)
                & (mine.unseen | ~waits.to_all[wait])
            )
            for send in mine.send[shown].tolist():
                found.setdefault(send, wait)

    def show(send: int) -> Shown:
        wait = found[send]
        what = (
            f"{evidence.sent(send)} was committed, and a reader at offset "
            f"{waits.position[wait]} of {evidence.partition(sends.partition[send])} got "
            "nothing afterwards"
        )
        commit = evidence.commit_op(evidence.send_transaction[send])
        polls = [waits.first_op[wait], waits.last_op[wait]]
        return what, [evidence.send_op(send), commit, *polls]

    return evidence.found("invisible record", (sorted(found), show))


def _hidden_records(evidence: Evidence, missing: MissingRecords) -> _Hidden:
    history, records = evidence.history, evidence.records
    sends = history.sends
    rows = np.flatnonzero(
        (evidence.send_outcome == OK)
        & (sends.partition != NONE)
        & evidence.transactions.is_committed(evidence.send_transaction)
        & ~records.value_seen[sends.value]
    )
    rows = np.setdiff1d(rows, missing.sends, assume_unique=True)
    done = evidence.there_by(rows)
    partitions = sends.partition[rows]
    lowest, _ = offset_brackets(evidence, rows)
    # It is not in ranges that readers passed: they would have it.
    keys = place_keys(partitions, np.minimum(lowest, OFFSET_MAX))
    passed_end = evidence.passed.committed.ends_around(keys) & OFFSET_MAX
    lowest = np.where(sends.offset[rows] == NONE, np.maximum(lowest, passed_end), lowest)
    since = done.copy()
    held = _held(evidence)
    for partition in distinct(partitions):
        chosen = partitions == partition
        mine = held.where((held.partition == partition) | (held.partition == NONE))
        order = np.argsort(mine.begin, kind="stable")
        longest = np.append(0, np.maximum.accumulate(mine.until[order]))
        # A transaction that began before the record was committed may be before it.
        begun = np.searchsorted(mine.begin[order], done[chosen] + evidence.clock_error_ns, "right")
        since[chosen] = np.maximum(done[chosen], longest[begun])
    since = np.where(since == NEVER_NS, NEVER_NS, since + evidence.clock_error_ns)
    unseen = ~records.value_seen_at_all[sends.value[rows]]
    return _Hidden(send=rows, partition=partitions, lowest=lowest, since=since, unseen=unseen)


def _waits(evidence: Evidence) -> _Waits:
    """Find the waits of readers: consecutive polls that returned nothing."""
    history, passes = evidence.history, evidence.passed.passes
    ops = history.ops
    got = np.zeros(len(ops), dtype=bool)
    got[history.reads.op] = True
    empty = np.flatnonzero(~got[passes.op])
    op, partition = passes.op[empty], passes.partition[empty]
    order = np.lexsort((op, ops.begin[op], partition, ops.client[op]))
    empty, op, partition = empty[order], op[order], partition[order]
    position = passes.after[empty]
    # The same wait goes on while the poll before is the one that left the consumer here.
    goes_on = same_as_before(ops.client[op], partition, position, ops.isolation[op])
    goes_on[1:] &= passes.previous_op[empty[1:]] == op[:-1]
    first = np.flatnonzero(~goes_on)
    last = np.append(first[1:], len(op)) - 1 if len(op) else first
    return _Waits(
        partition=partition[first],
        position=position[first],
        begin=ops.begin[op[first]],
        last_begin=ops.begin[op[last]],
        end=ops.end[op[last]],
        first_op=op[first],
        last_op=op[last],
        to_all=ops.isolation[op[first]] == READ_UNCOMMITTED,
    )


class _Held(Columns):
    """One row per transaction and partition: the time in which it may hold readers back."""

    partition: Numbers
    begin: Numbers
    until: Numbers


def _held(evidence: Evidence) -> _Held:
    history = evidence.history
    ops, sends = history.ops, history.sends
    count = len(history.names.transactions)
    rows = np.flatnonzero((evidence.send_transaction != NONE) & (evidence.send_outcome != FAIL))
    of = evidence.send_transaction[rows]
    ended = evidence.transactions.committed_by.copy()
    aborted = evidence.transactions.abort_op
    ok = aborted != NONE
    ok[ok] = ops.outcome[aborted[ok]] == OK
    ended[ok] = np.minimum(ended[ok], ops.end[aborted[ok]])
    ended = np.minimum(ended, _taken_over(evidence, count))
    return _Held(partition=sends.partition[rows], begin=ops.begin[sends.op[rows]], until=ended[of])


def _taken_over(evidence: Evidence, count: int) -> Numbers:
    """Return the time by which a later init of its transactional id had ended each transaction."""
    ops, ids = evidence.history.ops, evidence.identities.transactional_id
    found = np.full(count, NEVER_NS, dtype=np.int64)
    inits = np.flatnonzero((ops.kind == INIT) & (ops.outcome == OK) & (ids != NONE))
    named = np.flatnonzero((ops.transaction != NONE) & (ids != NONE))
    last = greatest(ops.transaction[named], ops.begin[named], count)
    id_of = np.full(count, NONE, dtype=np.int64)
    id_of[ops.transaction[named]] = ids[named]
    for transactional_id in distinct(ids[inits]):
        mine = inits[ids[inits] == transactional_id]
        mine = mine[np.argsort(ops.begin[mine], kind="stable")]
        theirs = np.flatnonzero(id_of == transactional_id)
        soonest = np.append(np.minimum.accumulate(ops.end[mine][::-1])[::-1], NEVER_NS)
        at = np.searchsorted(ops.begin[mine], last[theirs] + evidence.clock_error_ns, "right")
        found[theirs] = soonest[at]
    return found
