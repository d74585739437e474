from collections.abc import Callable
from typing import Any

from eoslog.bindings.abort_index_verification import AbortIndexCheck
from eoslog.bindings.producers_verification import ProducersCheck
from eoslog.bindings.segment_pieces import SegmentPieces

def verify_segment(
    described: dict[str, Any],
    pieces: SegmentPieces,
    expected: int,
    aborts: AbortIndexCheck,
    producers: ProducersCheck,
    contiguous_from: int,
    log_end: Callable[[], int] | None,
    problems: list[dict[str, Any]],
) -> int: ...
