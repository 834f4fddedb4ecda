"""The demo: four architectures, first in a small world with a known truth, then on the user's text.

The first part is laboratory `architectures` in small (docs/labs/architectures.md). The second: one text, one tokenizer,
the same number of processed tokens.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from unmask.compare.measures import Answer, able, asked, loss
from unmask.compare.report import write_report
from unmask.compare.results import Entry, Measure, Point, Results, Sample, counted
from unmask.compare.results import Run as Seed
from unmask.compare.statistics import compared
from unmask.directory import environment, prepared, stored_recipe
from unmask.errors import UserError
from unmask.labs.architectures.picture import picture
from unmask.labs.architectures.study import SHORT, small
from unmask.labs.base import PICTURE
from unmask.labs.reviews.setting import EVERY, STEPS
from unmask.lm import LM
from unmask.loading import load
from unmask.recipe import load_recipe
from unmask.run import Run, begin, pretrain, read_held_out_text
from unmask.train.floor import ABOVE, at_floor

RECIPES = ("encoder-small", "decoder-small", "prefix-small", "encdec-small")
TOKENS = 600_000
"""Processed tokens for each model."""
OVERRIDES: Mapping[str, Any] = {
    "corpus.valid_fraction": 0.1,
    "tokenizer.vocab_size": 2048,
    "model.hidden_size": 128,
    "model.num_heads": 4,
    "evaluation.pieces": 256,
}
PIECES = 512
"""Of held-out text, for bits per byte."""


@dataclass(frozen=True)
class Shown:
    """One model's line of the table, and what it says."""

    recipe: str
    run: Run
    settings: Mapping[str, Any]
    can: dict[str, bool]
    loss: Answer
    """On held-out text, of its own objective."""
    bits: Answer
    """A byte of held-out text, by its own event."""
    difference: float
    """Between its logits and those of the exported model."""
    sample: Sample


