"""A handler of a signal that reads with the consumer that its thread is just reading with: each
record is handed out once, and nothing is committed that nobody was given.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from crash.interrupted_lines import called_at
from crash.rows_topic import WHERE, is_of_the_package, opened_with_rows

import eoslog

pytestmark = pytest.mark.crash

COUNT = 3000
POLLS: dict[str, Callable[[eoslog.Consumer], list[int]]] = {
    "records": lambda consumer: [one.offset for one in consumer.poll(timeout=0, max_records=5)],
    "columns": lambda consumer: consumer.poll_arrow(timeout=0, max_bytes=1)["offset"].to_pylist(),
}


@pytest.mark.parametrize("subscribed", [True, False])
@pytest.mark.parametrize("outer", POLLS)
@pytest.mark.parametrize("inner", [*POLLS, "commit"])
def test_a_handler_at_each_line_of_a_poll(tmp_path, outer, inner, subscribed):
    given: list[int] = []
    refused = done = 0
    with opened_with_rows(tmp_path / "store") as store, store.consumer(group="g") as consumer:
        producer = store.producer()
        for number in range(COUNT):
            producer.append("rows", 0, [b"%d" % number])
        if subscribed:
            consumer.subscribe(["rows"])
        else:
            consumer.assign([WHERE])
        consumer.poll(timeout=0, max_records=1)
        given.append(0)

        def handle(_: str) -> None:
            nonlocal refused, done
            try:
                if inner == "commit":
                    consumer.commit()
                else:
                    given.extend(POLLS[inner](consumer))
                done += 1
            except RuntimeError as error:
                assert "handler of a signal" in str(error)
                refused += 1

        for line in itertools.count(1):
            with called_at(line, is_of_the_package, handle) as seen:
                given.extend(POLLS[outer](consumer))
            assert len(given) == len(set(given)), seen[-1]
            committed = consumer.committed(WHERE)
            assert committed is None or set(range(committed)) <= set(given), seen[-1]
            if len(seen) < line:
                break
            assert line < 300
    assert refused > 0
    assert done > 0
