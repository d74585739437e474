from typing import NamedTuple

class ControlState(NamedTuple):
    session: bytes
    topic_id: bytes
    ready: bool
    sealed: bool
    deleted: bool
    log_end_offset: int
    recovery_point: int
    hold_offset: int
    log_start_offset: int
    active_base_offset: int
    active_valid_bytes: int
    failed: bool

def control_state(path: str) -> ControlState | None: ...
def synced_before(path: str, topic_id: bytes, partition: int) -> int: ...
def start_before(path: str, topic_id: bytes, partition: int) -> int: ...
