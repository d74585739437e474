"""Parts that the producers of one store share."""

from typing import NamedTuple

from eoslog.groups.offsets import GroupOffsets
from eoslog.producer.linger import LingerTimer
from eoslog.storage.engine import Engine
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.coordinator import TransactionCoordinator
from eoslog.transactions.named_producers import NamedProducers
from eoslog.transactions.producer_ids import ProducerIds


class ProducerParts(NamedTuple):
    """The parts of an open store that producers use."""

    engine: Engine
    state_log: CompactedLog
    producer_ids: ProducerIds
    coordinator: TransactionCoordinator
    names: NamedProducers
    group_offsets: GroupOffsets
    linger: LingerTimer
