"""`eoslog processes`: the processes that have a store open."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import click

import eoslog
from eoslog.cli.options import Settings, echo_json, shared_options
from eoslog.cli.table import duration_text, moment_text, print_rows
from eoslog.common import clock
from eoslog.errors import GroupIdNotFoundError, TransactionalIdNotFoundError

COLUMNS = ("process", "host", "opened", "open for", "open transactions", "group members")
UNDECIDED = ("Ongoing", "PrepareCommit", "PrepareAbort")


@click.command()
@shared_options
def processes(settings: Settings) -> None:
    """List the processes that have the store open to write, the longest first, and what each holds.

    A process that only reads it, as this command does, is not seen.
    """
    with settings.read() as store:
        rows = process_rows(store, undecided_transactions(store))
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


def undecided_transactions(store: "eoslog.Store") -> "list[eoslog.TransactionDescription]":
    """Return the transactions of all processes that are open, prepared, or not completed."""
    found = []
    for listing in store.transactions(states=UNDECIDED):
        with suppress(TransactionalIdNotFoundError):  # It is gone since.
            found.append(store.describe_transaction(listing.transactional_id))
    return found


def process_rows(
    store: "eoslog.Store", transactions: "Iterable[eoslog.TransactionDescription]"
) -> list[dict[str, Any]]:
    """Return a row for each process, with those of the transactions that are its, in the order of
    their openings.
    """
    ids: dict[str | None, list[str]] = {}
    for one in transactions:
        ids.setdefault(one.owner, []).append(one.transactional_id)
    members: dict[str, list[str]] = {}
    for group in store.groups():
        with suppress(GroupIdNotFoundError):  # It was deleted since.
            for member in store.describe_group(group).members:
                members.setdefault(member.process, []).append(f"{group}: {member.member_id}")
    others = store.processes()[not store.read_only :]  # Without this one.
    now_ms = clock.now_ms()
    return [
        {
            "process_id": slot.process_id,
            "host": slot.host,
            "opened_ms": slot.opened_ms,
            "open_ms": max(0, now_ms - slot.opened_ms),
            "transactional_ids": ids.get(str(slot), []),
            "members": members.get(str(slot), []),
        }
        for slot in sorted(others, key=lambda slot: slot.opened_ms)
    ]
