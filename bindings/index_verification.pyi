from collections.abc import Callable, Mapping
from typing import Any

def verify_offset_index(
    described: Mapping[str, Any],
    batches: Mapping[int, int | None],
    expected: int,
    log_end: Callable[[], int] | None,
    problems: list[dict[str, Any]],
) -> None: ...
def verify_time_index(
    described: Mapping[str, Any],
    peaks: Mapping[int, int] | None,
    expected: int,
    log_end: Callable[[], int] | None,
    problems: list[dict[str, Any]],
) -> None: ...
