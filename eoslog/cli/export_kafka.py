"""`eoslog export-kafka`: a store becomes the log directory of a Kafka broker."""

from pathlib import Path

import click

from eoslog.cli.options import Settings, counted, echo_json, shared_options, standard_output
from eoslog.cli.output import progress_line
from eoslog.exchange.kafka_export import (
    DEFAULT_NODE_ID,
    KafkaExport,
    OpenTransactions,
    UndecidedTransaction,
)
from eoslog.exchange.kafka_export import (
    export_kafka as export_store,
)


@click.command("export-kafka")
@click.argument("destination", type=click.Path(path_type=Path))
@click.option(
    "--open-transactions",
    type=click.Choice(["refuse", "abort", "keep"]),
    default="refuse",
    show_default=True,
    help="What becomes of transactions that were left open; Kafka aborts those that are kept.",
)
@click.option("--link", is_flag=True, help="Link sealed segments where that is possible.")
@click.option(
    "--node-id",
    metavar="N",
    type=click.IntRange(min=0),
    default=DEFAULT_NODE_ID,
    show_default=True,
    help="The broker's id.",
)
@shared_options
def export_kafka(
    settings: Settings,
    destination: Path,
    open_transactions: OpenTransactions,
    link: bool,
    node_id: int,
) -> None:
    """Write the store to DESTINATION, on which a broker of Kafka 4.x starts.

    No process may have the store open; it is not changed. DESTINATION must not be there, or be an
    empty directory.
    """
    standard_output()  # Before the work, all of whose answer would go there.
    with progress_line("copy") as progress:
        export = export_store(
            settings.path(),
            destination,
            open_transactions=open_transactions,
            link=link,
            node_id=node_id,
            progress=progress,
        )
    if settings.as_json:
        echo_json(_described(export))
        return
    click.echo(
        f"{export.path}: {counted(export.topics, 'topic')}, "
        f"{counted(export.partitions, 'partition')}, "
        f"{export.size_bytes / 1e6:,.1f} MB, {counted(export.groups, 'group')}, "
        f"{counted(export.transactional_ids, 'transactional id')}"
    )
    for what, found in (("aborted", export.aborted), ("kept open", export.kept)):
        for one in found:
            click.echo(f"{what}: transaction {one}")
    for note in export.notes:
        click.echo(f"note: {note}")
    click.echo(f"\nserver.properties of the broker:\n{export.server_properties}", nl=False)


def _described(export: KafkaExport) -> dict[str, object]:
    return {
        **vars(export),
        "aborted": [_described_transaction(one) for one in export.aborted],
        "kept": [_described_transaction(one) for one in export.kept],
        "server_properties": export.server_properties,
    }


def _described_transaction(one: UndecidedTransaction) -> dict[str, object]:
    first_offsets = {str(where): offset for where, offset in one.first_offsets.items()}
    return {**vars(one), "first_offsets": first_offsets}
