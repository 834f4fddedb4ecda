"""Settings of T5 that were tried once each: python benchmarks/remedies.py OUT (docs/labs/beyond.md).

On a seed that no claim is judged on: ratings that are right at five milestones, and FLOPs beside those of T5's own run.
"""

from __future__ import annotations

import sys
from pathlib import Path

from unmask.data.worlds import World
from unmask.labs.base import Asked
from unmask.labs.beyond.subjects import BOTH, GAP, INITIAL, ONE, SUBJECTS, T5
from unmask.labs.reviews.asked import rating
from unmask.labs.reviews.bench import Found, Moment, trained
from unmask.labs.reviews.setting import STEPS, Subject
from unmask.lm import LM

SEED, ASKED = 100, 200
LAB = {subject.label: subject for subject in SUBJECTS}
MUON = {"train.optimizer": "muon"}


def settings(label: str) -> dict[str, object]:
    return dict(LAB[label].settings)


def rows(number: int, steps: int, **more: object) -> Subject:
    """T5 with batches of so many rows and as many more updates as twice its FLOPs allow."""
    fast = "-fast" if more else ""
    own = {**settings(T5), "train.batch_size": number, **{k.replace("__", "."): v for k, v in more.items()}}
    return Subject(
        f"rows-{number}{fast}", f"{number} rows{' at twice the rate' if more else ''}", own, steps, steps // 5
    )


def measure(lm: LM, moment: Moment) -> Found:
    return Found({"rating": rating(lm, moment.world.reviews("valid")[:ASKED])}, {})


TRIED = (
    Subject("t5", "T5", settings(T5)),
    Subject("muon", "Muon", {**settings(T5), **MUON}),
    Subject("muon-one", "Muon, one stack", {**settings(ONE), **MUON}),
    Subject("one", "one stack, twice the updates", settings(ONE), 2 * STEPS, 2 * STEPS // 5),
    Subject("masks", "masks of 40 %", {**settings(T5), "objective.noise_density": 0.4}, sentinels=13),
    rows(8, 8 * STEPS),
    rows(4, 16 * STEPS),
    rows(8, 8 * STEPS, train__learning_rate=2e-3),
    Subject("initial", INITIAL, settings(INITIAL)),
    Subject("gap", GAP, settings(GAP), 2 * STEPS, 2 * STEPS // 5),
    Subject("both", BOTH, settings(BOTH), 2 * STEPS, 2 * STEPS // 5),
)


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    say = lambda text: print(text, file=sys.stderr, flush=True)
    found = trained(Asked(out, (SEED,), "auto", say), TRIED, measure, World())
    own = found["t5"][0].run.points[-1].flops
    for subject in TRIED:
        points = found[subject.name][0].run.points
        told = " ".join(f"{point.values['rating']:.2f}" for point in points)
        print(f"{subject.label:34} {told}  {points[-1].flops / own:.2f} of T5's FLOPs, {subject.steps:,} updates")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
