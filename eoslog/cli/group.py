"""The group of all commands. A command's module is imported when the command is asked for.

So `eoslog topics` never imports Spark, and the API does not know of the layer above it: the
commands that need Spark are found by name.
"""

from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eoslog.cli.options import STORE_PATH, Settings

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# name: (module that holds a click command under the same name, with "_" for "-" and after a keyword
# of Python's, help line)
COMMANDS = {
    "backup": ("eoslog.cli.backup", "Copy a store while it is in use."),
    "check": ("eoslog.cli.check", "Check a history of what clients of a log saw."),
    "config": ("eoslog.cli.config", "Show or change the settings that a store remembers."),
    "consume": ("eoslog.cli.records.consume", "Print records of a topic."),
    "delete-records": (
        "eoslog.cli.delete_records",
        "Delete the oldest records of partitions.",
    ),
    "demo": (
        "eoslog.spark.commands.cli_demo",
        "Land a real data set through Spark, killing a worker.",
    ),
    "dump": (
        "eoslog.cli.dump",
        "Print what the files of a partition hold, as Kafka's tool does.",
    ),
    "export": ("eoslog.cli.files", "Write a topic to a file."),
    "export-kafka": (
        "eoslog.cli.export_kafka",
        "Write a store as the log directory of a Kafka broker.",
    ),
    "get-offsets": (
        "eoslog.cli.records.get_offsets",
        "Print offsets of partitions by time.",
    ),
    "groups": ("eoslog.cli.groups", "List, describe, delete and reset groups of consumers."),
    "import": ("eoslog.cli.files", "Append the records of files, exactly once."),
    "import-kafka": (
        "eoslog.cli.import_kafka",
        "Make a store of the log directories of a stopped Kafka broker.",
    ),
    "ingest": (
        "eoslog.spark.commands.cli_ingest",
        "Land files in a topic through Spark, exactly once.",
    ),
    "log-dirs": ("eoslog.cli.monitor.log_dirs", "Show what takes a store's space on disk."),
    "metrics": ("eoslog.cli.metrics", "Show what the processes of a store counted and hold."),
    "processes": (
        "eoslog.cli.monitor.processes",
        "List the processes that have a store open.",
    ),
    "produce": ("eoslog.cli.records.produce", "Write lines of standard input to a topic."),
    "producers": ("eoslog.cli.producers", "List the producers that partitions remember."),
    "restore": ("eoslog.cli.backup", "Make a store of a backup."),
    "top": ("eoslog.cli.monitor.top", "Show what goes on in a store, live."),
    "topics": ("eoslog.cli.topics", "List, create, describe, alter and delete topics."),
    "transactions": ("eoslog.cli.transactions", "List, describe and abort transactions."),
    "verify": ("eoslog.cli.verify", "Check every byte of a store."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name, and shows their help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        function = cmd_name.replace("-", "_") + "_" * iskeyword(cmd_name)
        command: click.Command = getattr(import_module(COMMANDS[cmd_name][0]), function)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command like click; the error for a wrong name lists the close ones, or all of
        them.
        """
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches  # For the error alone.

            near = get_close_matches(name, COMMANDS)
            hint = (
                f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(COMMANDS)}"
            )
            if Path(name).is_dir():
                hint = f"a store is named by --store {name}"
            ctx.fail(f"no command {name!r}: {hint}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem"]:
        """Complete a command's name, or an option's; no command is imported."""
        from click.shell_completion import CompletionItem  # For a shell alone.

        names = [
            CompletionItem(name, help=COMMANDS[name][1])
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


def _print_version(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version  # It loads much.

    try:
        click.echo(f"eoslog {version('eoslog')}")
    except PackageNotFoundError:
        click.echo("eoslog (not installed)")
    ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--store", "store_path", type=STORE_PATH, help="The store's directory.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version)
@click.pass_context
def cli(ctx: click.Context, store_path: str | None, as_json: bool) -> None:
    """An embedded log with exactly-once semantics, in Kafka's format.

    --store and --json may stand before or after the command; EOSLOG_STORE in the environment names
    the store as well. The exit status is 0 when the command did its work, 1 when it failed, 2 when
    it was called in a wrong way.
    """
    ctx.obj = Settings(store_path, as_json)
