"""Under which ids operations wrote that do not say so: those of their client's own last `init`.

A client is one producer, so what it was given by an `init` is what it writes under until the next.
After one of unknown outcome only the name that it asked for is known. An epoch may have risen since
then, with each transaction: of that one only a lower bound is known, which is enough to be fenced.
"""

import numpy as np

from eoslog.checking.history import Columns, Flags, History, Numbers
from eoslog.checking.operation_kinds import ABORT, COMMIT, FAIL, INIT, NONE, OFFSETS, SEND

_WRITES = (SEND, COMMIT, ABORT, OFFSETS)


class Identities(Columns):
    """One row per operation: what it says of its producer, else what its client's `init` said."""

    transactional_id: Numbers
    producer_id: Numbers
    epoch: Numbers  # It is this one, or a greater one if the operation does not say it.


def identities_of(history: History) -> Identities:
    """What each operation wrote under; what contradicts the `init` is left as it was said."""
    ops = history.ops
    inits = (ops.kind == INIT) & (ops.outcome != FAIL)
    if not inits.any():
        return Identities(
            transactional_id=ops.transactional_id, producer_id=ops.producer_id, epoch=ops.epoch
        )
    last = _last_of_client(history, inits)
    rows = np.flatnonzero(np.isin(ops.kind, _WRITES) & (last != NONE))
    init = last[rows]
    fits = _agree(ops.transactional_id[rows], ops.transactional_id[init])
    fits &= _agree(ops.producer_id[rows], ops.producer_id[init])
    fits &= (ops.epoch[rows] == NONE) | (ops.epoch[rows] >= ops.epoch[init])
    rows, init = rows[fits], init[fits]

    def filled(column: Numbers) -> Numbers:
        found = column.copy()
        found[rows] = np.where(column[rows] == NONE, column[init], column[rows])
        return found

    return Identities(
        transactional_id=filled(ops.transactional_id),
        producer_id=filled(ops.producer_id),
        epoch=filled(ops.epoch),
    )


def _agree(one: Numbers, other: Numbers) -> Flags:
    agreed: Flags = (one == other) | (one == NONE) | (other == NONE)
    return agreed


def _last_of_client(history: History, chosen: Flags) -> Numbers:
    """For each operation: the last chosen one of its client before it, or NONE."""
    ops = history.ops
    order = np.lexsort((np.arange(len(ops)), ops.begin, ops.client))
    at = np.maximum.accumulate(np.where(chosen[order], np.arange(len(order)), NONE))
    found = np.full(len(ops), NONE, dtype=np.int64)
    there = np.flatnonzero(at != NONE)
    same = ops.client[order[at[there]]] == ops.client[order[there]]
    found[order[there[same]]] = order[at[there[same]]]
    return found
