"""What a measure's value is made of, item by item: kept of each run's last milestone, so that entries can be compared
over items, too.

In results.json they are short: `details[measure]["items"]` holds

    of        what they are: pairs, gaps, questions, documents, …
    outcomes  a sign an item where each is right (1), wrong (0), a tie (h) or was not scored (-): "0110h-1"; else
              numbers between blanks
    groups    how many items each group has, in order; left out where there is one
    weights   what items count for, numbers between blanks; left out where each counts 1
    scale     value = scale × mean over groups of (Σ outcomes / Σ weights), over the items that were scored

or only a list of numbers, one an item, whose mean is the value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SIGNS = {0.0: "0", 0.5: "h", 1.0: "1", None: "-"}
VALUES = {sign: math.nan if value is None else value for value, sign in SIGNS.items()}
MOST = 100_000
"""Characters of the outcomes of a measure; of more none are kept."""
DIGITS = 6
"""Of numbers that are no signs."""


@dataclass(frozen=True)
class Items:
    """(n,) outcomes, nan where not scored; (n,) weights and groups; what makes a value of them."""

    of: str
    outcomes: np.ndarray
    weights: np.ndarray
    group: np.ndarray
    scale: float

    def __len__(self) -> int:
        return len(self.outcomes)

    def fits(self, other: Items) -> bool:
        """Whether both are outcomes of the same items; weights are alike where the models read the same tokens."""
        return (
            (self.of, len(self), self.scale) == (other.of, len(other), other.scale)
            and np.array_equal(self.group, other.group)
            and np.array_equal(self.weights, other.weights)
        )

    def shares(self, among: np.ndarray) -> np.ndarray:
        """(n,) what each of the items (n,) bool counts for, so that value = Σ shares × outcomes; 0 of the others."""
        total = np.bincount(self.group, self.weights * among)
        number = int((total > 0).sum())
        whole = total[self.group]
        shares = np.where(among & (whole > 0), self.scale / np.where(whole > 0, whole, 1.0) / max(number, 1), 0.0)
        return np.asarray(shares)

    def value(self) -> float:
        scored = ~np.isnan(self.outcomes)
        return float(self.shares(scored) @ np.nan_to_num(self.outcomes))


def packed(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """A suite's items (`evaluation.items.outcomes`) as they stand in results.json; None where they are too many.

    >>> packed({"of": "pairs", "values": [1.0, 0.0, 0.5, None], "groups": [2, 2], "weights": None, "scale": 100.0})
    {'of': 'pairs', 'outcomes': '10h-', 'scale': 100.0, 'groups': [2, 2]}
    """
    values: Sequence[float | None] = found["values"]
    if all(v in SIGNS for v in values):
        outcomes = "".join(SIGNS[v] for v in values)
    else:
        outcomes = " ".join("-" if v is None else f"{v:.{DIGITS}g}" for v in values)
    if len(outcomes) > MOST:
        return None
    out = {"of": found["of"], "outcomes": outcomes, "scale": found["scale"]}
    if len(found["groups"]) > 1:
        out["groups"] = list(found["groups"])
    if found["weights"] is not None:
        out["weights"] = " ".join(f"{w:.10g}" for w in found["weights"])
    return out


def unpacked(held: Any, value: float) -> Items | None:
    """What `details[measure]["items"]` holds; None where it holds none, or not what the value is made of."""
    try:
        items = _read(held)
    except (KeyError, TypeError, ValueError):
        return None
    if items is None or len(items) < 2 or not math.isclose(items.value(), value, rel_tol=1e-4, abs_tol=1e-9):
        return None
    return items


def _read(held: Any) -> Items | None:
    if isinstance(held, list):
        n = len(held)
        return Items("items", np.array(held, np.float64), np.ones(n), np.zeros(n, np.int64), 1.0)
    if not isinstance(held, Mapping):
        return None
    text = str(held["outcomes"])
    if " " in text:
        outcomes = np.array([math.nan if v == "-" else float(v) for v in text.split(" ")])
    else:
        outcomes = np.array([VALUES[sign] for sign in text])
    n = len(outcomes)
    weights = np.array([float(w) for w in held["weights"].split(" ")]) if "weights" in held else np.ones(n)
    group = np.repeat(np.arange(len(held["groups"])), held["groups"]) if "groups" in held else np.zeros(n, np.int64)
    if len(weights) != n or len(group) != n:
        return None
    return Items(str(held["of"]), outcomes, weights, group, float(held["scale"]))
