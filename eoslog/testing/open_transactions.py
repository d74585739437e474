"""Transactions that are open in a store, as text for the one who forgot them."""

from eoslog.producer.producer import ProducerInternals
from eoslog.producer.transaction_manager import TransactionManager
from eoslog.producer.transaction_states import OPEN
from eoslog.producer.transactional_producer import TransactionalProducer
from eoslog.store.store import Store, parts_of


def open_transactions(store: Store) -> list[str]:
    """Return a line for each transaction that is open or prepared: its id, its producer, its age.

    Those of dead processes are ended first, as the store does by itself a second later. One with no
    record in the log yet counts if its producer is in memory.
    """
    parts = parts_of(store)
    parts.files.transactions.recover_dead_peers()
    found = {
        one.transactional_id: _described(store, one.transactional_id)
        for one in store.transactions(states=["Ongoing"])
    }
    for producer in parts.producers():
        if isinstance(producer, TransactionalProducer):
            manager = ProducerInternals(producer).transactions
            name = producer.transactional_id
            is_open = manager is not None and manager.state in OPEN
            if manager is not None and is_open and not _is_over(manager) and name not in found:
                age = "without a record" if manager.age_ms < 0 else _since(manager.age_ms)
                found[name] = (
                    f"transactional id {name!r}, producer id {producer.producer_id}, epoch "
                    f"{producer.producer_epoch}: open {age}; nothing of it is in the log"
                )
    return [found[name] for name in sorted(found)]


def _is_over(manager: TransactionManager) -> bool:
    """Return True if another producer, or the store, ended what this one has open."""
    return manager.owner.fenced_because is not None


def _described(store: Store, transactional_id: str) -> str:
    one = store.describe_transaction(transactional_id)
    partitions = ", ".join(f"{topic}-{partition}" for topic, partition in one.topic_partitions)
    state = "prepared" if one.prepared else "open"
    return (
        f"transactional id {transactional_id!r}, producer id {one.producer_id}, epoch "
        f"{one.producer_epoch}: {state} {_since(one.transaction_duration_ms or 0)}, in {partitions}"
    )


def _since(age_ms: int) -> str:
    return f"for {age_ms} ms" if age_ms < 1000 else f"for {age_ms / 1000:.1f} s"
