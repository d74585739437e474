"""Poll skips: a consumer passed a record that others have, and was not given it."""

import numpy as np

from eoslog.checking.anomaly import Anomaly, Found
from eoslog.checking.evidence import Evidence
from eoslog.checking.groups_of_rows import distinct, place_keys, same_as_before
from eoslog.checking.history import Flags, Numbers
from eoslog.checking.operation_kinds import READ_COMMITTED
from eoslog.checking.passed_offsets import starts_of

KIND = "poll skip"


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
        return evidence.anomaly(KIND, what, ops)

    return evidence.found(KIND, range(len(skipped)), show)


def _skipped(
    evidence: Evidence, due: Flags, chosen: Numbers, given: tuple[Numbers, Numbers]
) -> list[tuple[int, int]]:
    """Of the places that are due to the chosen passes: what was not given, each with the pass."""
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
    """What each pass returned inside its own range: pass and place, sorted, no offset twice."""
    passes, reads = evidence.passed.passes, evidence.history.reads
    of_read = evidence.passed.of_read
    start = starts_of(passes)[of_read]
    inside = np.flatnonzero((reads.offset >= start) & (reads.offset < passes.after[of_read]))
    given_pass, place = of_read[inside], evidence.records.of_read[inside]
    order = np.lexsort((place, given_pass))
    given_pass, place = given_pass[order], place[order]
    new = ~same_as_before(given_pass, evidence.records.rows.key[place])
    return given_pass[new], place[new]
