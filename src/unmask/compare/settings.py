"""What is asked of a study, from words to the whole of it.

    unmask compare A B … key=value …

An entry is a shipped recipe, a YAML file, or either under a name and with overrides of its own:

    encoder-small        bert=encoder-small:objective.preset=bert,model.num_layers=2        my/recipe.yaml

or a YAML file that lists entries, with any other setting beside them:

    entries:
      bert: {recipe: encoder-small, objective.preset: bert}
      gpt: decoder-small
    budget: {flops: 1.0e+13}

Settings that are not the study's own are overrides of every recipe; an entry's own come after them. `disk` keeps
the whole of it, every recipe written out.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from unmask.compare.functions import function, is_function, meant
from unmask.compare.lengths import Budget
from unmask.config import Strict
from unmask.config.base import flat, read_yaml
from unmask.data.text import absolute
from unmask.errors import UserError, near_file, nearest
from unmask.evaluation.suites import SUITES
from unmask.recipe import Recipe, load_recipe, parse_override, shipped, validate, values_of

OWN = ("seeds", "tune", "milestones", "suites", "limit")
"""Settings of a study that its results depend on, beside the budget."""
PLACE = ("out", "resume", "processes", "cache")
"""Where and how it is run."""
MILESTONES, LIMIT, SHARE = 8, 512, 0.25
BUDGETS = ("steps", "tokens", "target_tokens", "flops", "minutes")
HELD_OUT_SEED = 1000
"""Of tuning, or the next one that no run has."""
LEAST_RATES = 3
"""That tuning tries: of fewer, the best is always the first or the last, which says nothing of those beyond."""
EXAMPLE = "unmask compare encoder-small decoder-small corpus=my.txt budget.flops=1e13 seeds=5 out=DIR"
_DECIDED = ("seed", "checkpoint", "budget")
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")


class Tune(Strict):
    """The same number of trials for every entry."""

    setting: Literal["train.learning_rate"] = "train.learning_rate"
    count: int = Field(ge=LEAST_RATES)
    share: float = Field(SHARE, gt=0, le=1)
    """Of the study's budget, for each trial."""
    seed: int


class Asked(Strict):
    """One suite: what it reads, and how much of it."""

    path: str | None = None
    """None = what it reads of itself (bpb: the held-out text, cloze: the battery)."""
    limit: int = Field(LIMIT, ge=1)
    """`evaluation.items.Options`."""


class Study(Strict):
    """Everything that the results depend on."""

    format: Literal[1] = 1
    command: str
    entries: dict[str, dict[str, Any]]
    """Name → recipe, written out; its budget is the study's."""
    budget: dict[str, float]
    seeds: list[int]
    seen: list[int] = Field(default_factory=list)
    """How many seeds had results each time that more were added (`disk.grown`)."""
    tune: Tune | None = None
    milestones: int = Field(MILESTONES, ge=1)
    suites: dict[str, Asked]

    def recipe(self, name: str) -> Recipe:
        return validate(self.entries[name], f"entry {name}")

    def budgeted(self, seconds: float | None) -> Budget:
        """The budget of an entry whose update takes so long."""
        ((unit, amount),) = self.budget.items()
        return Budget(unit, amount, seconds)


# ---------------------------------------------------------------- from words


def sort_out(arguments: Iterable[str]) -> tuple[list[str], dict[str, Any]]:
    """Words of the command line → entries, and settings by name.

    >>> sort_out(["encoder-small", "gpt=decoder-small:model.num_layers=2", "seeds=3", "train.learning_rate=1e-3"])
    (['encoder-small', 'gpt=decoder-small:model.num_layers=2'], {'seeds': '3', 'train.learning_rate': 0.001})
    """
    entries: list[str] = []
    settings: dict[str, Any] = {}
    for text in arguments:
        key, sign, value = text.partition("=")
        if not sign or ":" in key or not _is_setting(key):
            entries.append(text)
        elif key in (*OWN, *PLACE):
            settings[key] = value
        else:
            settings.update([parse_override(text)])
    return entries, settings


