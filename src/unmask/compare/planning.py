"""What is decided before the first run, and written to DIR/plan.json so that a resumed study decides nothing anew:
how long an update takes, what a run costs, the names of the losses, and what all are asked for as samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from unmask.building import resolve, training_batches
from unmask.compare.contamination import contamination
from unmask.compare.halves import LEAST
from unmask.compare.lengths import milestones
from unmask.compare.settings import Study
from unmask.config import Strict
from unmask.data.shards import Prepared
from unmask.errors import UserError
from unmask.networks import batch_flops
from unmask.recipe import Recipe
from unmask.run import begin
from unmask.train.checkpoint import write_json
from unmask.train.plan import mean_cost

PLAN = "plan.json"
SAMPLE = 16
"""Updates whose batches tell about what a run costs."""
WORDS, DOCUMENTS = 8, 64
"""Of a prompt, and how many documents it is looked for in."""
Say = Callable[[str], None]


class Planned(Strict):
    """One entry."""

    updates: int
    """Of the first seed's run; another seed's may differ a little (`lengths`)."""
    flops: float
    """Of that run, about."""
    seconds: float | None
    """Of an update, where the budget is in minutes."""
    loss: tuple[str, str, str]
    """Name, label and protocol of the measure of its held-out loss."""
    tokenizer: str
    """Its fingerprint."""


class Plan(Strict):
    entries: dict[str, Planned]
    halves: bool = False
    """Whether one half of the held-out documents tunes and the other measures."""
    prompts: list[str]
    contamination: str
    notes: list[str] = Field(default_factory=list)


def planned(
    study: Study, out: Path, cache: str | Path | None, say: Say, pace: Callable[[], Mapping[str, float]]
) -> Plan:
    """The plan of a study, made once. pace: seconds of an update by entry, asked for with budget.minutes alone."""
    file = out / PLAN
    if file.exists():
        return _read(file)
    say = _once(say)
    found: dict[str, Planned] = {}
    texts: dict[str, Prepared] = {}
    losses: dict[str, str] = {}
    _require_one_stage(study)
    seconds = pace() if "minutes" in study.budget else {}
    for name in study.entries:
        try:
            recipe, text, _ = begin(study.recipe(name), cache, say)
            recipe = resolve(recipe.model_copy(update={"seed": study.seeds[0]}), text.tokenizer)
            updates = study.budgeted(seconds.get(name)).updates(recipe, text)
            at = ", ".join(map(str, milestones(updates, study.milestones)))
        except UserError as error:
            raise UserError(f"entry {name}: {error}") from error
        texts[name] = text
        flops = _flops(recipe, text, updates)
        say(f"{name}: {updates:,} updates of {flops / updates:.3g} FLOPs, milestones at {at}")
        losses[name] = _asked(recipe, text)
        found[name] = Planned(
            updates=updates,
            flops=flops,
            seconds=seconds.get(name),
            loss=_named(name, recipe, losses, found),
            tokenizer=text.tokenizer.fingerprint,
        )
    first = next(iter(study.entries))
    told = contamination(study.recipe(first), {s: asked.path for s, asked in study.suites.items()}, say)
    documents = min(len(text.valid) for text in texts.values())
    halves = study.tune is not None and documents >= LEAST
    plan = Plan(
        entries=found,
        halves=halves,
        prompts=prompts(texts[first]),
        contamination=told,
        notes=[*_notes(found), *_tuned(study, halves, documents), *_initial(study)],
    )
    write_json(file, plan.model_dump(mode="json"))
    return plan


def _flops(recipe: Recipe, text: Prepared, updates: int) -> float:
    """About, of a run of so many updates."""
    batches = training_batches(recipe, text)

    def flops(step: int) -> float:
        return sum(batch_flops(recipe.model, b, recipe.objective) for b in batches(step, step / updates))

    return updates * mean_cost(recipe.train.begins(updates), updates, SAMPLE, flops)


def _require_one_stage(study: Study) -> None:
    """Where the budget is in minutes: an update is timed at the start of a run, and stages differ."""
    for name in study.entries if "minutes" in study.budget else ():
        if study.recipe(name).train.stages:
            raise UserError(
                f"entry {name}: budget.minutes times the first updates, and with train.stages later ones take another "
                "time: give budget.steps, tokens, target_tokens or flops"
            )


def _once(say: Say) -> Say:
    """What is said of the text is said for the first entry only."""
    said: set[str] = set()

    def speak(sentence: str) -> None:
        if sentence not in said:
            said.add(sentence)
            say(sentence)

    return speak


def _read(file: Path) -> Plan:
    try:
        return Plan.model_validate(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise UserError(f"{file} is no plan of a study: {' '.join(str(error).split())[:200]}") from error


# ---------------------------------------------------------------- names, prompts, notes


def _asked(recipe: Recipe, text: Prepared) -> str:
    """What a held-out loss depends on beside the weights: two entries with the same share a measure."""
    values = [
        recipe.objective.model_dump(mode="json"),
        text.tokenizer.fingerprint,
        recipe.context,
        recipe.target_context,
        recipe.evaluation.pieces,
        recipe.start,
        recipe.end,
    ]
    return json.dumps(values, sort_keys=True)


def _named(name: str, recipe: Recipe, losses: Mapping[str, str], found: Mapping[str, Planned]) -> tuple[str, str, str]:
    """The measure of an entry's loss: that of an earlier entry with the same one, or a new one."""
    for other, planned in found.items():
        if losses[other] == losses[name]:
            return planned.loss
    kind = recipe.objective.type
    alone = kind not in {p.loss[0].removeprefix("loss_") for p in found.values()}
    key = f"loss_{kind}" if alone else f"loss_{kind}_{name}"
    label = f"Held-out loss, {kind.replace('_', ' ')}" + ("" if alone else f" as in {name}")
    protocol = (
        f"the targets of objective {kind} as entry {name} sets it, on held-out text, at noise that is the same for "
        "every run; other objectives have a loss of their own, which this one is not compared with"
    )
    return key, label, protocol


