"""Checking what clients of a log saw: `check` reads histories, `Recorder` writes them.

from eoslog.checking import Recorder, check

with Recorder("history.jsonl") as recorder:
    producer = recorder.producer(store.producer())
    ...
report = check(["history.jsonl"])

The format of a history, and what each anomaly is: docs/checking.md. Histories of any log can be
checked; nothing here opens a store.
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
