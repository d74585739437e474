"""Locks that hold for all threads of all processes that have a store open.

Without a shared page there is one process, and its threads are all there are.
"""

from contextlib import AbstractContextManager, nullcontext

from eoslog.bindings.shared_page import LOCK_TIMEOUT_S, SharedPage
from eoslog.bindings.store_wide_lock import StoreWideLock

__all__ = ["StoreWideLock", "held_in_all"]


def held_in_all(
    shared: SharedPage | None, index: int, timeout_s: float = LOCK_TIMEOUT_S
) -> AbstractContextManager[bool]:
    """A block with a lock of the page held; gives whether its last holder died with it.

    Raises StoreInUseError, which names the holder, when the time is over. Threads of this process
    keep each other out too, but only where there is a page.
    """
    return nullcontext(False) if shared is None else shared.held(index, timeout_s)
