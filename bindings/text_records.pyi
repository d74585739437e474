from typing import Literal, final

from typing_extensions import Buffer

from eoslog.bindings.column_set import ColumnSet
from eoslog.errors import EoslogError

def checksum(data: Buffer, crc: int = 0) -> int: ...
def json_text(data: bytes | None) -> bytes: ...
def csv_row(
    text: Buffer, begin: int, is_whole: bool
) -> tuple[list[str | None], int, int] | None: ...

@final
class CsvHeader:
    def __new__(cls, names: tuple[str, ...]) -> CsvHeader: ...
    @property
    def names(self) -> tuple[str, ...]: ...

@final
class TextMemory: ...

@final
class ParsedRecords:
    @property
    def record_count(self) -> int: ...
    @property
    def next(self) -> int: ...
    @property
    def line(self) -> int: ...
    @property
    def crc(self) -> int: ...
    @property
    def fault(self) -> EoslogError | None: ...
    @property
    def columns(self) -> ColumnSet: ...

def parse_records(
    form: Literal["lines", "jsonl", "csv"],
    text: Buffer,
    begin: int,
    end: int,
    *,
    line: int,
    crc: int,
    timestamp_ms: int,
    is_whole: bool,
    header: CsvHeader | None = None,
    batch_bytes_max: int,
    timestamp_ms_min: int,
    timestamp_ms_max: int,
) -> ParsedRecords: ...