def known_settings() -> list[str]:
    """A study's and a recipe's, by their first names."""
    return [*OWN, *PLACE, *Recipe.model_fields]


def _is_setting(key: str) -> bool:
    return "." in key or key in known_settings()


@dataclass(frozen=True)
class _Entry:
    name: str
    recipe: str
    overrides: dict[str, Any]


def frozen(entries: Sequence[str | Path], settings: Mapping[str, Any], command: str) -> Study:
    """The study of these entries and settings; everything that is wrong with it is said here."""
    listed: list[_Entry] = []
    common: dict[str, Any] = {}
    for text in map(str, entries):
        found, beside = _entries(text)
        listed += found
        common |= beside
    if any(key.startswith("budget.") for key in settings):  # a given budget replaces a file's
        common = {k: v for k, v in common.items() if not k.startswith("budget.")}
    common |= settings
    _require_names([e.name for e in listed])
    own = {key: common.pop(key) for key in OWN if key in common}
    _require_corpus(common, listed)
    budget = _budget(common, listed)
    recipes = {e.name: _recipe(e, common) for e in listed}
    _require_one_text(recipes)
    seeds = _seeds(own.get("seeds", 1))
    values = {
        "command": command,
        "entries": {name: {**written_out(recipe), "budget": budget} for name, recipe in recipes.items()},
        "budget": budget,
        "seeds": seeds,
        "tune": _tune(own["tune"], seeds) if own.get("tune") else None,
        "milestones": _whole("milestones", own.get("milestones", MILESTONES)),
        "suites": _suites(own.get("suites", "bpb"), _whole("limit", own.get("limit", LIMIT))),
    }
    study = Study.model_validate(values)
    for name in study.entries:
        study.recipe(name)  # with the budget
    return study


def _entries(text: str) -> tuple[list[_Entry], dict[str, Any]]:
    """One argument: an entry, or a study's file with several and its settings."""
    head, colon, tail = text.partition(":")
    name, sign, recipe = head.partition("=")
    if not sign:
        name, recipe = Path(head).stem, head
    if not sign and not colon and (listed := _listed(recipe)) is not None:
        return listed
    overrides = dict(parse_override(o) for o in re.split(r",(?=[\w.]+=)", tail)) if tail else {}
    if recipe not in shipped() and not Path(recipe).is_file():
        close, what = nearest(recipe, shipped()), "no entry: there is"
        if sign:
            close = close or nearest(name, known_settings())
            what = "neither a setting that compare knows nor an entry NAME=RECIPE, as there is"
        raise UserError(
            f"'{text}' is {what} no recipe '{recipe}' (shipped: {', '.join(shipped())}; or the path of a YAML file)"
            f"{close}"
        )
    return [_Entry(name, recipe, overrides)], {}


def _listed(file: str) -> tuple[list[_Entry], dict[str, Any]] | None:
    """The entries of a study's file; None where it is a recipe."""
    if file in shipped() or not Path(file).is_file():
        return None
    try:
        values = read_yaml(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict) or "entries" not in values:
        return None
    entries, beside = values.pop("entries"), values
    if not isinstance(entries, dict) or not entries:
        raise UserError(f"{file}: entries must map names to recipes, such as bert: {{recipe: encoder-small}}")
    found = []
    for name, given in entries.items():
        given = {"recipe": given} if isinstance(given, str) else given
        if not isinstance(given, dict) or not isinstance(given.get("recipe"), str):
            raise UserError(f"{file}: entry {name} names no recipe: write {name}: {{recipe: encoder-small}}")
        found.append(_Entry(str(name), given["recipe"], flat({k: v for k, v in given.items() if k != "recipe"})))
    own = {key: beside.pop(key) for key in OWN if key in beside}
    return found, {**own, **flat(beside)}


def _require_names(names: Sequence[str]) -> None:
    if not names:
        raise UserError(f"nothing to compare: name recipes, a text, a budget and a place, such as {EXAMPLE}")
    for name in names:
        if not _NAME.fullmatch(name):
            raise UserError(f"'{name}' cannot name an entry: take letters, digits and . _ + - (write NAME=RECIPE)")
        if names.count(name) > 1:
            raise UserError(f"two entries are called {name}: give them names of their own, as in a={name} b={name}")


