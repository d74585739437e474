"""The site of these pages: `make docs` builds it with Sphinx into build/docs.

The pages are plain Markdown, and their links work on the repository's host too. The site asks
nothing of another host; `tools/check_site.py` looks.
"""

import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent / "site"))

project = "eoslog"
version = release = version_of("eoslog")
html_title = f"eoslog {version}"
html_copy_source = False
html_show_copyright = False

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "docstring_tables",
    "command_options",
    "inline_svg",
]
exclude_patterns = ["site"]
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "colon_fence"]
# A page may begin with a sentence before its first heading, or leave out a level.
html_theme = "furo"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
highlight_language = "text"
pygments_style = "default"
pygments_dark_style = "github-dark"

# Types stand in the tables of the docstrings.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
# Names of Python and of other libraries have no page here.
nitpick_ignore_regex = [("py:.*", r"(?!eoslog\b).*")]

# These lie above docs/, where their readers look for them; a page of the same name includes each.
ABOVE = re.compile(r"\]\((?:\.\./)+(CHANGELOG|CONTRIBUTING|SECURITY)\.md")

# Code in a sentence or a cell: where it is long, a browser may break it after a dot, and an option
# nowhere.
OPTION = re.compile(r'<span class="pre">(--[\w-]{1,22})</span>')
LONG_NAME = re.compile(r'(?<=<span class="pre">)[^<]{16,}(?=</span>)')


def _link_to_included_pages(app: "Sphinx", page: str, source: list[str]) -> None:
    source[0] = ABOVE.sub(r"](/\1.md", source[0])


def _let_long_names_break(
    app: "Sphinx", page: str, template: str, context: dict[str, Any], tree: object
) -> None:
    body = context.get("body", "")
    body = OPTION.sub(r'<span class="pre option">\g<1></span>', body)
    context["body"] = LONG_NAME.sub(
        lambda name: re.sub(r"(?<=[^\W_])[._/](?=\w)|[(,](?=\S)", r"\g<0><wbr>", name[0]), body
    )


def setup(app: "Sphinx") -> None:
    app.connect("html-page-context", _let_long_names_break)
    app.connect("source-read", _link_to_included_pages)
