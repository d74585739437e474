"""Every block of Python of docs/testing.md is a file of tests that passes, or fails as it says."""

from __future__ import annotations

import re
from pathlib import Path

pytest_plugins = ["pytester"]
PAGE = Path(__file__).parents[3] / "docs" / "testing.md"


def test_the_blocks_of_the_page_pass(pytester):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    pytester.makepyfile(**{f"test_block_{n}": block for n, block in enumerate(blocks)})
    found = pytester.runpytest_subprocess("-p", "no:benchmark")
    found.assert_outcomes(passed=sum(block.count("def test_") for block in blocks))
    assert len(blocks) >= 5


def test_the_error_of_the_page_is_the_one_that_is_printed(pytester):
    text = re.findall(r"^```text\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)[0]
    pytester.makepyfile(
        """
        def test_orders_arrive(eoslog_store, eoslog_topic):
            producer = eoslog_store.producer(transactional_id="orders")
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(eoslog_topic, b"value")
            producer.flush()
        """
    )
    found = pytester.runpytest_subprocess("-p", "no:benchmark")
    lines = re.sub(r"\d+ m?s", "*", text).splitlines()
    found.stdout.fnmatch_lines([line.replace("[", "[[]") for line in lines], consecutive=True)
