"""What a study found, as one record: results.json holds it, and the report draws it and nothing else.

Results     entries (what is compared), measures (what was asked of each), comparisons (which differences are real)
Entry       one recipe: its settings, its tuning, its cost, what it can do, and a run for each seed
Run         one seed: points along the training, samples
Point       where a run stood at a milestone: steps, tokens, target tokens, FLOPs, seconds; each measure's value
Measure     a number with its protocol; values of different protocols never share one measure
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from unmask.config import Strict
from unmask.errors import UserError

RESULTS = "results.json"


class Level(Strict):
    """A trivial level of a measure: what a model that knows only so much reaches."""

    label: str
    value: float


class Measure(Strict):
    """What is asked of every entry alike, and how."""

    name: str
    label: str
    protocol: str
    """The event that is scored, the same for all: "3 candidates at the open slot", "free generation, exact match", …"""
    better: Literal["higher", "lower"]
    levels: list[Level] = Field(default_factory=list)
    unit: str = ""

    def unbeaten(self, value: float) -> list[Level]:
        """Trivial levels that a value is no better than.

        >>> levels = [Level(label="chance", value=50.0), Level(label="length", value=60.0)]
        >>> pairs = Measure(name="pairs", label="Pairs", protocol="", better="higher", levels=levels)
        >>> [[level.label for level in pairs.unbeaten(value)] for value in (70.0, 55.0)]
        [[], ['length']]
        """
        sign = 1 if self.better == "higher" else -1
        return [level for level in self.levels if sign * (value - level.value) <= 0]


class Point(Strict):
    """A run at a milestone."""

    step: int
    tokens: float
    target_tokens: float
    flops: float
    seconds: float
    values: dict[str, float | None] = Field(default_factory=dict)
    """Measure → value; null = this model cannot be asked (`Entry.cannot` says why)."""
    details: dict[str, Any] = Field(default_factory=dict)
    """Measure → what else it found: counts, kinds of mistakes."""


COUNTED = ("step", "tokens", "target_tokens", "flops", "seconds")
"""Of a checkpoint's state (`train.checkpoint.read_state`), what a point holds."""


def counted(state: Mapping[str, Any]) -> dict[str, Any]:
    """
    >>> counted({"format": 1, "step": 2, "tokens": 8, "target_tokens": 4, "flops": 9.0, "seconds": 0.5, "plan": None})
    {'step': 2, 'tokens': 8, 'target_tokens': 4, 'flops': 9.0, 'seconds': 0.5}
    """
    return {key: state[key] for key in COUNTED}


class Sample(Strict):
    """A prompt, and what the model made of it at the end."""

    asked: str
    answer: str


class Run(Strict):
    seed: int
    directory: str | None = None
    points: list[Point] = Field(default_factory=list)
    samples: list[Sample] = Field(default_factory=list)


class Tuning(Strict):
    """The same number of trials for every entry, on a seed that no run of the study has."""

    setting: str
    values: list[float]
    losses: list[float | None]
    """Of each value, by `measure`; null = the run diverged."""
    measure: str
    chosen: float
    edge: bool
    """The best value is the first or the last that was tried."""
    falling: bool
    """The best run's curve still fell at its end."""
    flops: float
    seconds: float
    seed: int

    @model_validator(mode="after")
    def _one_loss_a_value(self) -> Tuning:
        if len(self.values) != len(self.losses):
            raise ValueError(f"{len(self.values)} values of {self.setting} and {len(self.losses)} losses: one each")
        return self


class Entry(Strict):
    name: str
    settings: dict[str, Any]
    """The resolved recipe."""
    parameters: int
    flops_per_token: float
    target_density: float
    """Targets that count, for each processed token."""
    can: dict[str, bool] = Field(default_factory=dict)
    """score, fill, generate, embed."""
    cannot: dict[str, str] = Field(default_factory=dict)
    """Measure → why it has no value."""
    tuning: Tuning | None = None
    runs: list[Run]


class OverItems(Strict):
    """A difference over the items that both entries were asked (`items`): how far it would move with other items.

    With one seed this says nothing about another training run.
    """

    of: str
    """What the items are: pairs, gaps, questions, documents."""
    items: int
    """That both were scored on in every seed."""
    seeds: int
    difference: float
    interval: tuple[float, float]
    """95 %, items drawn anew, and the seeds, too, where there are several."""
    p: float | None
    """Of the sign-flip test over items; null with several seeds, where items are not the only thing that varies."""


class Comparison(Strict):
    """Two entries under one measure, paired by seed."""

    measure: str
    a: str
    b: str
    difference: float
    """Mean of a − b over seeds, at the last milestone."""
    interval: tuple[float, float] | None
    """95 %; null with one seed."""
    p: float | None
    real: bool
    """Whether the difference holds after correction for the number of comparisons."""
    over_items: OverItems | None = None
    """null where no items are kept, or the two were not asked the same ones."""


class Claim(Strict):
    """A statement, and what the runs say of it; a page says what had been seen when it was written down."""

    statement: str
    holds: bool | None
    """null = it could not be decided."""
    evidence: str
    source: str = ""
    """Where the statement comes from."""
    seeds: tuple[bool | None, ...] = ()
    """Where it is judged under each seed by itself, whether it holds there; empty = judged once, of all."""

    @property
    def verdict(self) -> str:
        """
        >>> told = {"statement": "n is even", "evidence": "n = 3"}
        >>> [Claim(holds=False, seeds=seeds, **told).verdict for seeds in ((), (False, False), (True, False, True))]
        ['refuted', 'refuted', '2 of 3 seeds']
        """
        if True in self.seeds and False in self.seeds:
            return f"{self.seeds.count(True)} of {len(self.seeds)} seeds"
        return {True: "holds", False: "refuted", None: "undecided"}[self.holds]


class Table(Strict):
    """A table of a laboratory: what is no curve."""

    title: str
    columns: list[str]
    rows: list[list[str | float | int | None]]
    note: str = ""


class Results(Strict):
    format: Literal[1] = 1
    title: str
    command: str
    budget: dict[str, float] = Field(default_factory=dict)
    """The one that was given, by its name: {"flops": 1e13}."""
    seeds: list[int] = Field(default_factory=list)
    measures: list[Measure] = Field(default_factory=list)
    entries: list[Entry] = Field(default_factory=list)
    comparisons: list[Comparison] = Field(default_factory=list)
    claims: list[Claim] = Field(default_factory=list)
    tables: list[Table] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    contamination: str = ""
    """What is known of evaluation texts in the training text, one line."""
    environment: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_protocol_a_measure(self) -> Results:
        names = [m.name for m in self.measures]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"measure {name} stands twice: a number has one protocol, so give the other a name of its own"
                )
        if len({entry.name for entry in self.entries}) < len(self.entries):
            raise ValueError("two entries have one name: give each its own")
        for entry in self.entries:
            if len({run.seed for run in entry.runs}) < len(entry.runs):
                raise ValueError(f"{entry.name} has two runs of one seed")
            for run in entry.runs:
                for point in run.points:
                    if unknown := set(point.values) - set(names):
                        raise ValueError(
                            f"{entry.name} has values of {', '.join(sorted(unknown))}, which is no measure"
                        )
        return self

    def write(self, folder: Path) -> Path:
        """results.json in a folder."""
        file = folder / RESULTS
        file.write_text(json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return file

    @staticmethod
    def read(file: Path) -> Results:
        try:
            return Results.model_validate_json(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ValidationError) as error:
            raise UserError(
                f"{file} is no results.json of this version: {' '.join(str(error).split())[:300]}"
            ) from error
