"""The learning rate of the laboratories about reviews: python benchmarks/rates.py OUT (docs/labs/architectures.md).

Four architectures under each rate, on a seed that no claim is judged on: ratings that are right, by milestone.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from unmask.data.worlds import World
from unmask.labs.architectures.subjects import ALIGNED, SUBJECTS
from unmask.labs.base import Asked
from unmask.labs.reviews.asked import rating
from unmask.labs.reviews.bench import Found, Moment, trained
from unmask.lm import LM

RATES = (5e-4, 1e-3, 2e-3, 3e-3)
SEED, ASKED = 100, 200


def measure(lm: LM, moment: Moment) -> Found:
    return Found({"rating": rating(lm, moment.world.reviews("valid")[:ASKED])}, {})


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    subjects = [
        replace(s, name=f"{s.name}-{rate:g}", settings={**s.settings, "train.learning_rate": rate})
        for rate in RATES
        for s in SUBJECTS
        if s.name in ALIGNED
    ]
    found = trained(Asked(out, (SEED,), "auto", lambda s: print(s, file=sys.stderr)), subjects, measure, World())
    for name, (made,) in found.items():
        print(f"{name:14}", *(f"{point.values['rating']:.2f}" for point in made.run.points))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