def _require_corpus(common: Mapping[str, Any], listed: Sequence[_Entry]) -> None:
    """Raise where an entry has no text; a budget that is lacking, too, is asked for in the same sentence."""
    for entry in listed:
        given = {key.split(".")[0] for key in (*common, *entry.overrides)}
        if "corpus" not in given and "corpus" not in values_of(entry.recipe)[0]:
            budget = "" if "budget" in given else ", and a budget, such as budget.flops=1e13"
            raise UserError(
                f"the study has no corpus: give corpus=PATH, the text of all entries (a .txt, .jsonl or .parquet file, "
                f"a directory or a glob){budget}"
            )


def _budget(common: dict[str, Any], listed: Sequence[_Entry]) -> dict[str, float]:
    """The one budget, taken out of the settings; nothing that the study decides is set for a recipe."""
    taken = {k.removeprefix("budget."): common.pop(k) for k in list(common) if k.startswith("budget.")}
    given = {k: v for k, v in taken.items() if v not in (None, "")}
    if len(given) != 1 or not set(given) <= set(BUDGETS):
        said = f" (given: {', '.join(f'budget.{k}' for k in given)})" if given else ""
        raise UserError(
            f"give exactly one budget for all, one of {', '.join(f'budget.{k}' for k in BUDGETS)}{said}, such as "
            "budget.flops=1e13"
        )
    for where, keys in (("", common), *((f" of {e.name}", e.overrides) for e in listed)):
        for key in keys:
            if key.split(".")[0] in _DECIDED:
                instead = {"seed": "give seeds=", "budget": "it is one for all", "checkpoint": "give milestones="}
                raise UserError(f"{key}{where} is decided by the study: {instead[key.split('.')[0]]}")
            if where and key.split(".")[0] in ("corpus", "valid"):
                raise UserError(f"{key}{where}: a study has one text for all: set it beside the entries")
    ((unit, amount),) = given.items()
    try:
        number = float(amount)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"budget.{unit}={amount} is no number")
    return {unit: number}


def _recipe(entry: _Entry, common: Mapping[str, Any]) -> Recipe:
    try:
        return load_recipe(entry.recipe, {**common, **entry.overrides})
    except UserError as error:
        raise UserError(f"entry {entry.name}: {error}") from error


def written_out(recipe: Recipe) -> dict[str, Any]:
    """All settings, found again from anywhere; of a recipe with `init` only what was set, as the rest comes from it."""
    paths: dict[str, Any] = {k: absolute(c) for k in ("corpus", "valid") if (c := getattr(recipe, k)) is not None}
    if recipe.init is not None:
        paths["init"] = os.path.abspath(recipe.init)
    values = recipe.model_copy(update=paths).model_dump(mode="json")
    if "visibility" not in recipe.model.model_fields_set:  # the objective's
        del values["model"]["visibility"]
    if recipe.init is not None:
        values["model"] = recipe.model.model_dump(mode="json", exclude_unset=True)
        values = {
            k: v for k, v in values.items() if k in recipe.model_fields_set or k not in ("tokenizer", "start", "end")
        }
    return values


def _require_one_text(recipes: Mapping[str, Recipe]) -> None:
    (first, one), *others = recipes.items()
    for name, other in others:
        for key in ("corpus", "valid"):
            if getattr(one, key) != getattr(other, key):
                raise UserError(f"{first} and {name} have another {key}: a study has one for all, so give {key}=")


def _seeds(given: Any) -> list[int]:
    """A number n is 0 … n − 1; several numbers are the seeds themselves.

    >>> _seeds("3"), _seeds("4,7"), _seeds([5])
    ([0, 1, 2], [4, 7], [5])
    """
    many = isinstance(given, list | tuple) or (isinstance(given, str) and "," in given)
    parts = [p for p in given.split(",") if p] if isinstance(given, str) and many else given if many else [given]
    numbers = [_whole("seeds", p, least=0 if many else 1) for p in parts]
    if len(set(numbers)) < len(numbers):
        raise UserError(f"seeds={given}: a seed stands twice")
    return numbers if many else list(range(numbers[0]))


