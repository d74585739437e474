"""Data loss: reading records that were to be read and are not there any more.

As in Spark's Kafka source: an error by default, and a warning with failOnDataLoss=false.
"""

import logging

from eoslog.errors import OffsetOutOfRangeError

_log = logging.getLogger(__name__)


def report_data_loss(fail: bool, what: str) -> None:
    """Raise OffsetOutOfRangeError that says what was lost, or warn of it."""
    if fail:
        raise OffsetOutOfRangeError(
            f"{what}; with option failOnDataLoss=false the read goes on with what there is"
        )
    _log.warning("%s; going on with what there is", what)
