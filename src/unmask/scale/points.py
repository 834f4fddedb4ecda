"""Points of a ladder: how large a model was, how much text it saw, what it cost and what loss it reached.

A file holds one point a line (.jsonl) or a row (.csv), under these names, in upper or lower case:

    n        parameters                       d       tokens of training
    loss     held-out, nats a token           flops   of training; 6 n d where it is not given
    n_body   parameters of the layers alone   name    what it is called in messages

Other columns are left alone. What counts as N decides what comes out (Kaplan et al. 2020 and Hoffmann et al. 2022
differ by it; Pearce and Song 2024, Porian et al. 2024):

    all      every parameter, n
    body     n_body: without tables of tokens and positions, and without heads
    flops    flops / 6 d: parameters as their FLOPs count them, the head over the vocabulary and attention included
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unmask.errors import UserError, nearest
from unmask.scale.law import FLOPS_A_PARAMETER, Costs

Counted = Literal["all", "body", "flops"]
"""What counts as N."""
NUMBERS = ("n", "d", "loss", "flops", "n_body")
FEWEST, FEWEST_VALUES = 8, 3
"""Points that five numbers are fitted to, and different N and D among them."""
APART = 1.25
"""Points whose FLOPs differ by less than this factor have one budget."""
LEAST = 100
"""Parameters, and tokens."""
FAR = 1e3
"""Times 6 n d: no FLOPs of a run are so many or so few; its experts and its attention included."""
ALIKE = 0.005
"""Difference of log D between runs that differ by their seed: batches end where documents do."""


@dataclass(frozen=True)
class Points:
    """P points, arrays of shape (P,); `n` as it was asked to be counted."""

    n: np.ndarray
    d: np.ndarray
    loss: np.ndarray
    flops: np.ndarray
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def take(self, which: np.ndarray) -> Points:
        """Those of a mask or of indices (P',)."""
        at = np.arange(len(self))[which]
        return Points(self.n[at], self.d[at], self.loss[at], self.flops[at], tuple(self.names[i] for i in at))

    def budgets(self) -> list[np.ndarray]:
        """Indices of the points of each budget, budgets from small to large, points by N."""
        order = np.argsort(self.flops, kind="stable")
        groups: list[list[int]] = []
        for i in order.tolist():
            if groups and self.flops[i] < APART * self.flops[groups[-1][0]]:
                groups[-1].append(i)
            else:
                groups.append([i])
        return [np.array(sorted(g, key=lambda i: self.n[i])) for g in groups]

    def between(self) -> float | None:
        """Of log loss between runs of one size and (within ALIKE) one amount of text: a standard deviation, pooled.

        >>> n, d, loss = np.array([1e6, 1e6, 2e6]), np.array([1e7, 1e7, 1e7]), np.exp([1.0, 1.2, 0.5])
        >>> round(Points(n, d, loss, 6 * n * d, ("a", "b", "c")).between(), 4)
        0.1414
        """
        order = np.lexsort((self.d, self.n))
        n, d, y = self.n[order], np.log(self.d[order]), np.log(self.loss[order])
        begins = np.flatnonzero((np.diff(n) != 0) | (np.diff(d) > ALIKE)) + 1
        groups = [g for g in np.split(y, begins) if len(g) > 1]
        free = sum(len(g) - 1 for g in groups)
        return float(np.sqrt(sum(((g - g.mean()) ** 2).sum() for g in groups) / free)) if free else None

    def costs(self) -> Costs:
        """FLOPs a token by size: the mean of the points of that size."""
        sizes = np.unique(self.n)
        each = self.flops / self.d
        return Costs(sizes.tolist(), [float(each[self.n == n].mean()) for n in sizes])


def read_points(file: str | Path, counted: Counted = "all") -> Points:
    """The points of a .jsonl or .csv file."""
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"no points in {path}: give a readable .jsonl or .csv file ({error})") from error
    rows = _csv(text, path) if path.suffix.lower() == ".csv" else _jsonl(text, path)
    return collect(((f"{path}, line {line}", row) for line, row in rows), counted, str(path))


