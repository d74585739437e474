"""The work of a store's background thread, done when a test wants it."""

import math

import eoslog
from eoslog.store.store import parts_of


def do_background_work(store: eoslog.Store, without: tuple[str, ...] = ()) -> None:
    """Do all works that the background thread does in time, but for those with these names, which
    it does no more.

    They are not made due: the thread would do them at the same time, and a sweep of staged files
    that finds another one at work does nothing.
    """
    checkpointer = parts_of(store).checkpointer
    for work in checkpointer.works:
        if work.name in without:
            work.due_s = math.inf
        elif work.is_wanted():
            checkpointer.do(work)
