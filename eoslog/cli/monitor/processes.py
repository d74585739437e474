"""`eoslog processes`: the processes that have a store open."""

from contextlib import suppress
from typing import Any

import click

import eoslog
from eoslog.cli.options import Settings, echo_json, shared_options
from eoslog.cli.table import duration_text, moment_text, print_rows
from eoslog.common import clock
from eoslog.errors import TransactionalIdNotFoundError

COLUMNS = ("process", "host", "opened", "open for", "open transactions", "group members")
UNDECIDED = ("Ongoing", "PrepareCommit", "PrepareAbort")


@click.command()
@shared_options
def processes(settings: Settings) -> None:
    """List the processes that have the store open to write, the longest first, and what each holds.

    A process that only reads it, as this command does, is not seen.
    """
    with settings.read() as store:
        rows = process_rows(store)
        if settings.as_json:
            echo_json(rows)
            return
        shown = [
            [
                row["process_id"],
                row["host"],
                moment_text(row["opened_ms"]),
                duration_text(row["open_ms"]),
                row["transactional_ids"],
                row["members"],
            ]
            for row in rows
        ]
        print_rows(COLUMNS, shown)


def process_rows(store: "eoslog.Store") -> list[dict[str, Any]]:
    """Return a row for each process, in the order of their openings."""
    ids: dict[str | None, list[str]] = {}
    for listing in store.transactions(states=UNDECIDED):
        with suppress(TransactionalIdNotFoundError):  # It is gone since.
            found = store.describe_transaction(listing.transactional_id)
            ids.setdefault(found.owner, []).append(found.transactional_id)
    members: dict[str, list[str]] = {}
    for group in store.groups():
        for member in store.describe_group(group).members:
            members.setdefault(member.process, []).append(f"{group}: {member.member_id}")
    others = store.processes()[1:]  # Without this one.
    now_ms = clock.now_ms()
    return [
        {
            "process_id": one.process_id,
            "host": one.host,
            "opened_ms": one.opened_ms,
            "open_ms": max(0, now_ms - one.opened_ms),
            "transactional_ids": ids.get(str(one), []),
            "members": members.get(str(one), []),
        }
        for one in sorted(others, key=lambda one: one.opened_ms)
    ]
