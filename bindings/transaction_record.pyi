from collections.abc import Sequence
from typing import Any

from typing_extensions import Buffer

STATE_NAMES: tuple[str, ...]

def transaction_key(transactional_id: str) -> bytes: ...
def transactional_id_of(key: bytes) -> str | None: ...
def decode_transaction_value(value: Buffer) -> dict[str, Any]: ...
def encode_transaction_value(
    *,
    version: int = 1,
    producer_id: int,
    producer_epoch: int,
    timeout_ms: int,
    state: str,
    partitions: Sequence[tuple[str, int]] | None,
    last_update_ms: int,
    start_ms: int,
    previous_producer_id: int = -1,
    next_producer_id: int = -1,
    next_producer_epoch: int = -1,
    client_transaction_version: int = 0,
    last_producer_epoch: int = -1,
    prepared: bool = False,
    owner: bytes | None = None,
    ends: Sequence[tuple[bytes, int]] | None = None,
) -> bytes: ...
def state_name(number: int) -> str: ...
def state_number(name: str) -> int: ...
def transition_allowed(target: str, source: str) -> bool: ...
