"""The flag of undone staged jobs, in the page that the processes of a store share."""

from eoslog.bindings.shared_page import COUNTER_STAGED_BEGUN, COUNTER_STAGED_SETTLED, SharedPage


class UndoneFlag:
    """The flag, made of two counters: set before a job's first partition is held, and reset when no
    job is undone; both under the lock of staged jobs.
    """

    def __init__(self, shared: SharedPage) -> None:
        self._shared = shared

    @property
    def is_set(self) -> bool:
        """True if there may be undone jobs of any process."""
        # In this order the flag may look set while it is set and reset, but never reset.
        settled = self._shared.counter(COUNTER_STAGED_SETTLED)
        return self._shared.counter(COUNTER_STAGED_BEGUN) != settled

    def begin(self) -> None:
        """Set the flag. The caller holds the lock."""
        if not self.is_set:
            self._shared.raise_counter(COUNTER_STAGED_BEGUN)

    def settle(self) -> None:
        """Reset the flag. The caller holds the lock."""
        if self.is_set:
            self._shared.raise_counter(COUNTER_STAGED_SETTLED)
