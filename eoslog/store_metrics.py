"""What a store says of itself: `Store.metrics`. Nothing is opened or read for it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eoslog.store import Store


def store_metrics(store: "Store") -> dict[str, Any]:
    """Counts and sizes; `partitions` and what follows it tell of the open partitions alone."""
    opened = store._partitions.opened()
    return {
        "topics": len(store.topics()),
        "partitions": len(opened),
        "partitions_unrecovered": len(store._partitions.unrecovered),
        "partitions_failed": sum(partition.failed for partition in opened),
        "segments": sum(partition.segment_count for partition in opened),
        "size_bytes": sum(partition.size_bytes for partition in opened),
        "cut_bytes": store._partitions.cut_bytes,
        "producers_in_memory": sum(partition.producer_count for partition in opened),
        "producers_evicted": sum(partition.evicted_producer_count for partition in opened),
        "producer_memory_bytes": sum(partition.producer_memory_bytes for partition in opened),
        "producer_rows": store._files.rows.producer_rows(),
        "damaged_files": list(store._files.checkpoints.damaged),
        "checkpointer": store._checkpointer.metrics(),
    }
