"""One job of a study, in a process of its own: python -m unmask.compare.job DIR/jobs/NAME.job

run     train one entry with one seed, then measure it at its milestones
trial   train one entry for a share of the budget, on the held-out seed
time    how long an update takes (for budget.minutes)

What it found is written to NAME.json, whole or not at all; there is none until the job is done, and a job that is
started again continues its training. A job ends when the process that started it does, whichever way that ends.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from unmask.compare.halves import Half, halved
from unmask.compare.results import Sample, counted
from unmask.config.base import finite
from unmask.errors import Diverged, UserError
from unmask.process import patient_threads

if TYPE_CHECKING:
    from unmask.evaluation.heldout import HeldOut
    from unmask.lm import LM

Kind = Literal["run", "trial", "time"]
MEASURED = "measured at step "
"""How a job says that it is done with a milestone."""
WRITTEN = 24
"""Tokens of a sample."""


@dataclass(frozen=True)
class Spec:
    """What a job does; every path in it is relative to the study's directory, or absolute."""

    kind: Kind
    recipe: dict[str, Any]
    place: str
    cache: str | None = None
    budget: Sequence[Any] = ()
    """Unit, amount, and of minutes an update's seconds; empty: the recipe's own budget holds."""
    share: float = 1.0
    """Of that budget, for this job."""
    milestones: int = 1
    half: Half = "all"
    """Of the held-out documents, that it is measured on."""
    loss: Sequence[str] = ("", "", "")
    """Name, label and protocol of its held-out loss."""
    suites: dict[str, tuple[str | None, int]] = field(default_factory=dict)
    """Name → what it reads, and its limit."""
    prompts: Sequence[str] = ()
    """Texts to fill (with a [MASK]) or to continue."""


def work(spec: Spec, study: Path) -> dict[str, Any]:
    """Do a job; what it found, ready for JSON."""
    from unmask.compare.lengths import Budget, shortened
    from unmask.recipe import validate
    from unmask.run import begin, pretrain
    from unmask.train.plan import read_plan

    recipe, place = validate(spec.recipe, "the job's recipe"), study / spec.place
    steps: list[int] = []
    if spec.budget:
        _, text, _ = begin(recipe, spec.cache, lambda sentence: print(sentence, file=sys.stderr))
        recipe, steps = shortened(recipe, Budget(*spec.budget).updates(recipe, text), spec.share, spec.milestones)
    try:
        run = pretrain(recipe, out=place, resume="auto", cache=spec.cache)
    except Diverged as error:
        if spec.kind != "trial":
            raise
        return {"loss": None, "said": str(error), "falling": False, **_spent(place)}
    if spec.kind == "time":
        plan = read_plan(place / "plan.json")
        return {"seconds_per_step": plan.seconds_per_step if plan is not None else None}
    if spec.kind == "trial":
        found = run.held_out.loss if spec.half == "all" else _Measured(spec, place).loss(steps[-1]).loss
        return {"loss": finite(found), "falling": falling(_losses(place)), **_spent(place)}
    return {"parameters": run.parameters, **measured(spec, place, steps)}


class _Measured:
    """A run that is measured on one half of its held-out documents, or on all of them."""

    def __init__(self, spec: Spec, place: Path) -> None:
        from unmask.building import evaluator
        from unmask.directory import prepared, stored_recipe
        from unmask.networks import networks_of

        self.checkpoints = place / "checkpoints"
        self.recipe = recipe = stored_recipe(place)
        self.text = halved(prepared(place, spec.cache), spec.half)
        self.evaluate = evaluator(recipe, self.text, recipe.shape())
        self.networks = networks_of(recipe.objective, recipe.model)

    def loss(self, step: int) -> HeldOut:
        """The held-out loss of its own objective."""
        from unmask.train import checkpoint

        checkpoint.load_model(self.networks, self.checkpoints / f"step-{step}")
        return self.evaluate(self.networks)


def measured(spec: Spec, place: Path, steps: Sequence[int]) -> dict[str, Any]:
    """A finished run at its milestones; each item's outcome is kept of the last."""
    from unmask.compare import measures
    from unmask.loading import load
    from unmask.train import checkpoint

    run = _Measured(spec, place)
    points: list[dict[str, Any]] = []
    found: dict[str, dict[str, Any]] = {}
    refused: dict[str, str] = {}
    for step in steps:
        lm = load(place, step, run.recipe.device)
        answers, refused = measures.ask(lm, spec.suites, run.text, items=step == steps[-1])
        answers = [measures.loss(run.loss(step), *spec.loss), *answers]
        measures.require_names(answers)
        found |= {a.measure.name: {"suite": a.suite, "measure": a.measure.model_dump(), "why": a.why} for a in answers}
        state = checkpoint.read_state(run.checkpoints / f"step-{step}")
        points.append(
            {
                **counted(state),
                "values": {a.measure.name: finite(a.value) for a in answers},
                "details": {a.measure.name: a.details for a in answers if a.details},
            }
        )
        print(f"{MEASURED}{step}", file=sys.stderr, flush=True)
    return {
        "points": points,
        "measures": found,
        "refused": refused,
        "can": measures.able(lm),
        "samples": [s.model_dump() for p in spec.prompts if (s := sample(lm, p)) is not None],
        "environment": json.loads((place / "environment.json").read_text(encoding="utf-8")),
    }


def sample(lm: LM, prompt: str) -> Sample | None:
    """What a model makes of a prompt, greedily; None where it cannot be asked."""
    fills = "[MASK]" in prompt
    if not lm.can("fill" if fills else "generate"):
        return None
    try:
        if not fills:
            return Sample(asked=prompt, answer=lm.generate(prompt, max_tokens=WRITTEN)[0])
        filled = lm.fill(prompt, top_k=3)
        likeliest = ", ".join(f"{c.token!r} {c.probability:.2f}" for c in filled.masks[0])
        return Sample(asked=prompt, answer=f"{filled.text}\n[MASK] = {likeliest}")
    except UserError as error:  # such as a prompt beyond a short context
        return Sample(asked=prompt, answer=f"(not asked: {error})")


def falling(losses: Sequence[float]) -> bool:
    """Whether a curve of training losses still falls at its end: its last tenth lies below the tenth before it, by
    more than twice the standard error of that difference.

    >>> falling([3 - k / 50 for k in range(100)]), falling([2.0, 1.9] * 50)
    (True, False)
    """
    k = max(len(losses) // 10, 5)
    if len(losses) < 2 * k:
        return False
    before, last = np.array(losses[-2 * k : -k]), np.array(losses[-k:])
    error = math.sqrt((before.var(ddof=1) + last.var(ddof=1)) / k)
    return bool(before.mean() - last.mean() > 2 * error)


def _lines(place: Path) -> list[dict[str, Any]]:
    file = place / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [line for line in map(json.loads, lines) if "loss" in line]


def _losses(place: Path) -> list[float]:
    return [float(line["loss"]) for line in _lines(place) if line["loss"] is not None]


def _spent(place: Path) -> dict[str, float]:
    lines = _lines(place)
    return {key: float(lines[-1][key]) if lines else 0.0 for key in ("flops", "seconds")}


def _end_with_parent() -> None:
    """Leave at once when the other end of stdin closes: a run that is killed at any moment can be continued."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main(file: Path) -> None:
    patient_threads()
    _end_with_parent()
    import torch

    from unmask.train.checkpoint import write_json

    torch.set_num_threads(1)
    try:
        spec = Spec(**json.loads(file.read_text(encoding="utf-8")))
        write_json(file.with_suffix(".json"), work(spec, file.parent.parent))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
