"""
Figures and tables of the documents, inserted from the records of the benchmarks.

``python -m bench.reports.figures`` names those that are stale, ``--write`` renews them.
A figure is ``<!-- figure: cost.rows[ours].rate -->3,648<!-- end -->``, a table stands between the
lines ``<!-- table: cost -->`` and ``<!-- end -->``.  Such a comment must not begin a line of
text: Markdown would take the whole line as HTML.

A path goes down from the case: a word is a key, on a list of each row; ``[ours]`` keeps rows
with that name, ``[model=cost]`` those with that value, ``[max rate]`` the row with the largest
rate, ``[max]``, ``[min]`` or ``[median]`` one value of several.  Paths and numbers may be
multiplied and divided, from left to right, and ``as`` names a format, such as ``.2f`` or
``2 digits``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from bench.all_cases import CASES
from bench.gpu import copies, graphs, lengths, sizes
from bench.reports.tables import Goal, goals_table, where

__all__ = ["CASES_FILE", "load", "pages", "renew", "stale", "value", "write"]

_ROOT = Path(__file__).parents[2]

#: The records: of ``python -m bench`` by case, and of ``python -m bench.gpu``.
CASES_FILE, _GPU_FILE = _ROOT / "docs" / "benchmarks.json", _ROOT / "docs" / "gpu.json"

_FIGURE = re.compile(r"(<!-- figure: (.+?) -->)(.*?)(<!-- end -->)")
_TABLE = re.compile(r"^(<!-- table: (.+?) -->\n)(.*?)^(<!-- end -->)$", re.DOTALL | re.MULTILINE)

#: A figure that begins a paragraph, a list item or a quotation.
_MISPLACED = re.compile(r"^[\s>*+-]*(?:\d+\. )?<!-- figure:.*", re.MULTILINE)

_STEP = re.compile(r"\[([^]]+)\]|([^.[\]]+)")

_PICK: dict[str, Callable[[list[Any]], Any]] = {"max": max, "min": min, "median": median}

_GPU: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "lengths": lengths.table,
    "sizes": sizes.table,
    "graphs": graphs.table,
    "copies": copies.table,
}


def load() -> dict[str, Any]:
    """Return the records by case, those of a GPU as "gpu"."""
    records: dict[str, Any] = json.loads(CASES_FILE.read_text())["cases"]
    return {**records, "gpu": json.loads(_GPU_FILE.read_text())}


def pages() -> list[Path]:
    """Return the documents that may have figures."""
    return sorted([*_ROOT.glob("*.md"), *_ROOT.glob("docs/**/*.md"), *_ROOT.glob("examples/*.md")])


def stale(records: dict[str, Any]) -> list[str]:
    """Return the pages with figures that differ from the records."""
    texts = {path: path.read_text() for path in pages()}
    return [
        str(path.relative_to(_ROOT)) for path, text in texts.items() if renew(text, records) != text
    ]


def write(records: dict[str, Any]) -> list[str]:
    """Renew all pages; return those that have changed."""
    changed = stale(records)
    for name in changed:
        path = _ROOT / name
        path.write_text(renew(path.read_text(), records))
    return changed


def renew(text: str, records: dict[str, Any]) -> str:
    """
    Return a page with its figures and tables as the records have them.

    Raises:
        ValueError: A figure begins a line, or the records have nothing of its name.
    """
    if misplaced := _MISPLACED.search(text):
        raise ValueError(f"a figure must not begin a line: {misplaced[0]}")
    text = _FIGURE.sub(lambda found: found[1] + value(records, found[2]) + found[4], text)
    return _TABLE.sub(lambda found: f"{found[1]}\n{_table(records, found[2])}\n\n{found[4]}", text)


def value(records: dict[str, Any], expression: str) -> str:
    """
    Return a figure as it stands in a page.

    An expression has paths and numbers between `*` and `/`, and a format.
    """
    terms, _, form = expression.partition(" as ")
    first, *rest = re.split(r" ([*/]) ", terms)
    result = _term(records, first)
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        number = _term(records, term)
        result = result * number if sign == "*" else result / number
    return result if isinstance(result, str) else _formatted(result, form or ",.0f")


def _formatted(number: float, form: str) -> str:
    if form.endswith(" digits"):
        digits = form.removesuffix(" digits")
        return f"{float(f'{number:.{digits}g}'):,.10g}"
    return format(number, form)


def _term(records: dict[str, Any], term: str) -> Any:
    if re.fullmatch(r"[\d.]+", term):
        return float(term)
    found: Any = records
    for bracket, word in _STEP.findall(term):
        found = _selected(found, bracket) if bracket else _below(found, word)
        if found is None or found == []:
            raise ValueError(f"nothing is recorded under {bracket or word} of {term}")
    if isinstance(found, list):
        if len(found) != 1:
            raise ValueError(f"{term} names {len(found)} figures: choose one, or add [max]")
        (found,) = found
    return found


def _below(found: Any, word: str) -> Any:
    if isinstance(found, list):
        rows = [row[word] for row in found if word in row]
        return [each for row in rows for each in (row if isinstance(row, list) else [row])]
    return found.get(word)


def _selected(found: Any, condition: str) -> Any:
    if isinstance(found, dict):
        return found.get(condition)
    if condition in _PICK:
        return _PICK[condition](found)
    if condition.startswith("max "):
        return [max(found, key=itemgetter(condition.removeprefix("max ")))]
    key, _, wanted = condition.rpartition("=")
    return [
        row for row in found if (str(row.get(key)) == wanted if key else wanted in row.values())
    ]


def _table(records: dict[str, Any], name: str) -> str:
    """Return the tables of a case, or the one of its tables whose number follows the name."""
    if name == "goals":
        return goals_table(_goals(records)).markdown()
    if name.startswith("gpu."):
        part = name.removeprefix("gpu.")
        return _GPU[part](records["gpu"][part])
    case, _, number = name.partition(" ")
    if case not in records:
        raise ValueError(f"nothing is recorded of the case {case}")
    tables = [table.markdown() for table in CASES[case].tables(records[case])]
    chosen = [tables[int(number) - 1]] if number else tables
    return "\n\n".join([*chosen, where(records[case]["about"])])


def _goals(records: dict[str, Any]) -> list[Goal]:
    return [goal for name in CASES if name in records for goal in CASES[name].goals(records[name])]


def main() -> int:
    """Name the pages with stale figures, or renew them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="renew the pages")
    if parser.parse_args().write:
        print("\n".join(write(load())))
        return 0
    found = stale(load())
    for name in found:
        print(f"{name}: stale; run python -m bench.reports.figures --write", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
