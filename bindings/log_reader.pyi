from typing import NamedTuple, final

import numpy
import numpy.typing

from eoslog.bindings.opened_log import OpenedLog
from eoslog.bindings.record_batch import Record

PART_OFFSETS: int
PART_TIMESTAMPS: int
PART_KEYS: int
PART_VALUES: int
PART_HEADERS: int
ALL_PARTS: int

class Holes(NamedTuple):
    first: list[tuple[int, int]]
    hole_count: int
    offset_count: int
    below: int

class KeyedRecords(NamedTuple):
    newest: dict[bytes, tuple[bytes | None, int]]
    others: list[tuple[bytes, bytes | None, int]]

@final
class Columns:
    @property
    def record_count(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def offsets(self) -> numpy.typing.NDArray[numpy.int64]: ...
    @property
    def timestamps(self) -> numpy.typing.NDArray[numpy.int64]: ...
    @property
    def timestamp_types(self) -> numpy.typing.NDArray[numpy.int32] | None: ...
    @property
    def key_data(self) -> numpy.typing.NDArray[numpy.uint8]: ...
    @property
    def key_offsets(self) -> numpy.typing.NDArray[numpy.int32]: ...
    @property
    def key_validity(self) -> numpy.typing.NDArray[numpy.uint8] | None: ...
    @property
    def value_data(self) -> numpy.typing.NDArray[numpy.uint8]: ...
    @property
    def value_offsets(self) -> numpy.typing.NDArray[numpy.int32]: ...
    @property
    def value_validity(self) -> numpy.typing.NDArray[numpy.uint8] | None: ...
    @property
    def header_data(self) -> numpy.typing.NDArray[numpy.uint8] | None: ...
    @property
    def header_offsets(self) -> numpy.typing.NDArray[numpy.int32] | None: ...
    @property
    def headers(self) -> list[tuple[tuple[str, bytes | None], ...]] | None: ...

class LogReader(OpenedLog):
    def read(
        self,
        offset: int,
        max_bytes: int = ...,
        upper_bound: int = -1,
        committed: bool = False,
        *,
        compressed: bool = True,
    ) -> bytes: ...
    def fetch_columns(
        self,
        offset: int,
        max_bytes: int = ...,
        upper_bound: int = -1,
        max_records: int = -1,
        committed: bool = False,
        parts: int = ...,
    ) -> Columns | None: ...
    def fetch_records(
        self,
        offset: int,
        max_records: int = 500,
        max_bytes: int = ...,
        upper_bound: int = -1,
        committed: bool = False,
    ) -> tuple[list[Record], int]: ...
    def fetch_newest(
        self, prefix: bytes, offset: int, max_bytes: int, upper_bound: int
    ) -> tuple[KeyedRecords, int]: ...
    def fetch_next(
        self, offset: int, max_records: int, max_bytes: int, committed: bool
    ) -> tuple[list[Record], int, int]: ...
    def scan_headers(self, offset: int = 0, upper_bound: int = -1) -> tuple[int, int, int]: ...
    def highest_leader_epoch(self) -> int: ...
    def holes(self, shown_max: int) -> Holes: ...
    @property
    def holes_below(self) -> int: ...
    @holes_below.setter
    def holes_below(self, offset: int) -> None: ...
    def offset_for_timestamp(
        self, timestamp_ms: int, upper_bound: int = -1
    ) -> tuple[int, int] | None: ...
