"""Places where each record was seen: one row per value at an offset of a partition.

A place is known from a poll that returned it, or from a send that was answered with the offset. Its
writer is the send that put the record there, as far as that is certain: the send that was answered
with this place, else the only try of the value, else the only try that may have taken effect.
"""

from dataclasses import dataclass

import numpy as np

from eoslog.checking.groups_of_rows import (
    any_of,
    greatest,
    group_numbers,
    least,
    place_keys,
    same_as_before,
)
from eoslog.checking.history import (
    FAIL,
    NEVER_NS,
    NONE,
    OFFSET_BITS,
    OFFSET_MAX,
    OK,
    READ_COMMITTED,
    Columns,
    Flags,
    History,
    Numbers,
)
from eoslog.checking.transactions import Transactions

# Which sends may have written a record: two sends of one value are two tries to write it once.
#
# A send that is repeated may be answered with what an earlier try of it wrote. So a record may be
# there since the first of its tries began, unless the others certainly wrote nothing.


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


class Places(Columns):
    """One row per place, in the order of partitions and offsets."""

    key: Numbers
    value: Numbers
    writer: Numbers  # Row of the sends; NONE where it is not certain.
    answered: Numbers  # The send that was answered with this place; NONE without one.
    seen_committed: Flags  # By a poll under read_committed.
    seen: Flags  # By any poll.
    committed: Flags  # Certainly not of an aborted transaction.
    first_read: Numbers  # A row of the reads: the first, if any, under read_committed.

    @property
    def partition(self) -> Numbers:
        return self.key >> OFFSET_BITS

    @property
    def offset(self) -> Numbers:
        return self.key & OFFSET_MAX


@dataclass
class RecordPlaces:
    """The places, and which place each record of a poll and each answered send has."""

    rows: Places
    of_read: Numbers
    of_send: Numbers  # NONE for a send that was not answered with an offset.
    value_seen: Flags  # Per value: a reader that shows that it is in the log has it.
    value_seen_at_all: Flags  # Per value: any reader has it.


def record_places(history: History, transactions: Transactions) -> RecordPlaces:
    """Find all places; what they prove of transactions is noted in `transactions`."""
    sends, reads, ops = history.sends, history.reads, history.ops
    answered = np.flatnonzero((sends.offset != NONE) & (ops.outcome[sends.op] == OK))
    keys = np.concatenate(
        [
            place_keys(reads.partition, reads.offset),
            place_keys(sends.partition[answered], sends.offset[answered]),
        ]
    )
    values = np.concatenate([reads.value, sends.value[answered]])
    order = np.lexsort((values, keys))
    same = same_as_before(keys[order], values[order])
    of_row = np.empty(len(order), dtype=np.int64)
    of_row[order] = group_numbers(same)
    first = order[~same]
    count = len(first)
    of_read, of_answered = of_row[: len(reads)], of_row[len(reads) :]
    of_send = np.full(len(sends), NONE, dtype=np.int64)
    of_send[answered] = of_answered
    committed_read = ops.isolation[reads.op] == READ_COMMITTED
    everyone = np.ones(len(reads), dtype=bool)
    answer = least(of_answered, answered, count)
    places = Places(
        key=keys[first],
        value=values[first],
        writer=np.where(answer == NEVER_NS, NONE, answer),
        answered=np.where(answer == NEVER_NS, NONE, answer),
        seen_committed=any_of(of_read, committed_read, count),
        seen=any_of(of_read, everyone, count),
        committed=np.zeros(count, dtype=bool),
        first_read=_first_reads(of_read, committed_read, count),
    )
    _find_writers(history, transactions, places)
    _note_commits(history, transactions, places, of_read, committed_read)
    places.committed = _certainly_committed(history, transactions, places)
    plain = np.ones(len(history.names.values), dtype=bool)
    plain[sends.value[ops.transaction[sends.op] != NONE]] = False
    value_count = len(history.names.values)
    seen_at_all = any_of(places.value, places.seen, value_count)
    value_seen = any_of(places.value, places.seen_committed, value_count) | (seen_at_all & plain)
    return RecordPlaces(places, of_read, of_send, value_seen, seen_at_all)


def _first_reads(of_read: Numbers, committed_read: Flags, count: int) -> Numbers:
    rows = np.arange(len(of_read))
    first = least(of_read[committed_read], rows[committed_read], count)
    anyone = least(of_read, rows, count)
    found = np.where(first == NEVER_NS, anyone, first)
    return np.where(found == NEVER_NS, NONE, found)


def _find_writers(history: History, transactions: Transactions, places: Places) -> None:
    """Find the writers of places that no send was answered with."""
    sends, ops = history.sends, history.ops
    value_count = len(history.names.values)
    tries = np.bincount(sends.value, minlength=value_count)
    only = least(sends.value, np.arange(len(sends)), value_count)
    open_places = places.writer == NONE
    single = open_places & (tries[places.value] == 1)
    places.writer[single] = only[places.value[single]]
    several = np.flatnonzero(open_places & (tries[places.value] > 1))
    if not len(several):
        return
    order = np.argsort(sends.value, kind="stable")
    starts = np.concatenate([[0], np.cumsum(tries)])
    happened = ops.outcome[sends.op] != FAIL
    possible = happened & transactions.is_possible(ops.transaction[sends.op])
    for place in several:
        value = places.value[place]
        rows = order[starts[value] : starts[value + 1]]
        able = (possible if places.seen_committed[place] else happened)[rows]
        here = rows[able & (sends.offset[rows] == NONE)]
        if len(here) == 1:
            places.writer[place] = here[0]
        elif not able.any():
            # None of the tries can be the one: whichever it is, this record must not be here.
            places.writer[place] = rows[-1]


def _note_commits(
    history: History,
    transactions: Transactions,
    places: Places,
    of_read: Numbers,
    committed_read: Flags,
) -> None:
    """A record of a transaction that a reader of committed data has: it is committed."""
    writers = places.writer[of_read]
    shown = np.flatnonzero(committed_read & (writers != NONE))
    of = history.ops.transaction[history.sends.op[writers[shown]]]
    shown, of = shown[of != NONE], of[of != NONE]
    transactions.commit(of, history.ops.end[history.reads.op[shown]])


def _certainly_committed(history: History, transactions: Transactions, places: Places) -> Flags:
    sends, ops = history.sends, history.ops
    certain = places.seen_committed.copy()
    known = np.flatnonzero(places.writer != NONE)
    writers = places.writer[known]
    of = ops.transaction[sends.op[writers]]
    answered = places.answered[known] != NONE
    happened = ops.outcome[sends.op[writers]] != FAIL
    certain[known] |= answered & transactions.is_committed(of)
    certain[known] |= places.seen[known] & (of == NONE) & happened
    return certain
