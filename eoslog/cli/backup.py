"""`eoslog backup` copies a store while it is in use, and `eoslog restore` makes a store of that."""

from dataclasses import asdict
from pathlib import Path

import click

import eoslog
from eoslog.cli.options import Settings, counted, echo_json, shared_options, standard_output
from eoslog.cli.output import progress_line


@click.command()
@click.argument("destination", metavar="DEST", type=click.Path(path_type=Path))
@click.option("--link", is_flag=True, help="Link sealed segments instead of copying them.")
@click.option(
    "--incremental-from",
    "earlier",
    metavar="EARLIER",
    type=click.Path(path_type=Path),
    help="Share unchanged segments with an earlier backup.",
)
@shared_options
def backup(settings: Settings, destination: Path, link: bool, earlier: Path | None) -> None:
    """Copy the store as it is at one instant to DEST, which is a store then.

    Other processes may have the store open, and go on. DEST must not exist, or be empty. See
    docs/backup.md.
    """
    standard_output()  # Before the work, all of whose answer would go there.
    with settings.open() as store, progress_line("backup") as progress:
        result = store.backup(destination, link=link, earlier=earlier, progress=progress)
    if settings.as_json:
        echo_json(asdict(result))
        return
    linked = f", {result.linked_bytes / 1e6:,.1f} MB shared" if result.linked_bytes else ""
    click.echo(
        f"{result.path}: {counted(result.topics, 'topic')}, "
        f"{counted(result.partitions, 'partition')}, "
        f"{result.copied_bytes / 1e6:,.1f} MB copied{linked}; appends waited for "
        f"{result.held_ms:.3f} ms"
    )
    for text in result.damage:
        click.echo(f"damage: {text}")
    for path in result.damaged_earlier:
        click.echo(f"damaged in the earlier backup, copied again: {path}")


@click.command()
@click.argument("copy", type=click.Path(path_type=Path))
@click.argument("path", metavar="DEST", type=click.Path(path_type=Path))
@shared_options
def restore(settings: Settings, copy: Path, path: Path) -> None:
    """Make the store DEST of the backup COPY, which stays as it is.

    DEST must not exist, or be empty; --store is not asked for. It has ids of its own: see
    docs/backup.md.
    """
    standard_output()  # Before the work, all of whose answer would go there.
    with progress_line("restore") as progress:
        result = eoslog.restore(copy, path, progress=progress)
    if settings.as_json:
        echo_json(asdict(result))
        return
    click.echo(
        f"{result.path}: {counted(result.topics, 'topic')}, "
        f"{counted(result.partitions, 'partition')}; its id is {result.cluster_id}"
    )
