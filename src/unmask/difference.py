"""What differs between two runs, or two recipes: settings, text, tokenizer, environment, and what came out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unmask.config.base import flat
from unmask.data.chapters import TABLE, read_table
from unmask.directory import stored_recipe
from unmask.errors import UserError
from unmask.recipe import Recipe, shipped, validate, values_of
from unmask.studies import instead_of_a_run
from unmask.tokens.tokenizer import Tokenizer

Values = dict[str, Any]


def difference(a: str | Path, b: str | Path) -> dict[str, Any]:
    """What differs between `a` and `b`, each a run's directory, a shipped recipe's name or a recipe's file.

    Returns, ready for JSON:

        a, b          what was given
        same          whether nothing that decides a run differs: settings, text, tokenizer
        settings      [{"setting", "a", "b"}] of the recipes, flattened; None where one has no such setting
        text          "same", "different", or "unknown" where one is a recipe: the fingerprints of the prepared text;
                      of streams, those of the chapters that both have read
        tokenizer     likewise, of the tokenizers
        environment   [{"what", "a", "b"}]: versions, processor, threads, precision
        results       [{"measure", "a", "b"}]: counters and held-out figures, where they differ
    """
    one, other = _Side(a), _Side(b)
    settings = _differing("setting", one.settings, other.settings)
    both = min(len(one.chapters), len(other.chapters))  # of a stream, what both have read of it
    texts = ((one.text, *one.chapters[:both]), (other.text, *other.chapters[:both]))
    text, tokenizer = (
        "unknown" if None in pair else "same" if pair[0] == pair[1] else "different"
        for pair in ((None, None) if None in (one.text, other.text) else texts, (one.tokenizer, other.tokenizer))
    )
    return {
        "a": str(a),
        "b": str(b),
        "same": not settings and "different" not in (text, tokenizer),
        "settings": settings,
        "text": text,
        "tokenizer": tokenizer,
        "environment": _differing("what", one.environment, other.environment) if one.run and other.run else [],
        "results": _differing("measure", one.results, other.results) if one.run and other.run else [],
    }


class _Side:
    """One of the two; of a recipe, settings alone."""

    def __init__(self, what: str | Path) -> None:
        place = Path(what)
        self.run = place.is_dir()
        self.environment: Values = {}
        self.results: Values = {}
        self.text: str | None = None
        self.chapters: list[str] = []
        self.tokenizer: str | None = None
        if not self.run:
            self.settings = flat(_recipe(str(what)).model_dump(mode="json"))
            return
        if told := instead_of_a_run(place):
            raise UserError(told)
        self.settings = flat(stored_recipe(place).model_dump(mode="json"))
        self.text = Path(str(_json(place / "text.json").get("prepared", ""))).name or None
        if (place / TABLE).is_file():
            self.chapters = [line.prepared for line in read_table(place)[1]]
        if (place / "tokenizer.json").is_file():
            self.tokenizer = Tokenizer.load(place / "tokenizer.json").fingerprint
        plan = _json(place / "plan.json")
        made = {k: v for k, v in _json(place / "environment.json").items() if k != "format"}
        self.environment = flat({**made, **{k: plan[k] for k in ("precision", "precision_reason") if k in plan}})
        self.results = flat({**{k: plan[k] for k in ("total_steps",) if k in plan}, **_results(place)})


def _recipe(what: str) -> Recipe:
    """A recipe by name or file; one that leaves its corpus to the command gets none here."""
    if what not in shipped() and not Path(what).is_file():
        raise UserError(
            f"'{what}' is neither a run's directory nor a recipe: give two directories of unmask pretrain, or two "
            f"recipes by name ({', '.join(shipped())}) or file"
        )
    values, where = values_of(what)
    return validate({"corpus": "-", **values}, where)


def _results(place: Path) -> Values:
    """Counters and figures of a finished run; of another, its last line of metrics."""
    if found := _json(place / "result.json"):
        return {k: v for k, v in found.items() if k != "format"}
    try:
        lines = (place / "metrics.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
        return next((dict(value) for value in map(json.loads, reversed(lines)) if "loss" in value), {})
    except (OSError, ValueError):
        return {}


def _differing(name: str, a: Values, b: Values) -> list[dict[str, Any]]:
    """The keys whose values differ, in the order of `a`, then those that only `b` has."""
    keys = dict.fromkeys([*a, *b])
    return [{name: key, "a": a.get(key), "b": b.get(key)} for key in keys if a.get(key) != b.get(key)]


def _json(path: Path) -> Values:
    """A file's mapping; {} where there is none that can be read."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
