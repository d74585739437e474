"""Checker of histories of a log's clients: `check` reads histories, `Recorder` writes them.

from eoslog.checking import Recorder, check

with Recorder("history.jsonl") as recorder:
    producer = recorder.producer(store.producer())
    ...
report = check(["history.jsonl"])

`docs/checking.md` defines the format of a history and each anomaly. Histories of any log can be
checked; no module here opens a store.
"""

from eoslog.checking.check import ANOMALIES, Report, check
from eoslog.checking.evidence import Anomaly, Found, OperationReference
from eoslog.checking.history import HistoryError
from eoslog.checking.recorded_call import Call
from eoslog.checking.recorded_consumer import RecordedConsumer
from eoslog.checking.recorded_producer import RecordedProducer
from eoslog.checking.recorder import Recorder

__all__ = [
    "ANOMALIES",
    "Anomaly",
    "Call",
    "Found",
    "HistoryError",
    "OperationReference",
    "RecordedConsumer",
    "RecordedProducer",
    "Recorder",
    "Report",
    "check",
]
