"""`eoslog check`: what clients of a log saw, held against what a log promises."""

from pathlib import Path

import click

from eoslog.checking.check import EXAMPLES_MAX, VISIBLE_WITHIN_S
from eoslog.checking.check import check as check_history
from eoslog.cli.options import Settings, echo_json, shared_options, standard_output


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--visible-within",
    "visible_within_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=VISIBLE_WITHIN_S,
    show_default=True,
    help="How long a committed record may take to reach a waiting reader.",
)
@click.option(
    "--clock-error",
    "clock_error_ms",
    metavar="MS",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="How far the clocks of two clients may differ.",
)
@click.option(
    "--examples",
    "examples_max",
    metavar="N",
    type=click.IntRange(min=0),
    default=EXAMPLES_MAX,
    show_default=True,
    help="How many anomalies of each kind are shown.",
)
@shared_options
def check(
    settings: Settings,
    files: tuple[Path, ...],
    visible_within_s: float,
    clock_error_ms: float,
    examples_max: int,
) -> None:
    """Check the history in FILES, one per process that recorded. Status 1 if it has anomalies.

    A history says, line by line, what clients of a log asked and were answered; see
    docs/checking.md. A file that cannot be read, or is no history, is status 2.
    """
    standard_output()  # Before the work, all of whose answer would go there.
    try:
        report = check_history(
            files,
            visible_within_s=visible_within_s,
            clock_error_ms=clock_error_ms,
            examples_max=examples_max,
        )
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from error
    if settings.as_json:
        echo_json(report.as_json())
    else:
        click.echo("\n".join(report.lines()))
    if not report.clean:
        click.get_current_context().exit(1)
