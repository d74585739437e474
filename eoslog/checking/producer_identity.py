"""Under which ids operations wrote that do not say so: those of their client's own last `init`.

A client is one producer, so what it was given by an `init` is what it writes under until the next.
After one of unknown outcome only the name that it asked for is known.
"""

import numpy as np

from eoslog.checking.history import Flags, History, Numbers
from eoslog.checking.operation_kinds import ABORT, COMMIT, FAIL, INIT, NONE, OFFSETS, SEND

_WRITES = (SEND, COMMIT, ABORT, OFFSETS)


def name_producers(history: History) -> None:
    """Fill in what operations leave out, where it does not contradict what they say."""
    ops = history.ops
    inits = (ops.kind == INIT) & (ops.outcome != FAIL)
    if not inits.any():
        return
    last = _last_of_client(history, inits)
    rows = np.flatnonzero(np.isin(ops.kind, _WRITES) & (last != NONE))
    init = last[rows]
    # All is compared before anything is filled in.
    of_id = _agree(ops.transactional_id[rows], ops.transactional_id[init])
    of_producer = _agree(ops.producer_id[rows], ops.producer_id[init])
    of_producer &= _agree(ops.epoch[rows], ops.epoch[init])
    fits = of_id & of_producer
    rows, init = rows[fits], init[fits]
    for column in (ops.transactional_id, ops.producer_id, ops.epoch):
        column[rows] = np.where(column[rows] == NONE, column[init], column[rows])


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
