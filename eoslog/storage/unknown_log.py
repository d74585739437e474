"""Whether a log is one of which this store knows nothing.

A log that eoslog writes is known from its first opening on: by its control page, from the first
persisted producers on by LMDB, from the first checkpoint on by that. One that is not was moved
here from elsewhere, as a Kafka broker's, or all that was derived from it is lost.
"""

from eoslog.common.topic_name import TRANSACTION_STATE_TOPIC
from eoslog.common.topic_partition import TopicPartition
from eoslog.fs.os_errors import named_os_errors
from eoslog.session.store_paths import StorePaths
from eoslog.storage.offset_checkpoints import OffsetCheckpoints
from eoslog.storage.producer_state_store import ProducerStateStore, StateStoreDamagedError


def is_unknown_log(
    paths: StorePaths,
    checkpoints: OffsetCheckpoints,
    rows: ProducerStateStore,
    topic_id: str,
    where: TopicPartition,
) -> bool:
    """Whether a partition has batches, and no checkpoint, control page or row knows of it.

    To be asked before the partition is opened, which makes its control page.
    """
    if checkpoints.knows(where) or has_control_page(paths, where):
        return False
    return has_batches(paths, where) and not _has_rows(rows, topic_id, where)


def has_control_page(paths: StorePaths, where: TopicPartition) -> bool:
    """Whether the partition was ever opened; the page goes with the topic alone."""
    page = paths.control(where)
    with named_os_errors(f"looking at {page}"):
        return page.exists()


def has_batches(paths: StorePaths, where: TopicPartition) -> bool:
    """Whether any segment file holds something."""
    path = paths.partition(where)
    with named_os_errors(f"looking at {path}"):
        return any(one.stat().st_size for one in path.glob("*.log"))


def _has_rows(rows: ProducerStateStore, topic_id: str, where: TopicPartition) -> bool:
    try:
        if where.topic == TRANSACTION_STATE_TOPIC:
            return rows.read_applied(where.partition) is not None
        return rows.read_head(topic_id, where.partition) is not None
    except StateStoreDamagedError:
        return False  # It was begun anew, empty.
