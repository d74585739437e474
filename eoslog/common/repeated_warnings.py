"""Warnings about work that is tried again and again: each is logged once, then now and then."""

import logging
import time
from typing import Any

INTERVAL_S = 600.0
# Different ones that are remembered; of more, those that were met least recently are forgotten.
WARNINGS_KEPT = 1000


class RepeatedWarnings(logging.LoggerAdapter[logging.Logger]):
    """A logger that leaves a message out if it logged the same one less than INTERVAL_S ago. The
    next one says how many were left out.
    """

    def __init__(self, log: logging.Logger) -> None:
        super().__init__(log)
        self._known: dict[str, tuple[float, int]] = {}  # When it was logged, how many left out.

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log the message, if it is its turn. Several threads may do so at once."""
        message = str(msg) % args if args else str(msg)
        now_s = time.monotonic()
        logged_s, left_out = self._known.pop(message, (-INTERVAL_S, 0))
        if now_s - logged_s < INTERVAL_S:
            self._known[message] = (logged_s, left_out + 1)
            return
        self._known[message] = (now_s, 0)
        while len(self._known) > WARNINGS_KEPT:
            self._known.pop(next(iter(self._known)), None)
        if left_out:
            message += f" ({left_out} more times in the last {now_s - logged_s:.0f} s)"
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        self.logger.log(level, "%s", message, **kwargs)
