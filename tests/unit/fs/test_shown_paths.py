"""Errors met in a copy, or in an overlay, name the store."""

from pathlib import Path

import pytest

from eoslog.errors import CorruptRecordError, StoreError
from eoslog.fs.os_errors import as_if_in

NAMES = {
    Path("/copy"): Path("/store"),
    Path("/copy/t-1"): Path("/one/t-1"),
    Path("/copy/t-10"): Path("/other/t-10"),
}


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/copy/t-1/0.log", "/one/t-1/0.log"),
        ("/copy/t-10/0.log", "/other/t-10/0.log"),
        ("/copy/t-2/0.log", "/store/t-2/0.log"),
        ("/elsewhere", "/elsewhere"),
    ],
)
def test_the_longest_path_that_fits_is_replaced(path, shown):
    with pytest.raises(CorruptRecordError) as failed, as_if_in(NAMES):
        raise CorruptRecordError(path, 7, "broken")
    assert failed.value.path == shown
    assert str(failed.value) == f"{shown} at byte 7: broken"
    with pytest.raises(StoreError, match=f"^{shown} is gone"), as_if_in(NAMES):
        raise StoreError(f"{path} is gone")
