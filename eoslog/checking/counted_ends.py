"""Ends that leave no room: a partition that ended before it can hold all that is certainly in it.

Records have an offset each, so a partition goes at least as far as it has records.
"""

import numpy as np

from eoslog.checking.evidence import Evidence
from eoslog.checking.groups_of_rows import distinct, greatest, least
from eoslog.checking.history import Columns, Numbers
from eoslog.checking.operation_kinds import FAIL, NEVER_NS, NONE, OK, READ_UNCOMMITTED


class CountedEnds(Columns):
    """The first such end of each partition."""

    row: Numbers  # Of the ends.
    count: Numbers  # So many records were there before it was asked for.
    send: Numbers  # The last of them that was done.


def counted_ends(evidence: Evidence) -> CountedEnds:
    """Ends of all data that are lower than the number of records that were there before."""
    ends, ops = evidence.history.ends, evidence.history.ops
    asked = np.flatnonzero(ops.isolation[ends.op] == READ_UNCOMMITTED)
    found: list[tuple[int, int, int]] = []
    if len(asked):
        rows, done = _there(evidence)
        partitions = evidence.history.sends.partition[rows]
        for partition in distinct(ends.partition[asked]):
            mine = asked[ends.partition[asked] == partition]
            mine = mine[np.argsort(ops.begin[ends.op[mine]], kind="stable")]
            here = np.flatnonzero(partitions == partition)
            here = here[np.argsort(done[here], kind="stable")]
            before = ops.begin[ends.op[mine]] - evidence.clock_error_ns
            counts = np.searchsorted(done[here], before)
            wrong = np.flatnonzero(counts > ends.offset[mine])
            if len(wrong):
                first = int(wrong[0])
                last = int(rows[here[counts[first] - 1]])
                found.append((int(mine[first]), int(counts[first]), last))
    columns = np.array(found, dtype=np.int64).reshape(-1, 3)
    return CountedEnds(row=columns[:, 0], count=columns[:, 1], send=columns[:, 2])


def _there(evidence: Evidence) -> tuple[Numbers, Numbers]:
    """Sends of different records that are certainly in their partition, and from when on."""
    history, transactions = evidence.history, evidence.transactions
    sends, ops, places = history.sends, history.ops, evidence.records.rows
    of = ops.transaction[sends.op]
    done = ops.end[sends.op].copy()
    done[of != NONE] = np.maximum(done[of != NONE], transactions.committed_by[of[of != NONE]])
    sure = (ops.outcome[sends.op] == OK) & transactions.is_committed(of) & (done < NEVER_NS)
    sure &= sends.partition != NONE
    # Another try, or a reader, may show a value in another partition: it is counted in none.
    tried = ops.outcome[sends.op] != FAIL
    value = np.concatenate([sends.value[tried], places.value])
    partition = np.concatenate([sends.partition[tried], places.partition])
    count = len(history.names.values)
    one = least(value, partition, count) == greatest(value, partition, count, NONE)
    rows = np.flatnonzero(sure & one[sends.value])
    rows = rows[np.argsort(done[rows], kind="stable")]
    _, first = np.unique(sends.value[rows], return_index=True)
    rows = rows[np.sort(first)]
    return rows, done[rows]
