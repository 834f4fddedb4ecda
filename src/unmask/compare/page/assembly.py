"""A page from its sections: one template, style and script for every study, and nothing from a network."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Sequence
from string import Template

from unmask.compare.page.markup import Html, join, tag, text
from unmask.compare.results import Results

Section = tuple[str, str, Html]
"""Its id, its title, and what it holds."""


def assembled(results: Results, facts: Html, sections: Sequence[Section]) -> str:
    """The whole page; a section that holds nothing is left out. facts: the line below the title."""
    held = importlib.resources.files("unmask.compare") / "page"
    style, script, template = (
        (held / f"report.{kind}").read_text(encoding="utf-8").strip() for kind in ("css", "js", "html")
    )
    made = [section for section in sections if section[2]]
    drawn = (
        tag("section", tag("h2", title, id=f"{name}-title"), inside, id=name, aria_labelledby=f"{name}-title")
        for name, title, inside in made
    )
    return Template(template).substitute(
        title=text(results.title),
        command=text(results.command),
        facts=facts,
        style=style,
        script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        links=join(tag("li", tag("a", title, href=f"#{name}")) for name, title, _ in made),
        sections=join(drawn, "\n"),
    )
