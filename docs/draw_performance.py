"""The tables of docs/performance.md, from records of `unmask bench … --out`: this script rewrites them.

Without names it reads all of docs/results/performance*.json, with names those files. Records of one environment share
their tables; a row that two of these hold is an error, since a page must not choose between two measurements.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.bench.base import Record
from unmask.bench.table import lines

FOLDER = Path(__file__).parent
PAGE = FOLDER / "performance.md"
MARKED = re.compile(r"(<!-- table -->\n).*?(<!-- end -->\n)", re.S)


def committed() -> list[Path]:
    return sorted((FOLDER / "results").glob("performance*.json"))


def read(paths: Sequence[Path]) -> list[Record]:
    return [Record.model_validate_json(path.read_text(encoding="utf-8")) for path in paths]


def rewritten(page: str, records: Sequence[Record]) -> str:
    """The page with what stands between its marks drawn anew: nothing, without a record."""
    return MARKED.sub(lambda m: m[1] + drawn(records) + m[2], page)


def drawn(records: Sequence[Record]) -> str:
    parts = []
    for environment in {str(r.environment): r.environment for r in records}.values():
        mine = [r for r in records if r.environment == environment]
        names = [row.name for r in mine for row in (*r.rows, *r.figures)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SystemExit(f"two records of one machine hold {', '.join(twice)}: leave one of them out")
        update = {name: [x for r in mine for x in getattr(r, name)] for name in ("rows", "figures")}
        commands = "".join(f"    {r.command}\n" for r in mine)
        table = "\n".join(lines(mine[0].model_copy(update=update)))
        parts.append(f"{place(environment)}\n\n{commands}\n{table}\n")
    return "\n".join(parts)


def place(environment: dict[str, Any]) -> str:
    """Where it was measured."""
    packages = environment.get("packages", {})
    with_ = ", ".join(f"{name} {packages[name]}" for name in ("torch", "transformers", "numpy") if packages.get(name))
    cores, threads = environment.get("cores", "?"), environment.get("threads", "?")
    return f"On {environment.get('processor', '?')}, {cores} cores, {threads} of them used; {with_}:"


def main(arguments: Sequence[str]) -> int:
    named = [Path(a) for a in arguments if a != "--check"]
    before = PAGE.read_text(encoding="utf-8")
    after = rewritten(before, read(named or committed()))
    if "--check" in arguments:
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
