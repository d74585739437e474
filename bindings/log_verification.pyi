from typing import Any

from eoslog.bindings.abort_index_verification import AbortIndexCheck

def verify_segment(
    described: dict[str, Any],
    expected: int,
    aborts: AbortIndexCheck,
    problems: list[dict[str, Any]],
) -> int: ...
