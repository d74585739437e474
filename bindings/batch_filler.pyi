from typing import final

DONE: int
NO_ROOM: int

@final
class RecordSet:
    def __len__(self) -> int: ...

def checked_records(
    values: object,
    keys: object,
    timestamps: object,
    headers: object,
    *,
    timestamp_ms: int,
    batch_bytes_max: int,
) -> RecordSet: ...

@final
class BatchFiller:
    def __init__(
        self, partition_count: int, batch_bytes_max: int, first_partition: int = 0
    ) -> None: ...
    @property
    def held_bytes(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    def held(self, partition: int) -> tuple[int, int]: ...
    def fill(
        self, records: RecordSet, first: int, partition: int, held_bytes_max: int
    ) -> tuple[int, int]: ...
    def finish(
        self, partition: int, *, producer_id: int, producer_epoch: int, base_sequence: int
    ) -> memoryview: ...
    def empty(self, partition: int) -> None: ...
    def release(self) -> None: ...
