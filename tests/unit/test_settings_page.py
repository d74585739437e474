"""docs/settings.md names every setting with its default, and no other."""

import re
from pathlib import Path

import pytest

from eoslog.common import config

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \|", re.MULTILINE)
ARGUMENTS = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}


def section(title):
    text = PAGE.read_text()
    begin = text.index(f"## {title}\n")
    end = text.find("\n## ", begin)
    rows = ROW.findall(text[begin : end if end > 0 else None])
    return {name: default.strip() for name, default in rows}


@pytest.mark.parametrize(
    ("title", "settings"),
    [
        ("Of a store", config.STORE_SETTINGS),
        ("Of a topic", config.TOPIC_SETTINGS),
        (
            "Of a producer",
            config.TRANSACTIONAL_PRODUCER_SETTINGS | config.PRODUCER_SETTINGS,
        ),
        ("Of a consumer", config.CONSUMER_SETTINGS),
    ],
)
def test_the_page_has_each_setting_and_its_default(title, settings):
    described = section(title)
    expected = {
        name: ARGUMENTS.get(name, str(setting.default))
        for name, setting in settings.items()
        if name != "transactional.id"
    }
    assert described == expected


def test_the_page_has_the_other_default_of_batch_size():
    default = config.TRANSACTIONAL_PRODUCER_SETTINGS["batch.size"].default
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `batch.size` |")]
    assert len(rows) == 1
    assert rows[0].endswith(f"in transactions {default} |")


def test_the_broker_names_of_topic_settings_are_listed():
    text = PAGE.read_text()
    assert [name for name in config.BROKER_NAMES if f"`{name}`" not in text] == []
