from typing import Literal, final

from eoslog.bindings.log_reader import Columns

CSV_NAMES: str

@final
class RecordText:
    def __new__(cls, form: Literal["jsonl", "csv"]) -> RecordText: ...
    def encode(self, topic: str, partition: int, columns: Columns, count: int) -> memoryview: ...