def prompts(text: Prepared) -> list[str]:
    """One gap to fill and one beginning to continue: the longest of the first held-out documents, cut after 8 words."""
    each = (text.tokenizer.decode(text.valid.document(k)[: 16 * WORDS]) for k in range(min(len(text.valid), DOCUMENTS)))
    words = max((t.split()[:WORDS] for t in each), key=len)
    middle = len(words) // 2
    if not middle:
        return []
    return [" ".join([*words[:middle], "[MASK]", *words[middle + 1 :]]), " ".join(words[:middle])]


def _tuned(study: Study, halves: bool, documents: int) -> list[str]:
    """How the learning rates come about, and on which text they are chosen."""
    tune = study.tune
    if tune is None:
        return ["No tuning: each entry runs at its recipe's learning rate."]
    chosen = (
        "the loss on one half of the held-out documents; the other half measures the runs."
        if halves
        else f"the loss on the held-out text, which also measures the runs: {documents:,} "
        f"{'document is' if documents == 1 else 'documents are'} too few to be halved."
    )
    each = f"{tune.count} learning rates for each entry, each trained for {tune.share:g} of the budget"
    return [f"Tuning: {each} on seed {tune.seed}; chosen by {chosen}"]


def _initial(study: Study) -> list[str]:
    """Entries that do not begin with random weights: what made these is no part of the budget."""
    begun = {name: recipe.init for name in study.entries if (recipe := study.recipe(name)).init is not None}
    listed = "; ".join(f"{name} from those of {place}" for name, place in begun.items())
    return [f"Not all begin with random weights: {listed}. What these cost is not in the budget."] if begun else []


def _notes(found: Mapping[str, Planned]) -> list[str]:
    notes = []
    kinds: Sequence[str] = list(dict.fromkeys(p.tokenizer for p in found.values()))
    if len(kinds) > 1:
        groups = [", ".join(n for n, p in found.items() if p.tokenizer == kind) for kind in kinds]
        notes.append(
            f"Tokenizers differ ({'; '.join(groups)}): losses a token are no common scale then. Bits per byte are: "
            "compare these."
        )
    if len({p.loss[0] for p in found.values()}) > 1:
        notes.append(
            "A held-out loss is that of an entry's own objective: it has a column of its own wherever the objective, "
            "its settings or the tokenizer differ."
        )
    return notes
