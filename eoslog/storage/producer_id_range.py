"""Range of producer ids that a store gives out, and which of them its logs hold already.

A Kafka cluster counts its ids from 0, and a store from 2**40: logs that move from one to the other
hold no id twice. Ids from 2**62 on are the random ones of staged files. A log may also come from
another store, whose ids are of the same range; so ids are given out above all that were found.
"""

from eoslog.bindings.shared_page import (
    COUNTER_PRODUCER_IDS,
    COUNTER_PRODUCER_IDS_FOUND,
    SharedPage,
)
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC
from eoslog.common.topic_partition import TopicPartition

FIRST_PRODUCER_ID = 1 << 40
STAGED_PRODUCER_ID_MIN = 1 << 62


def is_of_staged_job(where: TopicPartition, producer_id: int) -> bool:
    """True for a transaction with the offsets that a staged job commits.

    The job was decided before they were appended: such a transaction is never aborted.
    """
    return where.topic == CONSUMER_OFFSETS_TOPIC and producer_id >= STAGED_PRODUCER_ID_MIN


class FoundProducerIds:
    """The highest producer id that was found in the logs of a store, by any of its processes."""

    def __init__(self, shared: SharedPage) -> None:
        self._shared = shared
        self._all_found = False

    def note(self, producer_id: int) -> None:
        """A log has this id. Takes no lock."""
        if FIRST_PRODUCER_ID <= producer_id < STAGED_PRODUCER_ID_MIN:
            self._shared.lift_counter(COUNTER_PRODUCER_IDS, producer_id + 1)

    @property
    def upper_bound(self) -> int:
        """Above all ids that were noted; 0 if there are none. Takes no lock."""
        return self._shared.counter(COUNTER_PRODUCER_IDS)

    @property
    def all_found(self) -> bool:
        """True once a process of the session has looked at all logs."""
        if not self._all_found:
            self._all_found = self._shared.counter(COUNTER_PRODUCER_IDS_FOUND) > 0
        return self._all_found

    def note_all_found(self) -> None:
        """Note that all logs were looked at; a log that is opened from now on is noted then."""
        self._all_found = True
        self._shared.raise_counter(COUNTER_PRODUCER_IDS_FOUND)
