"""What each objective makes of one review line, and how often BERT's three fates befall a token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from unmask import keyed
from unmask.batch import Rows, starts
from unmask.data.worlds import World
from unmask.objectives import REGISTRY
from unmask.objectives.denoise import corrupt
from unmask.objectives.masked import Masked
from unmask.show import show
from unmask.show.reading import Words
from unmask.tokens.tokenizer import Tokenizer

SENTINELS, MODES = 8, ("[NLU]", "[S2S]", "[NLG]")
COPIES = 64
"""Of the line, under noise of their own, among which an example is sought."""
PAPER = "Thank you for inviting me to your party last week ."
PAPER_NOISE = ("for", "inviting", "last")
"""Raffel et al. 2020, table 3."""

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Corrupted:
    """What a model reads, and what it is asked."""

    name: str
    reads: str
    asked: str


def tokenizer_of(world: World) -> Tokenizer:
    """The world's words, with room for UL2: its modes, and the 8 sentinels that half of 32 tokens needs."""
    return world.tokenizer("word", sentinels=SENTINELS, extra=MODES)


def _denoiser(mode: str, **noise: float) -> dict[str, Any]:
    return {"denoisers": [{"mode": mode, **noise}]}


OBJECTIVES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("GPT", "causal", {}),
    ("prefix LM", "prefix_lm", {}),
    ("BERT", "masked", {"selection": "independent"}),
    ("ELECTRA", "electra", {"mask_share": 1.0}),
    ("T5, i.i.d.", "iid", {}),
    ("T5, spans of 3", "t5", {}),
    ("BART, infilling", "text_infilling", {}),
    ("UL2, R", "ul2", _denoiser("R", mean_span=3, noise_density=0.15)),
    ("UL2, S", "ul2", _denoiser("S")),
    ("UL2, X", "ul2", _denoiser("X", mean_span=3, noise_density=0.5)),
)
"""Name, objective, and settings on top."""


def corruptions(world: World, line: str, seed: int) -> list[Corrupted]:
    """One line under each objective; of BERT the first copy in which all three fates occur."""
    tokenizer, out = tokenizer_of(world), []
    for name, objective, settings in OBJECTIVES:
        found = show(REGISTRY.make(objective, settings), line, tokenizer=tokenizer, seed=seed, count=COPIES).records
        chosen = next(filter(_all_fates, found), found[0]) if name == "BERT" else found[0]
        out.append(Corrupted(name, *_told(chosen, tokenizer.token)))
    return out


def _fates(record: Record) -> list[tuple[int, int, int]]:
    """Place, what stands there, what is asked there."""
    lm = record["targets"]["lm"]
    return [(i, record["stream"]["tokens"][i], v) for i, v in zip(lm["index"], lm["value"], strict=True)]


def _all_fates(record: Record) -> bool:
    pieces = record["pieces"]
    kinds = {"mask" if pieces[i] == "[MASK]" else "kept" if at == v else "random" for i, at, v in _fates(record)}
    return len(kinds) == 3


def _told(record: Record, spell: Callable[[int], str]) -> tuple[str, str]:
    """What is read and what is asked, as lines of tokens."""
    pieces, source = record["pieces"], record["source"]
    lm = " ".join(spell(v) for v in record["targets"]["lm"]["value"])
    if source is not None:
        return " ".join(source["pieces"]), lm
    if "corrupt_pieces" in record["stream"]:
        detector = record["stream"]["corrupt_pieces"]
        labels = record["targets"]["rtd"]
        changed = [detector[i] for i, v in zip(labels["index"], labels["value"], strict=True) if v]
        return f"{' '.join(pieces)} ⇒ {' '.join(detector)}", f"{lm} ⇒ replaced: {', '.join(changed) or 'none'}"
    fates = [(i, "" if pieces[i] == "[MASK]" else "kept" if at == v else "random", v) for i, at, v in _fates(record)]
    if "[MASK]" not in pieces:
        return " ".join(pieces), lm
    return " ".join(pieces), ", ".join(f"{i} → {spell(v)}{f' ({fate})' if fate else ''}" for i, fate, v in fates)


def papers_example() -> tuple[str, str]:
    """T5's own example, by the code that corrupts a training text; without the end tokens that ours have."""
    words = Words.of(PAPER)
    ids = words.ids(PAPER)
    names = {i: name for name, i in words.table.items()}
    noise = np.array([names[i] in PAPER_NOISE for i in ids.tolist()])
    pair = corrupt(Rows.of([ids]), noise, True, words.vocabulary)
    source, target = (" ".join(names[i] for i in side.tokens[:-1].tolist()) for side in (pair.source, pair.target))
    return source, target


# ---------------------------------------------------------------- fates


@dataclass(frozen=True)
class Fate:
    """A share of all tokens (or of those not masked): exact, as counted, and how far apart in standard deviations."""

    name: str
    exact: Fraction
    counted: float
    off: float


def exact_fates(rate: Fraction = Fraction(15, 100)) -> dict[str, Fraction]:
    """Exercise 6, in fractions of all tokens.

    >>> {name: str(share) for name, share in exact_fates().items()}
    {'[MASK]': '3/25', 'random': '3/200', 'kept': '3/200', 'selected, of those not [MASK]': '3/88'}
    """
    masked, random = rate * Fraction(8, 10), rate * Fraction(1, 10)
    kept = rate - masked - random
    selected = (random + kept) / (1 - masked)
    return {"[MASK]": masked, "random": random, "kept": kept, "selected, of those not [MASK]": selected}


def fates(world: World, seed: int) -> list[Fate]:
    """Counted on the training reviews, each under noise of its own.

    A random token is the text's own once in a while (one in as many as there are words): it is told by the input
    alone, so `kept` is counted with it, and what is exact is so too.
    """
    tokenizer = tokenizer_of(world)
    vocabulary = tokenizer.vocabulary
    ids = tokenizer.encode_batch(world.lines("reviews", "train"))
    rows = Rows.of(ids, keyed.row_keys(seed, 0, np.arange(len(ids)), "noise"))
    found = Masked(selection="independent")(rows, vocabulary)
    at, value = found.targets["lm"].index, found.targets["lm"].value
    there, n = found.stream.tokens[at], int(starts([len(i) for i in ids])[-1])
    own = there == value
    counts = [int((there == vocabulary.need("mask")).sum()), int((~own & (there != vocabulary.need("mask"))).sum())]
    counts.append(int(own.sum()))
    exact = exact_fates()
    hit = exact["random"] / len(vocabulary.ordinary)
    exact |= {"random": exact["random"] - hit, "kept": exact["kept"] + hit}
    rest = counts[1] + counts[2]
    pairs = [*((c, n) for c in counts), (rest, n - counts[0])]
    return [_fate(name, share, *pair) for (name, share), pair in zip(exact.items(), pairs, strict=True)]


def _fate(name: str, share: Fraction, count: int, of: int) -> Fate:
    p = float(share)
    return Fate(name, share, count / of, (count - of * p) / (of * p * (1 - p)) ** 0.5)