def _tune(given: Any, seeds: Sequence[int]) -> Tune:
    """lr:COUNT, or lr:COUNT:SHARE.

    >>> _tune("lr:4:0.5", [0, 1]).model_dump()
    {'setting': 'train.learning_rate', 'count': 4, 'share': 0.5, 'seed': 1000}
    """
    name, *numbers = str(given).split(":")
    if name != "lr" or len(numbers) not in (1, 2):
        raise UserError(f"tune={given} is not known: write tune=lr:4, or tune=lr:4:0.25 for the share of the budget")
    require_rates(f"tune={given}", numbers[0])
    held = next(s for s in range(HELD_OUT_SEED, HELD_OUT_SEED + len(seeds) + 1) if s not in seeds)
    try:
        return Tune(count=int(numbers[0]), share=float(numbers[1]) if numbers[1:] else SHARE, seed=held)
    except ValueError:  # pydantic's errors are ValueErrors too
        raise UserError(
            f"tune={given}: write a whole number of learning rates, and a share of the budget above 0 and up to 1"
        ) from None


def require_rates(given: str, count: str) -> None:
    """Raise where too few learning rates are tried; what is no whole number is another error."""
    if count.isdigit() and int(count) < LEAST_RATES:
        raise UserError(
            f"{given} tries {count}: of fewer than {LEAST_RATES} learning rates the best always lies at the edge of "
            f"what was tried, which says nothing of those beyond, so give at least lr:{LEAST_RATES}"
        )


def _suites(given: Any, limit: int) -> dict[str, Asked]:
    """bpb,cloze,minimal-pairs@50:PATH,my.module:function, a list of such, or a mapping; @ says how much, else `limit`.

    >>> {name: asked.limit for name, asked in _suites("bpb@64,cloze", 512).items()}
    {'bpb': 64, 'cloze': 512}
    """
    if isinstance(given, str):
        given = given.split(",")
    pairs = given.items() if isinstance(given, Mapping) else [_placed(str(part)) for part in given if part]
    found: dict[str, Asked] = {}
    for text, path in pairs:
        name, sign, number = str(text).partition("@")
        if name in found:
            raise UserError(f"suite {name} stands twice: its numbers would share a column, so give it once")
        if is_function(name):
            function(name)  # or it is refused here, before anything runs
            if path is not None:
                raise UserError(f"suites={name} reads no path: {path} has no place there")
            found[name] = Asked(limit=_whole(f"suites={name}@", number) if sign else limit)
            continue
        if name not in SUITES:
            known = f"known: {', '.join(SUITES)}, or package.module:function"
            raise UserError(f"no suite '{name}' ({known}){meant(name)}")
        if path is None and SUITES[name].own is None:
            raise UserError(f"suite {name} needs items: write suites={name}:PATH")
        if path is not None and name == "bpb":
            raise UserError("bpb reads the study's held-out text: leave the path out, and give valid=PATH for another")
        if path is not None and not Path(path).exists():
            raise UserError(
                f"{path} does not exist: give suite {name} a file of JSON lines, or a directory of them"
                f"{near_file(Path(path))}"
            )
        most = _whole(f"suites={name}@", number) if sign else limit
        found[name] = Asked(path=None if path is None else os.path.abspath(path), limit=most)
    return found


def _placed(part: str) -> tuple[str, str | None]:
    """
    >>> _placed("choice@3:a.jsonl"), _placed("bpb"), _placed("my.measures:count@3")
    (('choice@3', 'a.jsonl'), ('bpb', None), ('my.measures:count@3', None))
    """
    if is_function(part.partition("@")[0]):
        return part, None
    head, _, path = part.partition(":")
    return head, path or None


def _whole(name: str, given: Any, least: int = 1) -> int:
    try:
        number = int(given)
    except (TypeError, ValueError):
        raise UserError(f"{name}={given} is no whole number") from None
    if number < least:
        raise UserError(f"{name}={number} must be at least {least}")
    return number
