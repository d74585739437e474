"""Warnings about work that is tried again: each once, then now and then, with their number."""

import logging

import pytest

from eoslog.common import repeated_warnings
from eoslog.common.repeated_warnings import RepeatedWarnings

LOG = logging.getLogger("eoslog.test")


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(repeated_warnings.time, "monotonic", lambda: now[0])
    return now


def test_each_message_is_logged_once_in_an_interval(caplog, clock):
    log = RepeatedWarnings(LOG)
    for _ in range(100):
        for number in range(3):
            log.warning("%s: cannot be %s", number, "synced")
        log.error("100 % gone")
        clock[0] += 1
    assert caplog.messages == [f"{n}: cannot be synced" for n in range(3)] + ["100 % gone"]
    assert [one.levelname for one in caplog.records] == ["WARNING"] * 3 + ["ERROR"]
    assert {one.funcName for one in caplog.records} == {
        "test_each_message_is_logged_once_in_an_interval"
    }
    clock[0] += repeated_warnings.INTERVAL_S
    caplog.clear()
    log.warning("%s: cannot be %s", 1, "synced")
    assert caplog.messages == ["1: cannot be synced (99 more times in the last 700 s)"]


def test_each_owner_has_its_own(caplog, clock):
    for _ in range(2):
        RepeatedWarnings(LOG).warning("the same")
    assert caplog.messages == ["the same"] * 2


def test_as_many_as_there_are_take_no_memory(caplog, clock, monkeypatch):
    monkeypatch.setattr(repeated_warnings, "WARNINGS_KEPT", 10)
    log = RepeatedWarnings(LOG)
    for number in range(100):
        log.warning("number %d", number)
        log.warning("always")
    assert len(log._known) == 10
    assert caplog.messages.count("always") == 1
