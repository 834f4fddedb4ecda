"""Train, open, judge, write down."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from unmask.compare.results import Entry, Level, Measure, Point, Results, Run, Sample, counted
from unmask.data.worlds import World
from unmask.directory import stored_recipe
from unmask.labs.base import Asked, claims
from unmask.labs.inside import ablation, temperature
from unmask.labs.inside.lab import LAB
from unmask.labs.inside.model import FIRST, READINGS, Reading, pieces, place, train
from unmask.labs.inside.opened import Opened, open_up
from unmask.labs.inside.statements import STATEMENTS, UNIFORM, Both
from unmask.labs.inside.tables import NAMES, tables
from unmask.labs.processes import side_by_side
from unmask.labs.recorded import recorded
from unmask.lm import LM
from unmask.loading import load
from unmask.train import checkpoint

BITS, FACTS, QUESTIONS = "bits", "facts", "questions"


@dataclass(frozen=True)
class Trained:
    """One model: its learning curve, and what was found in it."""

    points: list[Point]
    opened: Opened


@dataclass(frozen=True)
class Work:
    """A model to train and open, in a process of its own."""

    out: Path
    reading: Reading
    seed: int
    resume: str
    steps: int | None
    world: World

    def __call__(self) -> Trained:
        world, where = self.world, place(self.out, self.reading, self.seed)
        told = lambda line: print(f"{where.name}: {line}", file=sys.stderr, flush=True)
        run = train(world, self.out, self.reading, self.seed, self.resume, told, self.steps)
        kept = sorted(int(file.name.removeprefix("step-")) for file in (where / "checkpoints").glob("step-*"))
        at = [step for step in kept if FIRST <= step < run.counters.step] + [run.counters.step]
        points = [_point(load(where, which=step), world, self.reading, where, step) for step in at]
        return Trained(points, open_up(load(where), world, self.reading, self.seed))


def _point(lm: LM, world: World, reading: Reading, where: Path, step: int) -> Point:
    """Where the run stood after so many updates."""
    state = checkpoint.read_state(where / "checkpoints" / f"step-{step}")
    values = {
        BITS: float(ablation.bits(lm.network, pieces(lm, world, reading)).mean()),
        FACTS: ablation.right(lm, lm.network, ablation.facts(world)),
        QUESTIONS: ablation.right(lm, lm.network, ablation.questions(world)),
    }
    return Point(**counted(state), values=values)


def study(asked: Asked, steps: int | None = None, world: World | None = None) -> Results:
    """Both readings under every seed; steps, world: other ones than the laboratory's, for a trial."""
    todo = [Work(asked.out, r, seed, asked.resume, steps, world or World()) for seed in asked.seeds for r in READINGS]

    def told(k: int, one: Trained) -> str:
        return f"{todo[k].reading}-{todo[k].seed}: {one.points[-1].values[BITS]:.3f} bits a character"

    return record(asked.out, todo, side_by_side(todo, asked.say, told))


def record(out: Path, todo: list[Work], done: list[Trained]) -> Results:
    """What was found, judged."""
    opened = {(work.reading, work.seed): one.opened for work, one in zip(todo, done, strict=True)}
    seeds = sorted({work.seed for work in todo})
    both = [Both(opened["stream", s], opened["lines", s], temperature.measured(s)) for s in seeds]
    entries = [_entry(out, r, [(w, d) for w, d in zip(todo, done, strict=True) if w.reading == r]) for r in READINGS]
    return Results(
        title=LAB.title,
        command="",
        seeds=seeds,
        measures=_measures(),
        entries=entries,
        claims=claims(STATEMENTS, both),
        tables=tables(both),
        notes=list(NOTES),
        contamination="the training text states every fact that is to be completed; it asks nothing about the people "
        "of the new questions",
    )


def _entry(out: Path, reading: Reading, made: list[tuple[Work, Trained]]) -> Entry:
    recipe = stored_recipe(place(out, reading, made[0][0].seed))
    last = made[0][1].points[-1]
    return Entry(
        name=NAMES[reading],
        settings=recorded(recipe, "char", world="all kinds", document=recipe.corpus.document),
        parameters=made[0][1].opened.parameters,
        flops_per_token=last.flops / last.tokens,
        target_density=last.target_tokens / last.tokens,
        can={"score": True, "fill": False, "generate": True, "embed": True},
        runs=[
            Run(
                seed=work.seed,
                directory=str(Path("runs") / place(out, reading, work.seed).name),
                points=one.points,
                samples=[Sample(asked=a, answer=b) for a, b in one.opened.samples],
            )
            for work, one in made
        ],
    )


def _measures() -> list[Measure]:
    greedy = "free generation, the likeliest character each time, right to the letter"
    return [
        Measure(
            name=BITS,
            label="Bits a character of held-out text",
            protocol="−log2 p of every character and line end, from left to right, in windows of at most 95",
            better="lower",
            levels=[Level(label="knows nothing", value=UNIFORM)],
            unit="bits",
        ),
        Measure(
            name=FACTS,
            label="Facts completed",
            protocol=f"“NAME lives in ”, everybody: {greedy}",
            better="higher",
            levels=[Level(label="the commonest city", value=4 / 42)],
        ),
        Measure(
            name=QUESTIONS,
            label="New questions answered",
            protocol=f"“q: where does NAME live? a: ”, the people whom no training question names: {greedy}",
            better="higher",
        ),
    ]


NOTES = (
    "“Lines run on” reads as the notes' model does: windows of 95 characters that begin anywhere in the text, each "
    "behind a line end. “Line by line” begins at a line's start and sees nothing of other lines.",
    "Parts are switched off in a copy of the weights (what they would write is set to 0); the mask is opened in the "
    "record of who sees whom.",
)
