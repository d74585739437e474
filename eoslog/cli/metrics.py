"""`eoslog metrics`: a store's metrics, over all its processes."""

import click

from eoslog.cli.options import Settings, echo_json, shared_options
from eoslog.cli.table import print_rows
from eoslog.store.metric_families import metric_families


@click.command()
@click.option("--prometheus", is_flag=True, help="Print Prometheus's text format.")
@shared_options
def metrics(settings: Settings, prometheus: bool) -> None:
    """Show offsets, lag, transactions and counts: as a table those that are not 0."""
    if prometheus and settings.as_json:
        raise click.UsageError("--prometheus and --json exclude each other")
    with settings.read() as store:
        if prometheus:
            from eoslog.store.collector import prometheus_text

            click.echo(prometheus_text(store), nl=False)
            return
        samples = [one for family in metric_families(store) for one in family.samples]
        if settings.as_json:
            echo_json(
                [
                    {"name": name, "labels": labels, "value": value}
                    for name, labels, value in samples
                ]
            )
            return
        rows = [
            (name, ", ".join(f"{label}={one}" for label, one in labels.items()), value)
            for name, labels, value in samples
            if value and "le" not in labels
        ]
        print_rows(("metric", "of", "value"), rows)
