"""A test that fails because Spark did not wait for a process to begin is run again."""

import pytest

attempts = []


@pytest.fixture
def number():
    attempts.append("made")
    yield len(attempts)
    attempts.append("ended")


def test_it_has_new_fixtures(number):
    assert number > 1, "Python worker failed to connect back"
    assert attempts == ["made", "ended", "made"]
