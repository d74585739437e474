from typing import Self

from typing_extensions import disjoint_base

DURATION_BOUNDS_S: tuple[float, ...]
NUMBERS: dict[str, int]

@disjoint_base
class CounterPage:
    def __new__(cls, path: str | None = None) -> Self: ...
    def add(self, name: str, change: int = 1) -> None: ...
    def read(self) -> dict[str, int]: ...

def read_counters(path: str) -> dict[str, int]: ...
