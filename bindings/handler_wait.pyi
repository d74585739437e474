from typing import final

from eoslog.bindings.one_at_a_time import ReentrantCallError

HANDLER_WAIT_S: float

def gave_up() -> ReentrantCallError: ...
@final
class ReentrantLock:
    def __enter__(self) -> None: ...
    def __exit__(self, *ignored: object) -> None: ...
@final
class Patience:
    @property
    def slice_s(self) -> float: ...