def demo(corpus: str | None, out: Path, tokens: float | None = None) -> list[Shown]:
    """Train, measure, sample and export the four small models; print one table."""
    begun = time.perf_counter()
    if out.is_file():
        raise UserError(f"{out} is a file: give --out a directory")
    if out.exists() and any(out.iterdir()):
        out = _fresh(out)
    tokens = TOKENS if tokens is None else tokens
    if not 0 < tokens < math.inf:
        raise UserError(f"--tokens {tokens:g} trains nothing: give a number above 0, as in --tokens 600000")
    path = corpus or str(_prose(out))
    begin(load_recipe(RECIPES[0], _settings(path, tokens)), None, _say)  # a text that cannot be read is refused at once
    _say(f"first a small world with a known truth, in which two adjectives decide a rating; then {path}")
    _small_world(out / "world", min(SHORT, max(STEPS // EVERY, round(SHORT * tokens / TOKENS))))
    shown = [_one(recipe, path, out, tokens) for recipe in RECIPES]
    found = _record(shown, path, tokens)
    found.write(out)
    write_report(found, out)
    _print(shown, path, out, time.perf_counter() - begun)
    return shown


def _settings(corpus: str, tokens: float) -> dict[str, Any]:
    return {"corpus": corpus, "budget.tokens": tokens, **OVERRIDES}


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _small_world(out: Path, steps: int) -> None:
    """Laboratory `architectures` in small: who learns first that two adjectives decide a rating?"""
    out.mkdir(parents=True, exist_ok=True)
    found = small(out, _say, steps)
    found = found.model_copy(update={"command": "unmask demo", "environment": environment()})
    found.write(out)
    write_report(found, out)
    (out / PICTURE).write_text(picture(found), encoding="utf-8")
    measure = found.measures[0]
    table = _table("Four architectures in a small world: ratings that are right")
    for name in ("model", "parameters", *(f"step {p.step}" for p in found.entries[0].runs[0].points), "seconds"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for entry in found.entries:
        points = entry.runs[0].points
        values = (f"{p.values[measure.name]:.2f}" for p in points)
        table.add_row(entry.name, f"{entry.parameters:,}", *values, f"{points[-1].seconds:.0f}")
    console = _console()
    console.print(table)
    levels = ", ".join(f"{level.label} {level.value:.2f}" for level in measure.levels)
    console.print(
        f"\n{measure.protocol}.\nLevels: {levels}. The whole of it: unmask lab architectures out=DIR\n"
        f"Page and picture: {out / 'report.html'}, {out / PICTURE}\n",
        markup=False,
    )


def _fresh(out: Path) -> Path:
    """The first of out-2, out-3, … that does not exist: nothing that was written is overwritten."""
    k = 2
    while out.with_name(f"{out.name}-{k}").exists():
        k += 1
    return out.with_name(f"{out.name}-{k}")


def _prose(out: Path) -> Path:
    """The English prose that ships with every CPython, one topic a document."""
    from pydoc_data.topics import topics

    out.mkdir(parents=True, exist_ok=True)
    path = out / "python-topics.jsonl"
    lines = (json.dumps({"id": name, "text": text}) for name, text in sorted(topics.items()))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _one(recipe: str, corpus: str, out: Path, tokens: float) -> Shown:
    place = out / recipe
    run = pretrain(load_recipe(recipe, _settings(corpus, tokens)), out=place, say=_but_floor)
    lm = load(place)
    protocol = f"nats a content target of held-out text, by the objective of {recipe} alone"
    held_out = loss(run.held_out, f"loss_{recipe}", f"Held-out loss, {recipe}", protocol)
    (bits,) = asked(lm, "bpb", None, PIECES, prepared(place), items=True)
    return Shown(
        recipe,
        run,
        stored_recipe(place).model_dump(mode="json", exclude={"checkpoint"}),
        able(lm),
        held_out,
        bits,
        lm.export(out / f"{recipe}-hf")["difference"],
        _sample(lm, read_held_out_text(place)),
    )


def _but_floor(sentence: str) -> None:
    if ABOVE not in sentence:
        _say(sentence)


def _sample(lm: LM, text: str) -> Sample:
    """A fill of one word of held-out text where the model can fill, else a continuation of its beginning."""
    words = text.split()[:14]
    if not words:
        raise UserError("the held-out text has no words: give a larger corpus")
    if lm.can("fill"):
        hidden = len(words) // 2
        given = " ".join([*words[:hidden], "[MASK]", *words[hidden + 1 :]])
        answers = lm.fill(given, top_k=3).masks[0]
        likeliest = ", ".join(f"'{_shown(a.token)}' ({a.probability:.2f})" for a in answers)
        return Sample(asked=given, answer=f"[MASK] = {likeliest}")
    given = " ".join(words[:8])
    return Sample(asked=f"{given} …", answer=lm.generate(given, max_tokens=24, temperature=0.7, top_k=40)[0])


def _record(shown: list[Shown], corpus: str, tokens: float) -> Results:
    """What was found on the user's text, for its page."""
    answers = [answer for s in shown for answer in (s.bits, s.loss)]
    measures: dict[str, Measure] = {answer.measure.name: answer.measure for answer in answers}
    order = sorted(measures.values(), key=lambda m: m.name.startswith("loss_"))  # bits first: some share them
    found = Results(
        title=f"Four architectures on {corpus}",
        command="unmask demo",
        budget={"tokens": tokens},
        seeds=[shown[0].settings["seed"]],
        measures=order,
        entries=[_entry(s, order) for s in shown],
        notes=[
            *(f"{s.bits.measure.label}, {s.recipe}: {s.bits.details['event']}." for s in shown),
            "Samples begin with the first words of the held-out text.",
        ],
        environment=environment(),
    )
    return found.model_copy(update={"comparisons": compared(found)})


def _entry(s: Shown, measures: list[Measure]) -> Entry:
    own, counters = {a.measure.name: a for a in (s.bits, s.loss)}, s.run.counters
    point = Point(
        **counted(vars(counters)),
        values={name: answer.value for name, answer in own.items()},
        details={name: answer.details for name, answer in own.items()},
    )
    return Entry(
        name=s.recipe,
        settings=dict(s.settings),
        parameters=s.run.parameters,
        flops_per_token=counters.flops / counters.tokens,
        target_density=counters.target_tokens / counters.tokens,
        can=s.can,
        cannot={m.name: "it has another objective, and a measure of its own" for m in measures if m.name not in own},
        runs=[Seed(seed=s.settings["seed"], directory=s.recipe, points=[point], samples=[s.sample])],
    )


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 128, highlight=False)


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=None, pad_edge=False)


def _shown(token: str) -> str:
    return token.replace("\n", "\\n")


def _print(shown: list[Shown], corpus: str, out: Path, seconds: float) -> None:
    columns: dict[str, Callable[[Shown], str]] = {
        "model": lambda s: s.recipe,
        "parameters": lambda s: f"{s.run.parameters:,}",
        "tokens": lambda s: f"{s.run.counters.tokens:,}",
        "target tokens": lambda s: f"{s.run.counters.target_tokens:,}",
        "FLOPs": lambda s: f"{s.run.counters.flops:.2e}",
        "seconds": lambda s: f"{s.run.counters.seconds:.0f}",
        "held-out loss": lambda s: f"{s.run.held_out.loss:.3f}",
        "unigram floor": lambda s: f"{s.run.held_out.unigram_floor:.3f}",
        "bits per byte": lambda s: f"{s.bits.value:.3f}" + (" (pseudo)" if "seudo" in s.bits.measure.label else ""),
        "export diff": lambda s: f"{s.difference:.1e}",
    }
    console = _console()
    table = _table(f"Four architectures on {corpus}")
    for name in columns:
        table.add_column(name, justify="left" if name == "model" else "right")
    for s in shown:
        table.add_row(*(f(s) for f in columns.values()))
    console.print(table)
    console.print(
        "\nheld-out loss: nats per content target (sentinels, separators, end tokens apart), under each model's own\n"
        "objective; the floor is the entropy of the same targets under add-one unigram counts of the training text.\n"
        "bits per byte is a likelihood of the text; pseudo bits per byte, each token given all others, is none.\n"
        "export diff: largest logit difference after reloading with transformers (prefix-small under its own mask).\n",
        markup=False,
    )
    _say_what_they_learnt(shown, console)
    console.print(f"{seconds:.0f} s in all. Page: {out / 'report.html'}; runs and exported models: {out}", markup=False)


def _say_what_they_learnt(shown: list[Shown], console: Console) -> None:
    """Who has learnt no context, and a sample of each."""
    if low := [s.recipe for s in shown if _at_floor(s.run)]:
        console.print(
            f"{ABOVE.capitalize()}: {', '.join(low)}.\n"
            "Such a model knows word frequencies at best, and no context yet: give more --tokens.\n",
            markup=False,
        )
    console.print("Samples, which begin with the first words of the held-out text:\n", markup=False)
    for s in shown:
        console.print(f"{s.recipe}: {s.sample.asked}\n→ {s.sample.answer}\n", markup=False)


def _at_floor(run: Run) -> bool:
    held = run.held_out
    return held.unigram_floor is not None and at_floor(held.loss, held.unigram_floor)
