"""Parts that the producers of one store share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eoslog.groups.group_offsets import GroupOffsets
from eoslog.producer.linger import LingerTimer
from eoslog.staging.staged_commit import StagedCommits
from eoslog.storage.engine import Engine
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.named_producers import NamedProducers
from eoslog.transactions.producer_ids import ProducerIds
from eoslog.transactions.transaction_coordinator import TransactionCoordinator


@dataclass(frozen=True, slots=True, eq=False)
class ProducerParts:
    """The parts of an open store that producers use; `live_producers()` are those not closed."""

    engine: Engine
    state_log: CompactedLog
    producer_ids: ProducerIds
    coordinator: TransactionCoordinator
    names: NamedProducers
    group_offsets: GroupOffsets
    staged: StagedCommits
    linger: LingerTimer
    live_producers: Callable[[], Sequence[object]]
