"""An interrupt (Ctrl-C) at any line of a store's closing: nothing of it stays locked, and what was
committed is there.

The exception is kept, as a debugger or the block of an `except` does, and all that it refers to.
"""

from __future__ import annotations

import itertools

import pytest
from crash.interrupted_lines import interrupted_at
from crash.rows_topic import is_of_the_package, values
from short_form import short_form
from stores import QUIET

import eoslog
from eoslog.store.store import parts_of

pytestmark = pytest.mark.crash


@pytest.mark.every_nth(2)
@pytest.mark.parametrize("step", short_form([31, 1], 31))
@pytest.mark.parametrize("durability", ["process", "commit"])
def test_an_interrupt_at_lines_of_a_closing(tmp_path, durability, step):
    path, closed_at_once = tmp_path / "store", 0
    expected: list[bytes | None] = []
    with eoslog.open(path, create=True, config=QUIET) as store:
        store.create_topic("rows")
    for line in itertools.count(1, step):
        store = eoslog.open(path, durability=durability, config=QUIET)
        producer = store.producer(transactional_id="tx")
        producer.init_transactions()
        with producer.transaction():
            producer.append("rows", 0, [b"%d" % line])
        expected.append(b"%d" % line)
        assert values(store)[-1] == expected[-1]
        kept: BaseException | None = None
        with interrupted_at(line, is_of_the_package) as seen:
            try:
                store.close()
            except KeyboardInterrupt as error:
                kept = error
        if kept is None:
            break
        closed_at_once += store.closed
        if not store.closed:
            store.close()
        # What had begun to close is given up, without a second call.
        with eoslog.open(path, durability=durability, config=QUIET) as again:
            assert values(again) == expected, seen[-1]
        store.close()
    assert line > 300
    assert closed_at_once > 200 / step


def test_a_second_close_gives_up_what_an_interrupt_of_the_giving_up_left(tmp_path, monkeypatch):
    path = tmp_path / "store"
    store = eoslog.open(path, create=True, durability="process", config=QUIET)

    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(parts_of(store).files.session, "leave", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.close()
    assert store.closed
    assert parts_of(store).files.session.lock.held
    store.close()
    eoslog.open(path).close()
