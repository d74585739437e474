"""The internal face of producers. It loads nothing of them: a process may have none."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eoslog.bindings.accumulator import PartitionBuffer
    from eoslog.producer.producer import Producer


class ProducerInternals:
    """The internal face of a producer, for its store and its asyncio client."""

    def __init__(self, producer: "Producer") -> None:
        self.transactions = producer._transactions
        self.check_appendable = producer._check_appendable
        self.forget_topic = producer._forget_deleted
        self.follow_topics = producer._follow_alterations
        self.leave_to_parent = producer._leave_to_parent
        self._producer = producer

    def append_batch(self, batch: "PartitionBuffer") -> None:
        """Append a batch that a client gathered itself."""
        self._producer._append_batch(batch)


def notice_replacements(producers: "Iterable[Producer]") -> None:
    """Have the producers whose transactional id was taken from them refuse records from now on.

    Takes no lock of theirs.
    """
    for producer in producers:
        if producer._transactions is not None:
            producer._transactions.notice_replacement()
