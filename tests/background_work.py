"""The work of a store's background thread, done when a test wants it."""

import math

import eoslog
from eoslog.store.store import parts_of


def do_background_work(store: eoslog.Store, without: tuple[str, ...] = ()) -> None:
    """Do all works that the background thread does in time, but for those with these names."""
    checkpointer = parts_of(store).checkpointer
    for work in checkpointer.works:
        work.due_s = math.inf if work.name in without else 0.0
    checkpointer.do_round()
