"""What is measured of a model at a milestone, and under which name: what has another event has another name.

held-out loss   of an objective's own targets: a measure for each objective (`loss` says which runs share one)
bpb             bits per byte where a model gives texts a probability; pseudo bits per byte, bounds and the like apart
minimal-pairs, choice, cloze with candidates   the same alternatives for all, each model by its own log-probability
cloze without candidates   the answer among all tokens: at the gap, or behind what precedes it where models read forward
package.module:function    whatever it gives (`functions`)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unmask.compare.functions import function, is_function
from unmask.compare.items import packed
from unmask.compare.results import Level, Measure
from unmask.data.shards import Prepared
from unmask.errors import UserError
from unmask.evaluation import suites as suites_of
from unmask.evaluation.heldout import HeldOut, unigram_losses
from unmask.evaluation.items import Options
from unmask.evaluation.plans import FORWARD, LIKELIHOOD
from unmask.evaluation.targets import training_counts
from unmask.lm import LM

HELD_OUT = "held-out loss"
FREQUENCIES = "token frequencies of the training text"
PERCENT = "per cent"


@dataclass(frozen=True)
class Answer:
    """A measure, the suite that it comes from, and a model's value."""

    suite: str
    measure: Measure
    value: float | None
    details: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    """There is no value because …"""


def loss(held: HeldOut, name: str, label: str, protocol: str) -> Answer:
    """The held-out loss of a model's own objective, beside that of a model that knows token frequencies alone."""
    levels = [] if held.unigram_floor is None else [Level(label=FREQUENCIES, value=held.unigram_floor)]
    measure = Measure(name=name, label=label, protocol=protocol, better="lower", levels=levels, unit="nats a target")
    interval = None if held.interval is None else list(held.interval)
    details = {"interval": interval, "targets": held.content_targets, "accuracy": held.accuracy, **held.terms}
    return Answer(HELD_OUT, measure, held.loss, {k: v for k, v in details.items() if v is not None})


def ask(
    lm: LM, suites: Mapping[str, tuple[str | None, int]], text: Prepared, items: bool = False
) -> tuple[list[Answer], dict[str, str]]:
    """The answers to all suites (what each reads, and its limit), and why one cannot be asked of this model at all.

    items: with each item's outcome in the details (`items`).
    """
    found: list[Answer] = []
    refused: dict[str, str] = {}
    for suite, (path, limit) in suites.items():
        try:
            found += own(lm, suite, limit, items) if is_function(suite) else asked(lm, suite, path, limit, text, items)
        except UserError as error:
            if lm.can("score") and not is_function(suite):
                raise  # the items are at fault, not the model
            refused[suite] = str(error)
    return found, refused


def asked(lm: LM, suite: str, path: str | None, limit: int, text: Prepared, items: bool) -> list[Answer]:
    """A suite's answers; bpb's are those of `text`'s held-out side."""
    counts = training_counts(lm, text.train) if suite == "bpb" else None
    options, lm = Options(limit=limit, counts=counts, items=items), lm.told(None)
    chosen = suites_of.checked(lm, suite, options)
    result = chosen.measure(lm, text.valid if suite == "bpb" else chosen.read(lm, path), options)
    return [_answer(suite, part, text) for part in result.get("parts", [result])]


def own(lm: LM, suite: str, limit: int, items: bool) -> list[Answer]:
    """The answers of a function that a study brings (`functions`)."""
    out = []
    for measure, value, details in function(suite)(lm, limit):
        kept = {k: v for k, v in details.items() if items or k != "items"}
        why = "" if value is not None else str(details.get("why", "the function gave no value"))
        out.append(Answer(suite, measure, value, kept, why))
    return out


def require_names(answers: Sequence[Answer]) -> None:
    """A name is that of one measure."""
    names = [a.measure.name for a in answers]
    for a in answers:
        if names.count(a.measure.name) > 1:
            both = " and ".join(dict.fromkeys(b.suite for b in answers if b.measure.name == a.measure.name))
            raise UserError(f"two measures are called {a.measure.name} ({both}): give one of them another name")


def able(lm: LM) -> dict[str, bool]:
    """What a model can be asked."""
    return {"score": lm.can("score"), "fill": lm.can("fill"), "generate": lm.can("generate"), "embed": True}


