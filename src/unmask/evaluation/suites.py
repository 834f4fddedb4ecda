"""Measurements by name: each is one pure function (model, data, options) → dictionary, ready for JSON.

bpb            bits per byte of text; for models that give texts no probability, pseudo bits per byte, labelled so; for
               those that write a target for a source, bits per byte of targets given sources
minimal-pairs  does the model prefer the good sentence of two? (BLiMP's format)
cloze          what does it put into a gap: one of several candidates, or any token of the vocabulary
choice         which of several answers to a context has the largest log-probability

Every dictionary names its protocol, the plan by which texts were scored and the event whose log-probability was
summed; `value` is its one number, `interval` how far that would move with another sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unmask.config import SourceConfig
from unmask.errors import UserError, nearest
from unmask.evaluation.base import Model, objective_of
from unmask.evaluation.bpb import Encoded, bits_per_byte, encode
from unmask.evaluation.choice import multiple_choice, read_choice
from unmask.evaluation.cloze import cloze
from unmask.evaluation.gaps import read_gaps
from unmask.evaluation.items import Options
from unmask.evaluation.pairs import minimal_pairs, read_pairs
from unmask.evaluation.plans import plan_of
from unmask.evaluation.targets import EncodedPairs, asks_pairs, bits_of_targets, encode_pairs
from unmask.text.corpus import Counts, read

__all__ = ["SUITES", "Suite", "checked", "encode", "evaluate"]


Given = str | Path | SourceConfig | None
"""What a suite reads: a path, or for bpb also the settings of a source."""


def _path(given: str | Path | SourceConfig) -> str | Path:
    return given.path if isinstance(given, SourceConfig) else given


@dataclass(frozen=True)
class Suite:
    """read      a path → what is measured on; the model is asked only by those that need its tokenizer
    measure   the pure function
    own       what stands for a missing path: the run's held-out text, a shipped battery, or nothing
    rolls     long texts may be read in rolling windows (`Options.stride`)
    """

    read: Callable[[Model, Given], Any]
    measure: Callable[[Model, Any, Options], dict[str, Any]]
    own: str | None = None
    rolls: bool = False


def _text(model: Model, given: Given) -> Encoded | EncodedPairs:
    if given is None:
        raise UserError("no text to evaluate on: give a file")
    counts = Counts()
    source = given if isinstance(given, SourceConfig) else SourceConfig(path=str(given))
    if not asks_pairs(model):
        encoded = encode(model, (d.text for d in read(source, counts)))
        return replace(encoded, notes=tuple(counts.notes()))
    if source.target is None:
        raise UserError(
            f"a model of pairs writes targets for sources, and {source.path} names none: say which key or column holds "
            "them (--target KEY), beside that of the sources (--field KEY), or leave the text out: the run's held-out "
            "part is measured"
        )
    pairs = [(d.text, d.target) for d in read(source, counts) if d.target is not None]
    return replace(encode_pairs(model, pairs), notes=tuple(counts.notes()))


def _bits(model: Model, data: Any, options: Options) -> dict[str, Any]:
    o = options
    if asks_pairs(model):
        found = bits_of_targets(model, data, o)
    else:
        found = bits_per_byte(
            model, data, o.counts, o.limit, o.seed, plan=o.plan, stride=o.stride, watch=o.watch, items=o.items
        )
    given = isinstance(data, Encoded | EncodedPairs) and data.notes
    return {**found, "warnings": list(data.notes)} if given else found


def _given(read_file: Callable[[str | Path], Any], what: str) -> Callable[[Model, Given], Any]:
    def reader(model: Model, given: Given) -> Any:
        if given is None:
            raise UserError(f"no {what}: give a file of JSON lines, or a directory of them")
        return read_file(_path(given))

    return reader


SUITES: dict[str, Suite] = {
    "bpb": Suite(_text, _bits, own="held-out text", rolls=True),
    "minimal-pairs": Suite(_given(read_pairs, "pairs"), minimal_pairs),
    "cloze": Suite(lambda model, given: read_gaps(None if given is None else _path(given)), cloze, own="battery"),
    "choice": Suite(_given(read_choice, "questions"), multiple_choice),
}


def checked(model: Model, suite: str, options: Options) -> Suite:
    """A suite by name; what is asked of it fits it and the model (said before anything is read)."""
    if suite not in SUITES:
        raise UserError(f"no suite '{suite}' (known: {', '.join(SUITES)}){nearest(suite, SUITES)}")
    plan_of(objective_of(model), options.plan, model.objective)
    if options.stride is not None and not SUITES[suite].rolls:
        rolling = ", ".join(name for name, s in SUITES.items() if s.rolls)
        raise UserError(f"{suite} reads no rolling windows: drop stride={options.stride}, which is for {rolling}")
    return SUITES[suite]


def evaluate(model: Model, suite: str, data: Any, options: Options | None = None) -> dict[str, Any]:
    """Run a suite by name on what it reads."""
    options = options or Options()
    return checked(model, suite, options).measure(model, data, options)
