"""The claims, tables and pictures of docs/labs, from the results beside them: python docs/draw_labs.py rewrites them.

docs/labs/results/NAME.json is the results.json of `unmask lab NAME out=DIR`; docs/labs/NAME.md says in its markers
what of it stands there: the command, all claims, or a table by its title.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from unmask.compare.page.markup import number
from unmask.compare.results import Results
from unmask.labs.base import MODULES, laboratory

FOLDER = Path(__file__).with_name("labs")
MARKED = re.compile(r"(<!-- (claims|command|table: [^\n]*?) -->\n).*?(<!-- end -->\n)", re.S)
STRONG = {"refuted": "**refuted**"}


def rewritten(page: str, results: Results) -> str:
    """The page with what stands between its markers drawn anew."""
    return MARKED.sub(lambda m: m[1] + drawn(m[2], results) + m[3], page)


def drawn(what: str, results: Results) -> str:
    if what == "command":
        return f"    {results.command}\n"
    if what == "claims":
        rows = [[STRONG.get(c.verdict, c.verdict), c.statement, c.source or "ours", c.evidence] for c in results.claims]
        return table(["", "claim", "from", "evidence"], rows)
    title = what.removeprefix("table: ")
    found = next(t for t in results.tables if t.title == title)
    note = f"\n{found.note}\n" if found.note else ""
    return f"**{title}**\n\n" + table(found.columns, found.rows) + note


def table(columns: Iterable[str], rows: Iterable[Iterable[str | float | int | None]]) -> str:
    """As markdown.

    >>> print(table(["a", "b"], [["x|y", 0.5]]), end="")
    | a | b |
    |---|---|
    | x\\|y | 0.500 |
    """
    names = list(columns)
    lines = [names, ["---"] * len(names), *([cell(v) for v in row] for row in rows)]
    return "".join(f"|{'|'.join(line)}|\n" if line[0] == "---" else f"| {' | '.join(line)} |\n" for line in lines)


def cell(value: str | float | int | None) -> str:
    if isinstance(value, str):
        return value.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;") if "**" not in value else value
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else number(value)


def files() -> Iterator[tuple[Path, str]]:
    """Each file that the results decide, and what it should hold."""
    for name in MODULES:
        held, page = FOLDER / "results" / f"{name}.json", FOLDER / f"{name}.md"
        if not held.exists() or not page.exists():
            continue
        results, lab = Results.read(held), laboratory(name)
        yield page, rewritten(page.read_text(encoding="utf-8"), results)
        if lab.picture is not None:
            yield FOLDER / f"{name}.svg", lab.picture(results)


if __name__ == "__main__":
    stale = []
    for file, text in files():
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            stale.append(file)
            if "--check" not in sys.argv:
                file.write_text(text, encoding="utf-8")
    sys.exit(f"not what the results say: {', '.join(f.name for f in stale)}" if stale and "--check" in sys.argv else 0)
