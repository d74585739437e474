from eoslog.bindings.log_reader import LogReader
from eoslog.bindings.opened_log import OpenedLog
from eoslog.bindings.record_batch import Record
from eoslog.bindings.shared_page import SharedPage

def wait_for_more(
    page: SharedPage,
    logs: list[OpenedLog],
    positions: list[int],
    committed: bool,
    timeout_s: float,
) -> int: ...
def next_records(
    page: SharedPage,
    log: LogReader,
    position: int,
    committed: bool,
    timeout_s: float,
    max_records: int,
    max_bytes: int,
) -> tuple[list[Record], int] | None: ...
