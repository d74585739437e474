"""Reason for a partition's last stable offset: see `Store.explain_last_stable_offset`.

Readers of committed data wait there for the oldest transaction that is open, or for a staged job.
"""

from typing import NamedTuple

from eoslog.bindings.log_transactions import OpenTransaction
from eoslog.common.topic_partition import TopicPartition
from eoslog.consumer.positions import count_visible
from eoslog.session.process_slots import ProcessSlot, ProcessSlots
from eoslog.staging.application import ApplicationRecord
from eoslog.staging.job import bounds_of_record
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.files import StoreFiles


class LastStableOffset(NamedTuple):
    """Last stable offset of a partition, and what holds it there.

    Attributes
    ----------
    topic, partition, last_stable_offset, log_end_offset
    waiting_records : int
        Records from the last stable offset on; above 100,000 the number of offsets.
    cause : {"none", "ongoing", "prepared", "decided", "hanging", "staged job"}
        Nothing holds it; a transaction that its producer will end; one that waits for
        `commit_prepared` or `abort_prepared`; one whose marker is not in the partition yet; one
        that no transactional id has, which nothing ends; a job that is being made part of the log.
    transactional_id : str or None
        The id of the transaction; of a staged job the application.
    producer_id, producer_epoch, transaction_state, timeout_ms, start_ms
        Those of the transaction; None if unknown. Of a hanging one `start_ms` is its last write.
    process : ProcessSlot or None
        The process that has the id, or had it.
    process_is_alive : bool
        False if there is no such process, or it died or closed the store.
    aborted_ms : int or None
        When the timeout of an ongoing transaction is over, and it is aborted.
    open_transactions : int
        Transactions that are open in the partition, with this one.
    """

    topic: str
    partition: int
    last_stable_offset: int
    log_end_offset: int
    waiting_records: int
    cause: str = "none"
    transactional_id: str | None = None
    producer_id: int | None = None
    producer_epoch: int | None = None
    transaction_state: str | None = None
    timeout_ms: int | None = None
    start_ms: int | None = None
    process: ProcessSlot | None = None
    process_is_alive: bool = False
    aborted_ms: int | None = None
    open_transactions: int = 0


def explain(files: StoreFiles, log: UnifiedLog) -> LastStableOffset:
    """Return what holds one partition's last stable offset. Raises LogClosedError, StoreError."""
    open_ones = log.open_transactions()
    held, end = log.hold_offset, log.high_watermark
    stable = open_ones[0].first_offset if open_ones else end
    by_job = 0 <= held < stable
    if by_job:
        stable, waiting = held, end - held  # What a job appends is read by no reader yet.
    else:
        waiting = count_visible(log, stable, end, "read_uncommitted")
    found = LastStableOffset(*log.topic_partition, stable, end, waiting)
    found = found._replace(open_transactions=len(open_ones))
    if by_job:
        return _with_job(found, files, log.topic_partition)
    return _with_transaction(found, files, open_ones[0]) if open_ones else found


def _with_job(
    found: LastStableOffset, files: StoreFiles, where: TopicPartition
) -> LastStableOffset:
    for name in files.state_log.prepared_applications():
        record = ApplicationRecord.read_by_name(files.state_log, name)
        if record is not None and where in bounds_of_record(record.job or {"topics": {}}):
            found = found._replace(transactional_id=record.app_id)
            found = _with_process(found, files.session.slots, record.process)
    return found._replace(cause="staged job")


def _with_transaction(
    found: LastStableOffset, files: StoreFiles, oldest: OpenTransaction
) -> LastStableOffset:
    where = TopicPartition(found.topic, found.partition)
    found = found._replace(
        cause="hanging", producer_id=oldest.producer_id, producer_epoch=oldest.producer_epoch
    )
    known = files.transaction_admin.undecided(where, oldest.producer_id)
    if known is None:
        return found._replace(start_ms=oldest.last_timestamp_ms)
    cause = "decided" if known.is_decided else "prepared" if known.prepared else "ongoing"
    found = found._replace(
        cause=cause,
        transactional_id=known.transactional_id,
        transaction_state=known.state,
        timeout_ms=known.timeout_ms,
        start_ms=known.start_ms,
        aborted_ms=known.start_ms + known.timeout_ms if cause == "ongoing" else None,
    )
    return _with_process(found, files.session.slots, known.owner)


def _with_process(
    found: LastStableOffset, slots: ProcessSlots, slot: bytes | None
) -> LastStableOffset:
    process = slots.find(slot) if slot else None
    if process is None or not process.process_id:
        return found  # It is forgotten.
    return found._replace(process=process, process_is_alive=slots.alive(process.slot))
