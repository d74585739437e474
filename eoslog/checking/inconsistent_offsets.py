"""Inconsistent offsets: an offset that holds two records, a record in a partition not its own."""

import numpy as np

from eoslog.checking.anomaly import Anomaly, Found
from eoslog.checking.evidence import Evidence
from eoslog.checking.groups_of_rows import distinct, rows_of
from eoslog.checking.operation_kinds import NONE

KIND = "inconsistent offsets"


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
                KIND, what, [evidence.send_op(writer), evidence.place_op(place)]
            )
        key = int(keys[at])
        places = range(len(rows))[rows_of(rows.key, key)]
        values = " and ".join(evidence.value(int(rows.value[place])) for place in places)
        what = f"{evidence.key(key)} holds {values}"
        return evidence.anomaly(KIND, what, [evidence.place_op(place) for place in places])

    return evidence.found(KIND, range(len(keys) + len(strayed)), show)
