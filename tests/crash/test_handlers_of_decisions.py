"""A handler of a signal, in the middle of a call that ends a transaction, calls its producer: the
outer call's answer tells what became of the records, whatever the handler did.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
from crash.interrupted_lines import called_at
from crash.rows_topic import opened_with_rows, values

from eoslog import PreparedTransaction
from eoslog.errors import ConcurrentAccessError, EoslogError

pytestmark = pytest.mark.crash

CALLS: dict[str, Callable[[Any], Any]] = {
    "init": lambda producer: producer.init_transactions(),
    "commit": lambda producer: producer.commit_transaction(),
    "abort": lambda producer: producer.abort_transaction(),
    "prepare": lambda producer: producer.prepare_transaction(),
    "close": lambda producer: producer.close(),
    "flush": lambda producer: producer.flush(),
    "begin": lambda producer: producer.begin_transaction(),
    "send": lambda producer: producer.send("rows", b"of a handler", partition=0),
}
FILES = (
    "/eoslog/producer/producer.py",
    "/eoslog/producer/staged_producer.py",
    "/eoslog/staging/staged_transactions.py",
    "/eoslog/producer/transaction_client.py",
    "/eoslog/transactions/transaction_coordinator.py",
    "/eoslog/transactions/transaction_entries.py",
    "/eoslog/producer/transactional_producer.py",
)


def is_of_producers(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(FILES)


@pytest.mark.parametrize("staged", [False, True], ids=["plain", "staged"])
@pytest.mark.parametrize("outer", ["init", "commit", "abort", "prepare", "close"])
@pytest.mark.parametrize("inner", [name for name in CALLS if name != "init"])
def test_a_handler_at_each_line_of_a_decision(tmp_path, outer, inner, staged):
    if staged and "prepare" in (inner, outer):
        pytest.skip("a staged transaction cannot be prepared")
    wanted: list[bytes] = []
    refused = 0
    with opened_with_rows(tmp_path / "store") as store:
        for line in itertools.count(1):
            value = b"%d" % line
            producer = store.producer(transactional_id=f"x{line}", staged=staged)
            if outer != "init":
                producer.init_transactions()
                producer.begin_transaction()
                producer.send("rows", value, partition=0)
            answers: dict[str, Any] = {}

            def handle(_: str, producer=producer, answers=answers) -> None:
                nonlocal refused
                try:
                    answers["inner"] = CALLS[inner](producer)
                except ConcurrentAccessError as error:
                    assert "this call did nothing" in str(error)
                    refused += 1
                except EoslogError:
                    pass  # It does not fit where the outer call is.

            with called_at(line, is_of_producers, handle) as seen:
                try:
                    answers["outer"] = CALLS[outer](producer)
                except EoslogError as error:
                    # What the handler did made the difference, and nothing else does.
                    assert "inner" in answers, (seen[-1], error)
            calls = {"outer": outer, "inner": inner}
            committed = any(calls[one] == "commit" for one in answers)
            for answer in answers.values():
                if isinstance(answer, PreparedTransaction):
                    # Else the other call has decided it.
                    with suppress(EoslogError):
                        store.commit_prepared([answer])
                        committed = True
            producer.close()
            wanted += [value] if committed and outer != "init" else []
            found = [one for one in values(store) if one != b"of a handler"]
            assert found == wanted, (seen[-1], answers)
            if len(seen) < line:
                break
            assert line < 500
    assert refused > 0 or inner in ("flush", "begin", "send")
