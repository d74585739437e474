"""`eoslog ingest`: land files in a topic through Spark, exactly once."""

from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from eoslog.cli.options import Settings, counted, echo_json, noted_creation, shared_options
from eoslog.spark.commands.csv_files import DEFAULT_DELIMITER
from eoslog.spark.commands.ingest import DEFAULT_PARTITIONS
from eoslog.spark.commands.ingest import ingest as ingest_files
from eoslog.spark.commands.input_files import FORMATS
from eoslog.spark.commands.row_frame import DEFAULT_KEY_SEPARATOR, RowFormat
from eoslog.spark.spark_session import LOCAL_MASTER, session_log


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--topic", required=True, help="Made if the store has none of this name.")
@click.option("--key", help="Columns with commas between, or a Spark SQL expression.")
@click.option("--key-separator", default=DEFAULT_KEY_SEPARATOR, show_default=True)
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    help=f"Of a topic that is made now. [default: {DEFAULT_PARTITIONS}]",
)
@click.option("--id", "app_id", help="One id lands once. [default: from topic and contents]")
@click.option("--format", "file_format", type=click.Choice(FORMATS), help="[default: by suffix]")
@click.option("--multiline", is_flag=True, help="CSV: allow line ends inside quotes.")
@click.option("--delimiter", default=DEFAULT_DELIMITER, show_default=True, help="CSV: or \\t.")
@click.option("--master", default=LOCAL_MASTER, show_default=True, help="Spark's master.")
@shared_options
def ingest(
    settings: Settings,
    files: tuple[Path, ...],
    topic: str,
    key: str | None,
    key_separator: str,
    partitions: int | None,
    app_id: str | None,
    file_format: str | None,
    multiline: bool,
    delimiter: str,
    master: str,
) -> None:
    """Land all rows of CSV, JSON lines, Parquet or text FILES in a topic, exactly once.

    A CSV or Parquet row becomes a JSON object (of a CSV file's texts as they are), a line of JSON
    or text stays as it is. What cannot be kept is refused with its file and line, and nothing
    lands. Files may be packed: .gz (but for Parquet) and .zip. No row is visible before all of
    them are in the log. A second run under the same --id adds nothing; without --id
    the same contents are landed in a topic once.
    """
    console = Console(stderr=True)
    with noted_creation(settings.path()), session_log() as log_path:
        result = ingest_files(
            files,
            topic=topic,
            store=settings.path(),
            row_format=RowFormat(file_format, key, key_separator, multiline, delimiter),
            partitions=partitions,
            app_id=app_id,
            master=master,
            log_path=log_path,
            console=console,
        )
    if settings.as_json:
        echo_json(asdict(result))
    elif result.committed:
        click.echo(
            f"{counted(result.records, 'record')} landed in {topic} in {result.seconds:.1f} s "
            f"(id {result.app_id})"
        )
    else:
        click.echo(f"nothing to do: {result.app_id} is in {topic} already")
