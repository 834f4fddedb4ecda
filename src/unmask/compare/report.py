"""The page of a study: report.html holds all of it (style, script, pictures) and asks no network for anything.

The page draws the record of `results` and nothing else. It is read without a script too: the script only chooses
among the pictures that stand in the page, and changes between light and dark. A content policy in the page lets
nothing else run or load.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from unmask.compare.page import record, sections
from unmask.compare.page.assembly import assembled
from unmask.compare.page.curves import AXES
from unmask.compare.page.markup import Html, several, short, tag
from unmask.compare.page.verdict import verdict
from unmask.compare.results import Results

SECTIONS: tuple[tuple[str, str, Callable[[Results], Html]], ...] = (
    ("verdict", "In short", verdict),
    ("claims", "Claims", sections.claims),
    ("curves", "Learning curves", sections.learning),
    ("final", "Final values", sections.finals),
    ("comparisons", "Comparisons", sections.comparisons),
    ("tables", "Tables", record.tables),
    ("abilities", "What each can do", sections.abilities),
    ("cost", "Cost", sections.cost),
    ("tuning", "Tuning", sections.tuning),
    ("samples", "Samples", record.samples),
    ("settings", "Settings", record.settings),
    ("environment", "Environment", record.environment),
    ("notes", "Notes", record.notes),
    ("words", "What the words mean", record.words),
)


def write_report(results: Results, folder: Path) -> Path:
    """report.html in a folder."""
    file = folder / "report.html"
    file.write_text(page(results), encoding="utf-8")
    return file


def page(results: Results) -> str:
    """The whole page."""
    made = [(name, _title(results) if name == "verdict" else title, draw(results)) for name, title, draw in SECTIONS]
    return assembled(results, _facts(results), made)


def _title(results: Results) -> str:
    """Of the verdict: claims alone, or one seed, tell no real differences."""
    return "Which differences are real" if any(c.p is not None for c in results.comparisons) else "In short"


def _facts(results: Results) -> Html:
    """A line of how much was compared."""
    units = {axis.name: axis.label for axis in AXES}
    facts = [several(n, what) for n, what in ((len(results.entries), "entry"), (len(results.seeds), "seed")) if n]
    facts += [f"budget {short(value)} {units.get(name, name)}" for name, value in results.budget.items()]
    return tag("p", " · ".join(facts), class_="facts") if facts else Html("")
