"""Drawings of the pages as part of the page: so their colours follow the theme that is chosen."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.transforms import SphinxTransform

if TYPE_CHECKING:
    from sphinx.application import Sphinx


class InlineSvg(SphinxTransform):
    """Puts the file in the place of an image that is an SVG file."""

    default_priority = 100  # Before Sphinx collects the images' files.

    def apply(self, **kwargs: object) -> None:
        for image in list(self.document.findall(nodes.image)):
            if not image["uri"].endswith(".svg"):
                continue
            path = Path(self.env.srcdir, self.env.docname).parent / image["uri"]
            self.env.note_dependency(str(path))
            drawing = re.sub(r"<\?xml.*?\?>|<!DOCTYPE.*?>", "", path.read_text(), flags=re.DOTALL)
            figure = f'<div class="drawing" role="img" aria-label="{image["alt"]}">{drawing}</div>'
            image.replace_self(nodes.raw("", figure, format="html"))


def setup(app: "Sphinx") -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_transform(InlineSvg)
    return {"parallel_read_safe": True}
