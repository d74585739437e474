from collections.abc import Hashable, Mapping
from typing import Protocol, Self, TypeVar, final

from eoslog.bindings.record_batch import Record

_Name = TypeVar("_Name", bound=Hashable)  # Of a partition: equal to the pair of topic and number.

class _Positions(Protocol[_Name]):
    current: dict[_Name, int | None]
    @property
    def partitions(self) -> Mapping[_Name, object]: ...

@final
class OneByOne:
    def __new__(
        cls,
        positions: _Positions[_Name],
        partitions: Mapping[_Name, object],
        records: list[Record],
        ends: dict[_Name, int],
        expected: dict[_Name, int],
    ) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Record: ...