def _answer(suite: str, result: Mapping[str, Any], text: Prepared) -> Answer:
    make = {"bpb": _bits, "minimal-pairs": _pairs, "cloze": _cloze, "choice": _choice}[suite]
    measure = make(result, text)
    kept = ("plan", "event", "other_events", "interval", "counts", "p_at_10", "mrr", "readings", "terms")
    details = {k: result[k] for k in kept if result.get(k) is not None}
    if "items" in result and (short := packed(result["items"])) is not None:
        details["items"] = short
    why = "" if result["value"] is not None else "nothing of it could be scored: see the counts in results.json"
    return Answer(suite, measure, result["value"], details, why)


def _bits(result: Mapping[str, Any], text: Prepared) -> Measure:
    """By the label that the suite gives, and for pseudo bits by the plan: another plan asks for another event."""
    label, plan = str(result["label"]), str(result["plan"])
    protocol = f"{label} of the held-out text, each model by its own event (see the notes)"
    if plan not in LIKELIHOOD and plan != "bound":
        asked = {"pseudo": "each token masked", "infill": "a gap for each token"}.get(plan, plan.replace("_", " "))
        label = f"{label} ({asked})"
        protocol = (
            f"minus log2 p(token | all others), summed over the held-out text, over its bytes: {asked}; no likelihood"
        )
    elif plan in LIKELIHOOD and result["start"] is None:
        label += " (without each text's first token)"
    levels = []
    if "targets" not in label:
        levels = [Level(label=FREQUENCIES, value=frequencies(text))]
    return Measure(
        name=slug(label), label=sentence(label), protocol=protocol, better="lower", levels=levels, unit="bits"
    )


def frequencies(text: Prepared) -> float:
    """Bits per byte of the held-out text under its tokens' smoothed frequencies in the training text."""
    nats = unigram_losses(np.asarray(text.train.counts), text.tokenizer.vocabulary)
    return float(np.asarray(text.valid.counts) @ nats / np.log(2) / text.valid.bytes.sum())


def _pairs(result: Mapping[str, Any], _: Prepared) -> Measure:
    levels = [Level(label="chance", value=result["chance"])]
    if result["length_baseline"] is not None:
        levels.append(Level(label="the sentence of fewer tokens", value=result["length_baseline"]))
    return Measure(
        name="minimal_pairs",
        label="Minimal pairs",
        protocol="the good sentence of two has the larger log-probability (or pseudo-log-likelihood); mean over sets",
        better="higher",
        levels=levels,
        unit=PERCENT,
    )


def _choice(result: Mapping[str, Any], _: Prepared) -> Measure:
    named = (("chance", "chance"), ("most frequent label", "majority_label"))
    return Measure(
        name="choice",
        label="Multiple choice",
        protocol="the right answer of several has the largest summed log-probability after its context",
        better="higher",
        levels=[Level(label=label, value=result[key]) for label, key in named if result.get(key) is not None],
        unit=PERCENT,
    )


def _cloze(result: Mapping[str, Any], _: Prepared) -> Measure:
    named = (("chance", "chance"), ("most frequent answer", "majority"))
    if str(result["protocol"]).startswith("candidates"):
        name, label = "cloze_candidates", "Cloze, of candidates"
        protocol = "the right candidate, put into the gap, has the largest log-probability; the same candidates for all"
    elif result["plan"] in FORWARD:
        name, label = "cloze_next", "Cloze, next token"
        protocol = (
            "the answer's one token is the likeliest of all after what precedes the gap; what follows is not read"
        )
    else:
        name, label = "cloze_gap", "Cloze, at the gap"
        protocol = "the answer's one token is the likeliest of all in the gap, given both sides"
    levels = [Level(label=known, value=result[key]) for known, key in named if result.get(key) is not None]
    return Measure(name=name, label=label, protocol=protocol, better="higher", levels=levels, unit=PERCENT)


def slug(label: str) -> str:
    """
    >>> slug("pseudo bits per byte (each token masked)")
    'pseudo_bits_per_byte_each_token_masked'
    """
    return re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")


def sentence(label: str) -> str:
    return label[:1].upper() + label[1:]
