"""`eoslog get-offsets`: offsets of partitions by time, as Kafka's tool prints them."""

from collections.abc import Iterator

import click

import eoslog
from eoslog import TopicPartition
from eoslog.cli.completion import complete_topics
from eoslog.cli.options import Settings, echo_json, shared_options
from eoslog.cli.records.topic_reader import WantedPartitions, as_time_or_age_ms
from eoslog.store.store import offset_bounds_of

# Kafka's names, and its numbers for them.
LATEST, EARLIEST, MAX_TIMESTAMP = "latest", "earliest", "max-timestamp"
_NAMES = {"-1": LATEST, "-2": EARLIEST, "-3": MAX_TIMESTAMP}


@click.command("get-offsets")
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True)
@click.option(
    "--time",
    default=LATEST,
    show_default=True,
    help="latest, earliest, max-timestamp, or a time.",
)
@shared_options
def get_offsets(
    settings: Settings, topic: str | None, partitions: tuple[int, ...], time: str
) -> None:
    """Print the offset of each partition of TOPIC at a time, TOPIC:PARTITION:OFFSET a line.

    TOPIC with ^ before it is a regular expression; without TOPIC it is all topics. "latest" is the
    offset that the next record gets, "earliest" the oldest one, "max-timestamp" that of the record
    with the greatest time. Any other time (2026-01-31T12:00, in UTC without a zone, milliseconds
    since 1970, or an age, PT10M) stands for the first record at or after it; where there is none,
    no offset is printed.
    """
    wanted = WantedPartitions(topic, partitions)
    time = _NAMES.get(time, time)
    moment_ms = -1
    if time not in _NAMES.values():
        moment_ms = (
            int(time)
            if time.isdecimal()
            else as_time_or_age_ms(time, "--time", ", not latest, earliest or max-timestamp")
        )
    with settings.read() as store:
        rows = [
            {**where._asdict(), "offset": offset, "timestamp_ms": timestamp_ms}
            for one in wanted.topics(store)
            for where, offset, timestamp_ms in _offsets(store, wanted.of(one), time, moment_ms)
        ]
        if settings.as_json:
            echo_json(rows)
            return
        for row in rows:
            offset = "" if row["offset"] is None else row["offset"]
            click.echo(f"{row['topic']}:{row['partition']}:{offset}")


def _offsets(
    store: "eoslog.Store", partitions: list[TopicPartition], time: str, moment_ms: int
) -> Iterator[tuple[TopicPartition, int | None, int | None]]:
    """Yield the partitions of one topic with the offset, and the time of its record."""
    if time in (LATEST, EARLIEST) and partitions:
        # For most no partition is opened.
        bounds = offset_bounds_of(store, partitions[0].topic) or {}
        for where in partitions:
            if where in bounds:  # Else it was deleted since.
                found = bounds[where]
                yield where, found.stop if time == LATEST else found.start, None
        return
    for where in partitions:
        log = store.partition(*where)
        at = _newest(log) if time == MAX_TIMESTAMP else log.offset_for_timestamp(moment_ms)
        yield (where, *(at or (None, None)))


def _newest(log: "eoslog.Partition") -> tuple[int, int] | None:
    """Return offset and time of the record with the greatest time."""
    # A segment without a record that has one has the time of its file.
    times = {int(str(one["largest_timestamp_ms"])) for one in log.segments()}
    found = (log.offset_for_timestamp(one) for one in sorted(times, reverse=True) if one >= 0)
    return next((one for one in found if one is not None), None)
