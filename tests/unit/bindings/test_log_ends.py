"""Ends of all open logs at one instant, taken on their control pages."""

import pytest

import eoslog
from eoslog.bindings.log_ends import LogEnds
from eoslog.bindings.shared_page import COUNTER_LOGS_OPENED
from eoslog.store.store import engine_of, parts_of


@pytest.fixture
def store(tmp_path):
    with eoslog.open(tmp_path / "store", create=True, durability="process") as store:
        store.create_topic("t", partitions=3, config={"segment.bytes": 4096})
        yield store


def pages_of(store):
    return sorted(map(str, (store.path / "state" / "control").iterdir()))


def take(store, paths=None, opened=None):
    shared = parts_of(store).files.session.shared
    count = shared.counter(COUNTER_LOGS_OPENED) if opened is None else opened
    ends = LogEnds(pages_of(store) if paths is None else paths, shared, count)
    return ends.take(0.1), ends


def test_they_are_those_of_the_logs(store):
    logs = [engine_of(store).partition("t", number) for number in range(2)]
    for count, log in enumerate(logs):
        for _ in range(10 * count + 1):
            log.append_columns([bytes(900)])
    store.delete_records({logs[1].topic_partition: 6})
    found, ends = take(store)
    assert 0 < ends.held_ns < 3_000_000
    assert ends.broken == []
    assert len(found) == 2
    for path, log in zip(sorted(found), logs, strict=True):
        end = found[path]
        assert end.log_start_offset == log.log_start_offset
        assert end.log_end_offset == log.log_end_offset
        assert end.first_base_offset == log.log.first_base_offset
        assert (end.active_base_offset, end.active_valid_bytes) == log.segment_sizes()[-1]
        assert end.recovery_point == log.recovery_point
        assert not end.failed


def test_a_log_that_was_opened_since_the_count_is_not_missed(store):
    engine_of(store).partition("t", 0)
    paths = pages_of(store)
    opened = parts_of(store).files.session.shared.counter(COUNTER_LOGS_OPENED)
    engine_of(store).partition("t", 1)
    assert take(store, paths, opened)[0] is None
    assert len(take(store)[0]) == 2


def test_what_is_no_page_of_the_session_is_left_out(store, tmp_path):
    engine_of(store).partition("t", 0)
    elsewhere = tmp_path / "other"
    with eoslog.open(elsewhere, create=True) as other:
        other.create_topic("u")
        engine_of(other).partition("u", 0)
        (tmp_path / "short").write_bytes(b"short")
        strange = [*pages_of(other), str(tmp_path / "short"), str(tmp_path / "none")]
        found, _ = take(store, [*strange, *pages_of(store)])
    assert list(found) == pages_of(store)


def test_no_lock_is_left_held(store):
    log = engine_of(store).partition("t", 0)
    for _ in range(3):
        take(store)
        take(store, opened=0)
        log.append_columns([b"v"])
    assert log.log_end_offset == 3
