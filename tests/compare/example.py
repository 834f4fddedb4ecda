"""A study as it may come out: four entries, five seeds, eight milestones; every number is drawn from a key."""

from __future__ import annotations

import math

import numpy as np

from unmask import keyed
from unmask.compare.results import (
    Claim,
    Entry,
    Level,
    Measure,
    Point,
    Results,
    Run,
    Sample,
    Table,
    Tuning,
)
from unmask.compare.statistics import compared

NAMES = ("causal", "prefix", "masked", "t5-span")
MEASURES = [
    Measure(
        name="rating",
        label="Rating accuracy",
        protocol="3 candidates at the open slot",
        better="higher",
        levels=[Level(label="most frequent rating", value=0.5), Level(label="one-word shortcut", value=0.73)],
    ),
    Measure(
        name="fill",
        label="Fill in one pass",
        protocol="16 candidates at a masked word, one forward pass, exact match",
        better="higher",
        levels=[Level(label="chance", value=1 / 16)],
    ),
    Measure(
        name="bpb",
        label="Bits per byte",
        protocol="held-out text, log-probability of every byte by the model's own event",
        better="lower",
        unit="bits",
        levels=[Level(label="unigram floor", value=2.31)],
    ),
]
# end of accuracy, milestone at which half of it is learned, spread over seeds, end of bits per byte
SHAPES = {
    "causal": (0.992, 1.0, 0.004, 1.02),
    "prefix": (0.990, 1.2, 0.005, 1.05),
    "masked": (0.930, 3.5, 0.030, 1.31),
    "t5-span": (0.690, 5.0, 0.110, 1.30),
}


def normal(seed: int, purpose: str) -> float:
    u = keyed.uniform(keyed.row_keys(seed, 0, 0, purpose), np.arange(2))
    return float(np.sqrt(-2 * np.log(1 - u[0])) * np.cos(2 * np.pi * u[1]))


def example(names: tuple[str, ...] = NAMES, seeds: int = 5, milestones: int = 8) -> Results:
    entries = [entry(name, k, seeds, milestones) for k, name in enumerate(names)]
    study = Results(
        title="Four objectives on the small world, at equal compute",
        command="unmask compare causal.yaml prefix.yaml masked.yaml t5-span.yaml budget.flops=2e13 seeds=5 tune=lr:4",
        budget={"flops": 2e13},
        seeds=list(range(seeds)),
        measures=MEASURES,
        entries=entries,
        claims=CLAIMS,
        tables=[TABLE],
        notes=["Milestones are the same for all entries.", "Seconds are of one thread on one core."],
        contamination="0 of 237 evaluation reviews stand in the training text; 12 share a run of 13 words with it.",
        environment={"python": "3.11.7", "torch": "2.11.0", "threads": 1, "device": {"type": "cpu", "cores": 2}},
    )
    return study.model_copy(update={"comparisons": compared(study)})


def entry(name: str, k: int, seeds: int, milestones: int) -> Entry:
    shape = SHAPES[NAMES[k % 4]]
    decoder = k % 4 < 2
    return Entry(
        name=name,
        settings={
            "model": {"layers": 2, "width": 64, "heads": 4, "encoder_layers": 2 if k % 4 == 3 else 0},
            "objective": {"type": NAMES[k % 4], "rate": None if decoder else 0.15},
            "optimizer": {"lr": 3e-3 if decoder else 1e-3, "betas": [0.9, 0.98], "weight_decay": 0.1},
            "budget": {"flops": 2e13},
            "batch": {"tokens": 4096},
            "seed": 0,
        },
        parameters=260_992 if k % 4 == 3 else 125_312,
        flops_per_token=(7.4e5, 7.6e5, 7.5e5, 9.1e5)[k % 4],
        target_density=(1.0, 0.52, 0.15, 0.19)[k % 4],
        can={"score": True, "fill": not decoder, "generate": k % 4 != 2, "embed": True},
        cannot={"fill": "reads from left to right: a gap's right side is not seen in one pass"} if k % 4 == 0 else {},
        tuning=Tuning(
            setting="lr",
            values=[3e-4, 1e-3, 3e-3, 1e-2],
            losses=[2.41, 2.20, 2.11, None] if decoder else [2.93, 2.71, 2.84, 3.30],
            measure="loss on held-out text",
            chosen=3e-3 if decoder else 1e-3,
            edge=False,
            falling=k % 4 == 3,
            flops=8e12,
            seconds=61.0,
            seed=1000,
        ),
        runs=[Run(seed=s, points=points(k, shape, s, milestones), samples=samples(k, s)) for s in range(seeds)],
    )


def points(k: int, shape: tuple[float, ...], seed: int, milestones: int) -> list[Point]:
    end, half, spread, bits = shape
    luck = normal(seed, f"luck of {k}")
    density = (1.0, 0.52, 0.15, 0.19)[k % 4]
    found = []
    for m in range(1, milestones + 1):
        learned = 1 / (1 + math.exp(-2.2 * (8 * m / milestones - half - luck * spread * 8)))
        wobble = normal(seed, f"{k} at {m}") * spread / 3
        rating = min(1.0, max(0.0, 0.46 + (end - 0.46 + luck * spread / 3) * learned + wobble))
        tokens = 4096.0 * 330 * m
        fill = None if k % 4 == 0 else min(1.0, 0.07 + 0.9 * learned * (0.55 if k % 4 == 1 else 1.0) + wobble)
        values = {"rating": round(rating, 4), "fill": fill, "bpb": bits + 2.1 * math.exp(-0.5 * m) + abs(wobble)}
        found.append(
            Point(
                step=330 * m,
                tokens=tokens,
                target_tokens=tokens * density,
                flops=tokens * (7.4e5, 7.6e5, 7.5e5, 9.1e5)[k % 4] * 2,
                seconds=(14.5 + 3 * (k % 4)) * m * (1 + 0.03 * normal(seed, f"time {k} {m}")),
                values=values,
            )
        )
    return found


def samples(k: int, seed: int) -> list[Sample]:
    if seed > 1:
        return []
    rating = ("good", "good", "ok", "ok")[k % 4]
    return [
        Sample(
            asked="review: the soup was tasty and the host was kind. rating:",
            answer=f"{rating}.\nreview: the rice was dull but the host was kind. rating: ok.",
        ),
        Sample(asked="zukun lives in", answer="quila. she has a dog."),
    ]


CLAIMS = [
    Claim(
        statement="Causal and prefix reach .98 at the first milestone in every seed.",
        holds=False,
        evidence="Causal reaches it at 660 steps in 5 of 5 seeds, prefix at 990.",
        source="the lecture notes, section 3.4",
    ),
    Claim(statement="T5's median is later than the masked model's.", holds=True, evidence="2,310 against 1,320 steps."),
    Claim(
        statement="The masked model fills a gap in one pass with .98.",
        holds=None,
        evidence="0.96; the interval holds .98.",
    ),
]
TABLE = Table(
    title="Which adjective decides",
    columns=["link", "reviews", "good", "ok", "bad", "share by one word"],
    rows=[["and", 948, 474, 0, 474, 1.0], ["but", 949, 0, 949, 0, 0.4612], ["none", 0, None, None, None, None]],
    note="Counted over the training reviews.",
)
