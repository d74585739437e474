"""Stores whose commits go by the process's journal from the first one on."""

from __future__ import annotations

from harness.waiting import eventually

import eoslog
from eoslog.storage.process_journal import ProcessJournal
from eoslog.store.store import parts_of

# The smallest halves there are: 15 blocks for records, so they fill up and are retired.
SMALL = {"eoslog.journal.bytes": 1}
LARGE = {"eoslog.journal.bytes": 1 << 20}
# What a store does that was given none: one comes when commits are frequent.
AS_NEEDED = {"eoslog.journal.bytes": -1}


def journal_of(store: eoslog.Store) -> ProcessJournal:
    found = parts_of(store).files.journal
    assert found is not None
    return found


def with_journal(store: eoslog.Store) -> eoslog.Store:
    """The store, once its journal takes records."""
    eventually(lambda: journal_of(store).journal.usable)
    return store
