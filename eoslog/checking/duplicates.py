"""Duplicates: a record that is in the log twice, both times for good."""

import numpy as np

from eoslog.checking.anomaly import Anomaly, Found
from eoslog.checking.evidence import Evidence

KIND = "duplicate"


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
        return evidence.anomaly(KIND, f"{evidence.value(value)} is at {where}", ops)

    return evidence.found(KIND, values, show)
