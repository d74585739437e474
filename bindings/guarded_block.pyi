from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, final

_P = ParamSpec("_P")
_T = TypeVar("_T")

@final
class GuardedBlock:
    def __enter__(self) -> Any: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None: ...

def guarded_block(
    function: Callable[_P, Iterator[_T]], /
) -> Callable[_P, AbstractContextManager[_T]]: ...
