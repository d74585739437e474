"""Jobs to which their caller gave no name: eoslog makes one, and nobody asks for it later.

Such an application has one version. It is no group's, so that `Store.groups` is not full of them,
and its record is in one partition of `__transaction_state`, whatever the job: a job that makes a
partition of an internal topic waits for several syncs.
"""

import re
import uuid

from eoslog.transactions.state_key import state_partition_of

_PREFIX = "job-"
_NAME = re.compile(_PREFIX + "[0-9a-f]{32}", re.ASCII)
_PARTITION = state_partition_of(_PREFIX)


def new_nameless_job() -> str:
    """An application id for one job: `job-` and 32 random hexadecimal digits."""
    while True:
        name = f"{_PREFIX}{uuid.uuid4().hex}"
        if state_partition_of(name) == _PARTITION:
            return name


def is_nameless(app_id: str) -> bool:
    """Whether `new_nameless_job` may have made the application id."""
    return _NAME.fullmatch(app_id) is not None
