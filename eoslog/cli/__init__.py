"""The command line `eoslog`: its entry point, and what it says without its packages."""

import gc
import os
import sys
from collections.abc import Sequence

_OBJECTS_BEFORE_GC = 20_000
_CLI_PACKAGES = {"click", "javaproperties", "rich"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and leave the process: status 0 done, 1 failed, 2 wrong use."""
    # What a command loads lives until its end: to look through it for garbage takes a tenth of a
    # short command's time.
    gc.set_threshold(_OBJECTS_BEFORE_GC)
    try:
        from eoslog.cli import output as cli_output
        from eoslog.cli.group import cli
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _CLI_PACKAGES:
            raise
        packages = f"{', '.join(sorted(_CLI_PACKAGES - {'rich'}))} and rich"
        sys.exit(f"error: the command line needs {packages}: run `pip install 'eoslog[cli]'`")
    if "_EOSLOG_COMPLETE" in os.environ:
        import eoslog.cli.bash_completion  # noqa: F401  # click finds it by its shell's name.
    cli_output.name_standard_output()
    try:
        cli.main(args=list(arguments) if arguments is not None else None, prog_name="eoslog")
    except cli_output.ReaderGoneError:
        sys.exit(0)
    except OSError as error:  # Of a help text: commands see to their own.
        if error.filename != cli_output.NAME:
            raise
        cli_output.give_up(sys.stdout.fileno())
        sys.exit(f"Error: {cli_output.NAME}: {error.strerror}")


if __name__ == "__main__":
    main()
