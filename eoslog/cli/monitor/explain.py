"""`eoslog transactions explain`: for what readers of committed data wait, and what ends it."""

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from eoslog.cli.completion import complete_topics
from eoslog.cli.options import Settings, counted, echo_json, shared_options
from eoslog.cli.table import duration_text, moment_text
from eoslog.common import clock

if TYPE_CHECKING:
    from eoslog import LastStableOffset

_WIDTH = 14


@click.command("explain")
@click.argument("topic", shell_complete=complete_topics)
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition.")
@shared_options
def explain(settings: Settings, topic: str, partition: int | None) -> None:
    """Say which transaction holds the last stable offset of TOPIC, and what ends it."""
    with settings.read() as store:
        found = store.explain_last_stable_offset(topic, partition)
        now_ms = clock.now_ms()
        if settings.as_json:
            echo_json([_fields(one, now_ms) for one in found])
            return
        held = [one for one in found if one.cause != "none"]
        if not held:
            place = topic if partition is None else f"{topic}-{partition}"
            click.echo(f"{place}: nothing is open, all records can be read")
        for one in held:
            wait = "waits" if one.waiting_records == 1 else "wait"
            click.echo(
                f"{one.topic}-{one.partition}: the last stable offset is {one.last_stable_offset}, "
                f"the log end {one.log_end_offset}: {counted(one.waiting_records, 'record')} {wait}"
            )
            for name, text in _lines(one, now_ms):
                click.echo(f"  {name.ljust(_WIDTH)}{text}")


def _fields(one: "LastStableOffset", now_ms: int) -> dict[str, object]:
    process = one.process
    who = None
    if process is not None:
        who = {
            "process_id": process.process_id,
            "host": process.host,
            "opened_ms": process.opened_ms,
            "alive": one.process_is_alive,
        }
    fields = one._asdict() | {"process": who}
    del fields["process_is_alive"]
    age_ms = None if one.start_ms is None else now_ms - one.start_ms
    return fields | {"age_ms": age_ms, "then": what_happens(one, now_ms), "command": command(one)}


def _lines(one: "LastStableOffset", now_ms: int) -> Iterator[tuple[str, str]]:
    if one.cause == "staged job":
        yield "staged job", f"of application {one.transactional_id!r}"
    else:
        name = "of no transactional id" if one.transactional_id is None else one.transactional_id
        state = f", {one.transaction_state}" if one.transaction_state else ""
        identity = f"producer id {one.producer_id}, epoch {one.producer_epoch}"
        yield "transaction", f"{name}, {identity}{state}"
    if one.start_ms is not None:
        word = "last written" if one.cause == "hanging" else "open since"
        age = duration_text(now_ms - one.start_ms)
        yield word, f"{moment_text(one.start_ms)}, {age} ago"
    if one.process is not None:
        alive = "alive" if one.process_is_alive else "dead"
        yield "process", f"{one.process.process_id} on {one.process.host}, {alive}"
    elif one.cause != "hanging":
        yield "process", "gone"
    yield "then", str(what_happens(one, now_ms))
    if one.open_transactions > 1:
        yield "after it", f"{counted(one.open_transactions - 1, 'transaction')} more"
    end = command(one)
    if end is not None:
        yield "to end it now", end


def what_happens(one: "LastStableOffset", now_ms: int) -> str | None:
    """Return what ends it, and when."""
    if one.cause == "none":
        return None
    if one.cause == "prepared":
        return "it waits for commit_prepared or abort_prepared, without a timeout"
    if one.cause == "hanging":
        return "nothing ends it"
    if one.cause == "staged job":
        return "its records are read once the job is complete"
    if one.cause == "decided":
        return "it is decided: a process that has the store open, or opens it next, completes it"
    if not one.process_is_alive:
        return "a process that has the store open, or opens it next, aborts it"
    assert one.aborted_ms is not None
    if one.aborted_ms <= now_ms:
        return "its timeout is over: a process that has the store open aborts it within seconds"
    left = duration_text(one.aborted_ms - now_ms)
    return f"it is aborted at {moment_text(one.aborted_ms)}, in {left}, unless it ends before"


def command(one: "LastStableOffset") -> str | None:
    """Return the command that ends it; None where none does."""
    if one.cause in ("ongoing", "prepared"):
        return (
            f"eoslog transactions abort --transactional-id {shlex.quote(str(one.transactional_id))}"
        )
    if one.cause == "hanging":
        place = f"--topic {one.topic} --partition {one.partition}"
        return f"eoslog transactions abort {place} --start-offset {one.last_stable_offset}"
    return None
