"""`eoslog config`: the durability and the settings that a store remembers."""

from pathlib import Path

import click

from eoslog.cli.options import (
    Settings,
    alter_config_options,
    echo_json,
    given_config,
    shared_options,
)
from eoslog.cli.table import print_rows
from eoslog.common.config import OPENING_SETTINGS


@click.command
@click.option(
    "--durability",
    type=click.Choice(["commit", "always", "process"]),
    help="The durability to remember.",
)
@alter_config_options
@shared_options
def config(
    settings: Settings,
    durability: str | None,
    pairs: tuple[str, ...],
    file: Path | None,
    removed: tuple[str, ...],
) -> None:
    """Show what the store remembers for openings that give no argument, or change it.

    Processes that have the store open go on as they are. Only eoslog.group.readable
    is in effect at once.
    """
    given = given_config(pairs, file, removed)
    changes = bool(given) or durability is not None
    with settings.open() if changes else settings.read() as store:
        if changes:
            store.alter_config(given, durability=durability)
        remembered = store.remembered
        if settings.as_json:
            own = {"durability": remembered.durability, "config": dict(remembered.config)}
            echo_json(own)
            return
        click.echo(f"durability {remembered.durability}")
        rows = [
            (name, remembered.config.get(name, setting.default), name in remembered.config)
            for name, setting in OPENING_SETTINGS.items()
        ]
        print_rows(
            ("setting", "value", "from"),
            [(name, value, "store" if own else "default") for name, value, own in rows],
        )
