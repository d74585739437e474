from collections.abc import Callable
from typing import Any

from eoslog.bindings.abort_index_verification import AbortIndexCheck

def verify_segment(
    described: dict[str, Any],
    expected: int,
    aborts: AbortIndexCheck,
    log_end: Callable[[], int] | None,
    problems: list[dict[str, Any]],
) -> int: ...
