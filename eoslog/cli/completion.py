"""Values that a shell completes: topics, groups and transactional ids of the store that is named.

click completes commands and options. What goes wrong completes nothing, without a word: the shell's
line would be spoiled. No partition of a user's topic is opened.
"""

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import click

import eoslog
from eoslog.cli.options import STORE_VARIABLE

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _completed_by(names_in: Callable[["eoslog.Store"], Iterable[str]]) -> Complete:
    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        path = _store_path(ctx)
        if not path:
            return []
        logging.disable()
        try:
            with eoslog.open(Path(path).expanduser(), read_only=True) as store:
                return sorted(name for name in names_in(store) if name.startswith(incomplete))
        except Exception:
            return []
        finally:
            logging.disable(logging.NOTSET)

    return complete


def _store_path(ctx: click.Context) -> str | None:
    """Return the store that the line names, after or before its command, else the environment."""
    one: click.Context | None = ctx
    while one is not None:
        if one.get_parameter_source("store_path") is click.core.ParameterSource.COMMANDLINE:
            return str(one.params["store_path"])
        one = one.parent
    return os.environ.get(STORE_VARIABLE)


complete_topics = _completed_by(lambda store: store.topics())
complete_groups = _completed_by(lambda store: store.groups())
complete_transactional_ids = _completed_by(
    lambda store: (one.transactional_id for one in store.transactions())
)
