"""The settings of a topic, and those that the log of one of its partitions is opened with."""

from collections.abc import Mapping

from eoslog.common.config import CLEANUP_POLICY, NO_LIMIT, TOPIC_SETTINGS
from eoslog.common.durability import Durability
from eoslog.storage.topic_registry import TopicDescription

# How large the pages are that a segment is filled with ahead of its batches. A sync writes whole
# pages, so they are small where each append is synced, and large where bulk speed is all.
_FILL_BYTES: dict[Durability, int] = {"always": 1 << 16, "commit": 1 << 16, "process": 1 << 20}
# Of the internal topics a commit syncs a record or two at a time.
_INTERNAL_FILL_BYTES = 1 << 14
# Kafka's segment size of its own state topics. A record may be a job's whole manifest.
_INTERNAL_TOPIC_CONFIG = {"segment.bytes": 104_857_600, "max.message.bytes": 67_108_864}


def cleanup_policy_of(topic: TopicDescription) -> str:
    """Return Kafka's cleanup policy of a topic's old records: "delete", "compact", or both."""
    return str(topic.config.get(CLEANUP_POLICY, TOPIC_SETTINGS[CLEANUP_POLICY].default))


def is_compacted(topic: TopicDescription) -> bool:
    """True if offsets may be missing anywhere in the topic."""
    return "compact" in cleanup_policy_of(topic)


def settings_of(topic: TopicDescription, topic_defaults: Mapping[str, int]) -> dict[str, int]:
    """A topic's settings that are numbers: its own, else the store's, else the defaults."""
    defaults = {
        name: int(setting.default)
        for name, setting in TOPIC_SETTINGS.items()
        if isinstance(setting.default, int)
    }
    own = {name: int(one) for name, one in topic.config.items() if name != CLEANUP_POLICY}
    config = {**defaults, **topic_defaults, **own}
    if topic.internal:
        config = {**defaults, **_INTERNAL_TOPIC_CONFIG}
    if cleanup_policy_of(topic) == "compact":
        # The newest record of each key holds, however old it is.
        config["retention.ms"] = config["retention.bytes"] = NO_LIMIT
    # A batch has to fit into a segment.
    config["max.message.bytes"] = min(config["max.message.bytes"], config["segment.bytes"])
    return config


def log_settings(
    topic: TopicDescription,
    topic_settings: Mapping[str, int],
    store_settings: Mapping[str, int],
    durability: Durability,
    holes_below: int,
) -> dict[str, int]:
    """Return the settings that the log of a topic's partition is opened with."""
    fill_bytes = _FILL_BYTES[durability]
    if topic.internal and durability != "process":
        fill_bytes = _INTERNAL_FILL_BYTES
    return {
        **topic_settings,
        "eoslog.spare.segments": 0 if topic.internal else store_settings["eoslog.spare.segments"],
        "eoslog.contiguous": not is_compacted(topic),
        "eoslog.holes.below": holes_below,
        "eoslog.fill.bytes": fill_bytes,
    }
