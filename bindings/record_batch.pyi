from typing import final

from typing_extensions import Buffer

@final
class Record:
    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        timestamp_type: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...] = ...,
    ) -> None: ...
    @property
    def topic(self) -> str:
        """The topic's name."""
    @property
    def partition(self) -> int:
        """Number of the partition."""
    @property
    def offset(self) -> int:
        """Number of the record in its partition."""
    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since 1970, -1 for none."""
    @property
    def timestamp_type(self) -> int:
        """0: given by the producer. 1: time of the append, in logs of a broker."""
    @property
    def key(self) -> bytes | None:
        """The key, or None."""
    @property
    def value(self) -> bytes | None:
        """The value, or None."""
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Pairs of a name and bytes or None, in order."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class BatchEncoder:
    def __init__(self, initial_bytes: int = 1048576) -> None: ...
    def encode_columns(
        self,
        values: object,
        keys: object = None,
        timestamps: object = None,
        headers: object = None,
        *,
        timestamp_ms: int,
        first: int = 0,
        count: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        base_offset: int = 0,
    ) -> bytes: ...

@final
class BatchHeader:
    @property
    def position_bytes(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def batch_bytes(self) -> int: ...
    @property
    def partition_leader_epoch(self) -> int: ...
    @property
    def magic(self) -> int: ...
    @property
    def crc(self) -> int: ...
    @property
    def attributes(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def compression(self) -> str: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def is_control(self) -> bool: ...

def iter_batches(data: Buffer) -> list[BatchHeader]: ...
def decode_records(batch: Buffer, topic: str = "", partition: int = -1) -> list[Record]: ...
def crc32c(data: Buffer, crc: int = 0) -> int: ...
def batch_crc32c(batch: Buffer, crc: int = 0) -> int: ...
def crc32c_implementation() -> str: ...
