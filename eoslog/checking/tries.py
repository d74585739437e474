"""Which sends may have written a record: two sends of one value are two tries to write it once.

A send that is repeated may be answered with what an earlier try of it wrote. So a record may be
there since the first of its tries began, unless the others certainly wrote nothing.
"""

import numpy as np

from eoslog.checking.groups_of_rows import greatest, least
from eoslog.checking.history import Columns, Flags, History, Numbers
from eoslog.checking.operation_kinds import FAIL, NONE
from eoslog.checking.transactions import Transactions


class Tries(Columns):
    """One row per record sent, as the sends have them."""

    turn: Numbers  # Its place among all sends, those of a client in the client's order.
    first_turn: Numbers  # Of the earliest try; NONE if one is of another client.
    first_begin: Numbers  # When the earliest try began.
    single: Flags  # Nothing else can have written the record.


def tries_of(history: History, transactions: Transactions) -> Tries:
    """The tries of each record sent."""
    sends, ops = history.sends, history.ops
    client, begin = ops.client[sends.op], ops.begin[sends.op]
    rows = np.arange(len(sends))
    turn = np.empty(len(sends), dtype=np.int64)
    turn[np.lexsort((rows, sends.op, begin, client))] = rows
    possible = (ops.outcome[sends.op] != FAIL) & transactions.is_possible(ops.transaction[sends.op])
    value_count = len(history.names.values)
    count = np.bincount(sends.value[possible], minlength=value_count)
    single = count[sends.value] <= possible
    several = np.flatnonzero(~single)
    if not len(several):
        return Tries(turn=turn, first_turn=turn, first_begin=begin, single=single)
    first_turn, first_begin = turn.copy(), begin.copy()
    able = possible & ~single
    of, value = sends.value[able], sends.value[several]
    first_turn[several] = np.minimum(turn[several], least(of, turn[able], value_count)[value])
    first_begin[several] = np.minimum(begin[several], least(of, begin[able], value_count)[value])
    lowest = least(of, client[able], value_count)[value]
    highest = greatest(of, client[able], value_count, NONE)[value]
    strange = (lowest != client[several]) | (highest != client[several])
    first_turn[several[strange]] = NONE
    return Tries(turn=turn, first_turn=first_turn, first_begin=first_begin, single=single)