def collect(
    rows: Iterable[tuple[str, Mapping[str, Any]]], counted: Counted = "all", where: str = "the points"
) -> Points:
    """Points of rows, each with where it stands."""
    found = [_point(place, row, counted) for place, row in rows]
    if not found:
        raise UserError(f"{where}: no points; write one a line with n, d and loss")
    n, d, loss, flops = np.array([values for _, values in found]).T
    return Points(n, d, loss, flops, tuple(name for name, _ in found))


def check(points: Points) -> None:
    """Raise what keeps the law from being fitted to these points."""
    if len(points) < FEWEST:
        raise UserError(f"{len(points)} points are too few for a law of five numbers: give at least {FEWEST}")
    if len(points.budgets()) == 1:
        raise UserError(
            "all points have one budget, along which size and text cannot be told apart: add runs of another budget"
        )
    for name, values in (("sizes (n)", points.n), ("amounts of text (d)", points.d)):
        if (count := len(np.unique(values))) < FEWEST_VALUES:
            raise UserError(f"the points have {count} different {name}: the law needs at least {FEWEST_VALUES}")


def _point(place: str, row: Mapping[str, Any], counted: Counted) -> tuple[str, tuple[float, float, float, float]]:
    """(name, (n, d, loss, flops)) of one row."""
    given = {str(k).strip().lower(): v for k, v in row.items() if k is not None}
    needs = {"n_body" if counted == "body" else "n", "d", "loss"} - ({"n"} if counted == "flops" else set())
    needs |= {"flops"} if counted == "flops" else set()
    for name in sorted(needs):
        if given.get(name) in (None, ""):
            why = f" (n-counts={counted} needs it)" if name in ("n_body", "flops") else ""
            raise UserError(f"{place} has no {name}{why}; a point is n, d, loss{nearest(name, given)}")
    values = {k: _number(place, k, given[k]) for k in NUMBERS if given.get(k) not in (None, "")}
    for name in ("n", "d"):
        if values.get(name, LEAST) < LEAST:
            raise UserError(f"{place}: {name}={given[name]} is too small to be meant: write all of it, not millions")
    d = values["d"]
    n = values["n_body"] if counted == "body" else values.get("n", 0.0)
    # A point without FLOPs is counted as 6 n d of all its parameters, where they are known.
    flops = values.get("flops", FLOPS_A_PARAMETER * values.get("n", n) * d)
    plain = FLOPS_A_PARAMETER * values.get("n", n) * d
    if "n" in values and not plain / FAR < flops < plain * FAR:
        raise UserError(f"{place}: flops={flops:.3g} is far from 6 n d = {plain:.3g}: n, d and flops want plain units")
    if counted == "flops":
        n = flops / (FLOPS_A_PARAMETER * d)
    return str(given.get("name") or place.rsplit(", ", 1)[-1]), (n, d, values["loss"], flops)


def _number(place: str, name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number <= 0:
        diverged = "; leave a run that diverged out" if name == "loss" else ""
        raise UserError(f"{place}: {name}={value} is no number above 0{diverged}")
    return number


def _jsonl(text: str, path: Path) -> Sequence[tuple[int, Mapping[str, Any]]]:
    rows = []
    for line, written in enumerate(text.splitlines(), 1):
        if not written.strip():
            continue
        try:
            row = json.loads(written)
        except ValueError as error:
            raise UserError(f"{path}, line {line} is not JSON ({error}): write one object a line") from error
        if not isinstance(row, dict):
            raise UserError(f'{path}, line {line} is no object: write {{"n": …, "d": …, "loss": …}}')
        rows.append((line, row))
    return rows


def _csv(text: str, path: Path) -> Sequence[tuple[int, Mapping[str, Any]]]:
    """Rows below a head of names; cells are parted by a comma, a semicolon or a tab."""
    head = text.partition("\n")[0]
    reader = csv.DictReader(io.StringIO(text), delimiter=max(",;\t", key=head.count))
    names = {str(name).strip().lower() for name in reader.fieldnames or ()}
    if text.strip() and not names & set(NUMBERS):
        raise UserError(f"{path}: the first line names none of {', '.join(NUMBERS)}: write n,d,loss above the numbers")
    rows = [(reader.line_num, row) for row in reader]
    for line, row in rows:
        if None in row:
            raise UserError(f"{path}, line {line} has more cells than the first line: write 1000000, not 1,000,000")
    return rows
