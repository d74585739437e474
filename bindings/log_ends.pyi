from typing import NamedTuple, Self, final

from eoslog.bindings.shared_page import SharedPage

class LogEnd(NamedTuple):
    topic_id: bytes
    log_start_offset: int
    log_end_offset: int
    first_base_offset: int
    active_base_offset: int
    active_valid_bytes: int
    recovery_point: int
    failed: bool

@final
class LogEnds:
    broken: list[str]
    held_ns: int
    def __new__(cls, paths: list[str], shared: SharedPage, opened: int) -> Self: ...
    def take(self, timeout_s: float) -> dict[str, LogEnd] | None: ...
