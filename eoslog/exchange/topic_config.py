"""The settings of a topic as Kafka has them, from those that hold in a store."""

from collections.abc import Mapping

from eoslog.common.config import CLEANUP_POLICY, INT64_MAX

# Defaults of Kafka 4.x. What holds in a store is written out where it is something else.
KAFKA_DEFAULTS: Mapping[str, int | str] = {
    CLEANUP_POLICY: "delete",
    "index.interval.bytes": 4096,
    "max.message.bytes": 1_048_588,
    "message.timestamp.after.max.ms": 3_600_000,
    "message.timestamp.before.max.ms": INT64_MAX,
    "retention.bytes": -1,
    "retention.ms": 604_800_000,
    "segment.bytes": 1 << 30,
    "segment.index.bytes": 10_485_760,
    "segment.ms": 604_800_000,
}
# A broker that finds less does not start.
SEGMENT_BYTES_MIN = 1 << 20
MIN_REPLICAS = "min.insync.replicas"


def kafka_topic_config(effective: Mapping[str, int | str]) -> dict[str, str]:
    """Return the settings that a broker needs to treat a topic as it was treated before."""
    config = {**effective}
    config["segment.bytes"] = max(int(config["segment.bytes"]), SEGMENT_BYTES_MIN)
    return {name: str(value) for name, value in config.items() if KAFKA_DEFAULTS.get(name) != value}
