"""The options of every command as Markdown, from what click knows of them."""

import inspect
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from eoslog.cli.group import cli

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PLACE = "<!-- options of all commands -->"


def commands(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    """The contexts of a command and of those below it."""
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            one = command.get_command(context, name)
            if one is not None:
                yield from commands(one, click.Context(one, info_name=name, parent=context))


def described(context: click.Context) -> Iterator[str]:
    """A command's heading, usage, help and options."""
    command = context.command
    level = "###" if context.command_path.count(" ") > 1 else "##"
    yield f"{level} {context.command_path}"
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"```text\n{usage}\n```"
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    text = re.sub(r"(?<![\w`-])--[a-z][\w-]*", r"`\g<0>`", text)
    yield re.sub(r"docs/([\w-]+)\.md", r"[\1](/\1.md)", text)
    records = [one.get_help_record(context) for one in command.params]
    rows = [f"| `{one[0]}` | {cell(one[1])} |" for one in records if one is not None and one[1]]
    if rows:
        yield "\n".join(["| options | |", "|---|---|", *rows])


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return re.sub(r"([|<*_\[\]])", r"\\\1", " ".join(text.split()))


def setup(app: "Sphinx") -> dict[str, bool]:
    """Register with Sphinx."""

    def write_options(app: "Sphinx", page: str, source: list[str]) -> None:
        if PLACE in source[0]:
            top = click.Context(cli, info_name="eoslog")
            found = [text for context in commands(cli, top) for text in described(context)]
            source[0] = source[0].replace(PLACE, "\n\n".join(found))

    app.connect("source-read", write_options)
    return {"parallel_read_safe": True}
