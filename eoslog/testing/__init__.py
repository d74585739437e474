"""For tests: `Faults` of a store, and the `History` of its clients. The fixtures of pytest are in
`pytest_eoslog`.

from eoslog.testing import Faults

with Faults(store) as faults:
    with faults.fail_sync("orders"):
        ...

`docs/testing.md` shows them all.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eoslog.testing.fault import Fault as Fault
    from eoslog.testing.fault import FaultNotFiredError as FaultNotFiredError
    from eoslog.testing.fault import FaultUnavailableError as FaultUnavailableError
    from eoslog.testing.faults import Faults as Faults
    from eoslog.testing.history import History as History
    from eoslog.testing.history import RecordedStore as RecordedStore
    from eoslog.testing.killed_child import ChildFailedError as ChildFailedError

_MODULES = {
    "ChildFailedError": "eoslog.testing.killed_child",
    "Fault": "eoslog.testing.fault",
    "FaultNotFiredError": "eoslog.testing.fault",
    "FaultUnavailableError": "eoslog.testing.fault",
    "Faults": "eoslog.testing.faults",
    "History": "eoslog.testing.history",
    "RecordedStore": "eoslog.testing.history",
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        from eoslog.common.other_clients import refuse_name

        refuse_name(__name__, name)
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
