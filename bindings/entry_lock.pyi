from types import TracebackType
from typing import Protocol, Self, final, type_check_only

from eoslog.bindings.partition_log import PartitionLog
from eoslog.bindings.shared_page import SharedPage
from eoslog.bindings.transaction_entry import TransactionEntry

UNKNOWN_OFFSET: int

@type_check_only
class Keeper(Protocol):
    def catch_up_for(self, transactional_id: str) -> None: ...
    def refresh(self, transactional_id: str, offset: int) -> None: ...

@final
class EntryLock:
    newer_offset: int
    def __new__(
        cls,
        page: SharedPage | None = None,
        transactional_id: str = "",
        state_log: PartitionLog | None = None,
        keeper: Keeper | None = None,
    ) -> Self: ...
    @property
    def transactional_id(self) -> str: ...
    @property
    def index(self) -> int: ...
    def acquire(self, blocking: bool = True) -> bool: ...
    def release(self) -> None: ...
    def note_newer(self, offset: int) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@type_check_only
class Entries(Protocol):
    def look_up(self, transactional_id: str, create: bool) -> TransactionEntry: ...
    def is_current(self, entry: TransactionEntry, create: bool) -> bool: ...
    def forget(self, entry: TransactionEntry) -> None: ...

@final
class LockedEntry:
    def __new__(cls, entries: Entries, transactional_id: str, create: bool) -> Self: ...
    def __enter__(self) -> TransactionEntry: ...
    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class AllKeysHeld:
    def __new__(cls, page: SharedPage, if_free: bool = False) -> Self: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
