"""Settings: Kafka's names, their ranges, and what is refused by name."""

import pytest

from eoslog.common.config import (
    _FIXED,
    BROKER_NAMES,
    CLEANUP_POLICY,
    CONSUMER_SETTINGS,
    NO_LIMIT,
    PRODUCER_SETTINGS,
    STORE_SETTINGS,
    TOPIC_SETTINGS,
    TRANSACTIONAL_PRODUCER_SETTINGS,
    parse_config,
    parse_store_config,
    parse_topic_config,
    with_defaults,
)
from eoslog.errors import InvalidConfigError

EVERY = {**TOPIC_SETTINGS, **STORE_SETTINGS, **PRODUCER_SETTINGS, **CONSUMER_SETTINGS}


@pytest.mark.parametrize("setting", EVERY.values(), ids=EVERY)
def test_a_setting_takes_its_default_as_number_and_as_text(setting):
    if setting.choices:
        assert [setting.parse(choice) for choice in setting.choices] == list(setting.choices)
        return
    assert setting.parse(setting.default) == setting.default
    text = str(setting.default).lower()
    assert setting.parse(text) == setting.default
    assert type(setting.parse(text)) is type(setting.default)


@pytest.mark.parametrize(
    "setting", [one for one in EVERY.values() if type(one.default) is int], ids=lambda one: one.name
)
def test_a_number_keeps_to_its_range(setting):
    assert setting.parse(setting.smallest) == setting.smallest
    assert setting.parse(setting.largest) == setting.largest
    below = setting.smallest - 1
    if setting.unlimited:
        assert setting.parse(str(NO_LIMIT)) == NO_LIMIT
        below = min(below, NO_LIMIT - 1)
    for wrong in (below, setting.largest + 1, "", "1.5", 1.5, None, True, b"1"):
        with pytest.raises(InvalidConfigError, match=setting.name.replace(".", r"\.")):
            setting.parse(wrong)


def test_an_expiry_of_offsets_at_once_is_refused():
    with pytest.raises(InvalidConfigError, match=r"retention\.minutes must be .* or -1 for no"):
        parse_store_config({"offsets.retention.minutes": 0})


def test_a_truth_value_is_one():
    idempotence = PRODUCER_SETTINGS["enable.idempotence"]
    assert [idempotence.parse(value) for value in (True, "TRUE", "false")] == [True, True, False]
    for wrong in (1, 0, "yes", None):
        with pytest.raises(InvalidConfigError):
            idempotence.parse(wrong)


@pytest.mark.parametrize("name", _FIXED)
def test_what_is_not_carried_out_is_refused_unless_it_describes_it(name):
    with pytest.raises(InvalidConfigError, match="does not support"):
        parse_config({name: "something else"}, TOPIC_SETTINGS, "topic")
    for value in _FIXED[name]:
        assert parse_config({name: value}, TOPIC_SETTINGS, "topic") == {}


@pytest.mark.parametrize("config", [{"enable.auto.commit": "true"}, {"auto.commit.interval.ms": 5}])
def test_commits_by_a_timer_are_refused_with_the_reason_and_what_to_do(config):
    words = r"a crash then loses.*done twice\. Call commit\(\).*read_process_write"
    with pytest.raises(InvalidConfigError, match=words):
        parse_config({"enable.auto.commit": False} | config, CONSUMER_SETTINGS, "consumer")


def test_an_unknown_name_brings_the_nearest():
    with pytest.raises(InvalidConfigError, match=r"did you mean 'segment\.bytes'"):
        parse_topic_config({"segment.byte": 1})
    with pytest.raises(InvalidConfigError, match=r"is no topic setting$"):
        parse_topic_config({"zzzzzz": 1})
    with pytest.raises(InvalidConfigError, match="must be a str"):
        parse_topic_config({7: 1})


def test_a_setting_of_another_brings_its_owner():
    with pytest.raises(InvalidConfigError, match=r"one of a transactional producer$"):
        parse_config({"transaction.timeout.ms": 1}, PRODUCER_SETTINGS, "producer")
    with pytest.raises(InvalidConfigError, match=r"one of a producer$"):
        parse_config({"linger.ms": 1}, TRANSACTIONAL_PRODUCER_SETTINGS, "transactional producer")


def test_a_stores_settings_are_its_own_and_its_topics_defaults():
    own, topics = parse_store_config({"log.segment.bytes": "2048", "eoslog.spare.segments": 3})
    assert topics == {"segment.bytes": 2048}
    assert own == {
        **{name: one.default for name, one in STORE_SETTINGS.items()},
        "eoslog.spare.segments": 3,
    }
    assert parse_store_config(None)[1] == {}
    with pytest.raises(InvalidConfigError):
        parse_store_config({"segment.bytes": 2048})


def test_every_brokers_name_stands_for_a_topics_setting():
    assert set(BROKER_NAMES.values()) <= set(TOPIC_SETTINGS)
    assert set(TOPIC_SETTINGS) - {CLEANUP_POLICY} <= set(BROKER_NAMES.values())


def test_a_batch_must_fit_into_a_segment():
    with pytest.raises(InvalidConfigError, match=r"above segment\.bytes"):
        parse_topic_config({"segment.bytes": 2048, "max.message.bytes": 4096})
    assert parse_topic_config({"segment.bytes": 4096, "max.message.bytes": 4096})


def test_defaults_fill_what_was_not_given():
    assert with_defaults({"linger.ms": 0}, PRODUCER_SETTINGS) == {
        "batch.size": 16_384,
        "linger.ms": 0,
        "enable.idempotence": True,
    }
