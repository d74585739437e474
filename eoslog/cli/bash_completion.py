"""Completion in bash of names with a colon, such as the group of an import, `import:TOPIC:NAME`.

bash splits a word at colons, as at `=`, and replaces only what follows the last one; click's own
script looks for the names that begin with that part.
"""

import os
from typing import Any

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

_SOURCE = r"""
%(complete_func)s() {
    local IFS=$'\n' type value
    COMPREPLY=()
    while IFS=',' read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_PART="$2" \
        %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@add_completion_class
class BashOfWholeWords(BashComplete):
    """Completion of the word at the cursor, in place of the part that bash sees of it."""

    source_template = _SOURCE
    _before_part = 0  # How much of the word bash leaves as it is.

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one at the cursor, and what there is of it."""
        line, part = os.environ["COMP_LINE"], os.environ["COMP_PART"]
        words = split_arg_string(line)
        incomplete = words.pop() if line[-1:].strip() else ""
        if incomplete.startswith("--") and "=" in incomplete:
            option, _, incomplete = incomplete.partition("=")
            words.append(option)
        if incomplete.endswith(part):
            self._before_part = len(incomplete) - len(part)
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Return the line of one completion, as the script reads it."""
        value: Any = item.value
        return super().format_completion(CompletionItem(value[self._before_part :], item.type))
