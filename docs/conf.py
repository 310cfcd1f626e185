"""How Sphinx builds the site: `make docs`."""

from __future__ import annotations

import re
from typing import Any

from celery_batch import __version__

_REPOSITORY = "https://github.com/celery-batch/celery-batch/blob/main/"

project = "celery_batch"
author = copyright = "The celery_batch authors"  # noqa: A001 (Sphinx's name)
release = version = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
]
root_doc = "index"
html_theme = "furo"
html_title = "celery_batch"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "source_repository": _REPOSITORY.partition("/blob/")[0],
    "source_branch": "main",
    "source_directory": "docs/",
}
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings name types where they are not plain
# Of this machine, made up, and to files of this repository, which a test looks for.
linkcheck_ignore = [
    r"https?://(localhost|127\.0\.0\.1|[\w.]*example\.(com|org))",
    re.escape(_REPOSITORY),
]
linkcheck_anchors_ignore_for_url = [r"https://github\.com/"]  # drawn by a script
linkcheck_timeout = 20
# Without a network there are no inventories of other projects.
nitpick_ignore_regex = [("py:.*", r"(?!celery_batch\.).*")]

#: A link to a file of the repository that is not a page of the site.
_LINK = re.compile(r"\]\(\.\./((?:\.\./)*)([^)#]+)(#[^)]*)?\)")


def _link_to_repository(_app: Any, page: str, source: list[str]) -> None:
    """Point links that leave this folder to the repository."""
    depth = page.count("/")

    def target(match: re.Match[str]) -> str:
        if match[1].count("../") != depth:
            return match[0]
        return f"]({_REPOSITORY}{match[2]}{match[3] or ''})"

    source[0] = _LINK.sub(target, source[0])


def _without_any_arguments(
    _app: Any, _kind: str, _name: str, _object: Any, _options: Any, signature: str, returns: str
) -> tuple[str, str]:
    """Leave out a signature that says nothing, as of most exceptions."""
    return ("" if signature == "(*args, **kwargs)" else signature), returns


def _as_code(_app: Any, _context: Any, lines: list[str]) -> None:
    """Mark the options in a command's help as code: in text two hyphens are one dash."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith(".. "):
            lines[number] = re.sub(r"(?<![\w`])--[a-z-]+", r"``\g<0>``", line)


def setup(app: Any) -> None:
    """Connect what Sphinx calls."""
    app.connect("sphinx-click-process-description", _as_code)
    app.connect("sphinx-click-process-options", _as_code)
    app.connect("source-read", _link_to_repository)
    app.connect("autodoc-process-signature", _without_any_arguments)
