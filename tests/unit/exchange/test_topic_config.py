"""Settings of topics for a broker."""

from eoslog.common.config import TOPIC_SETTINGS
from eoslog.exchange.topic_config import KAFKA_DEFAULTS, kafka_topic_config
from eoslog.storage.topic_registry import new_topic, settings_of


def config_of(**config: int | str) -> dict[str, str]:
    given = {name.replace("_", "."): value for name, value in config.items()}
    return kafka_topic_config(settings_of(new_topic("t", 1, given), {}))


def test_the_defaults_that_differ_from_kafkas_are_written_out():
    assert config_of() == {
        "message.timestamp.after.max.ms": "9223372036854775807",
        "retention.ms": "-1",
    }


def test_what_is_as_in_kafka_is_not_written():
    assert "retention.ms" not in config_of(retention_ms=604_800_000)
    assert config_of(retention_bytes=5)["retention.bytes"] == "5"


def test_a_segment_is_no_smaller_than_kafka_allows():
    assert config_of(segment_bytes=4096)["segment.bytes"] == "1048576"
    assert config_of(segment_bytes=4096)["max.message.bytes"] == "4096"
    assert "segment.bytes" not in config_of(segment_bytes=1 << 30)


def test_each_setting_of_a_topic_is_known():
    others = dict.fromkeys(TOPIC_SETTINGS, -2) | {"segment.bytes": 1 << 21}
    assert kafka_topic_config(others).keys() == TOPIC_SETTINGS.keys()
    assert set(KAFKA_DEFAULTS) == set(TOPIC_SETTINGS)
