"""How dense every objective's targets are on a corpus, beside what its settings say by formula.

A position is one that a model processes: of the stream, and of the source where there are two stacks. Per 1,000 of
them: targets of the text's own tokens (content), sentinels, and other targets (end tokens, classes, labels).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unmask.batch import Batch, Rows
from unmask.config import CorpusConfig
from unmask.data.loader import Loader
from unmask.data.marks import Bits, TargetText
from unmask.data.sampling import read_rows
from unmask.errors import UserError
from unmask.objectives import REGISTRY
from unmask.objectives.base import Objective, Shape
from unmask.objectives.denoise import PrefixLM, TextToText
from unmask.show import layouts, named
from unmask.show.corruption import corruption
from unmask.show.expected import Expected, expected
from unmask.show.reading import Inside, Splitter, spans_of
from unmask.text.corpus import read as documents
from unmask.tokens.special import Vocabulary
from unmask.tokens.start import started
from unmask.tokens.tokenizer import Tokenizer

STUBS = {
    "target": "the beginning of the next document stands in for the target that a text has",
    "spans": "the second and third word of every five stand in for annotated spans",
}
"""By what an objective needs, what stands for that which a corpus of plain text lacks."""


@dataclass(frozen=True)
class Side:
    """A corpus as the loader reads it."""

    tokens: np.ndarray
    documents: np.ndarray
    word: Bits
    sentence: Bits
    spans: np.ndarray

    @property
    def target(self) -> TargetText:
        """Stands in for targets, which a corpus of plain text has none of: the next document's text."""
        first = self.documents[1]
        ends = np.append(self.documents[1:] - first, self.documents[-1])
        return TargetText(np.roll(self.tokens, -first), ends, np.zeros(0, np.int64))

    def numbered(self, first: int) -> Side:
        """The same with places instead of tokens, as ids from `first` on."""
        return replace(self, tokens=np.arange(first, first + len(self.tokens), dtype=np.int64))

    @staticmethod
    def of(inside: Inside) -> Side:
        word, sentence = (Bits(np.packbits(f, bitorder="little"), len(f)) for f in (inside.word, inside.sentence))
        return Side(inside.ids, inside.start, word, sentence, spans_of(inside.word, 1))


def densities(
    corpus: str,
    only: str | None = None,
    tokenizer: Tokenizer | None = None,
    context: int = 512,
    limit: int = 200_000,
    *,
    settings: Mapping[str, Any] | None = None,
    layout: str | None = None,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """A row for each objective (or `only` one, with `settings`) and layout, over the corpus's first `limit` tokens."""
    texts = beginning(corpus, limit)
    names = [only] if only is not None else REGISTRY.complete()
    if only is not None and layout is not None:
        each = [(only, named(only, layout, settings))]
    else:
        each = [(name, objective) for name in names for objective in in_layouts(name, dict(settings or {}), layout)]
    if not each:
        known = ", ".join(layouts(PrefixLM))
        raise UserError(f"no objective has a layout '{layout}' (text-to-text ones have: {known})")
    split = Splitter.of(tokenizer, "\n".join(texts), (objective for _, objective in each))
    inside = split(texts)
    if not len(inside.ids):
        raise UserError(f"the corpus {corpus} holds no tokens")
    side = Side.of(inside)
    return [density(name, objective, side, split.vocabulary, context, seed) for name, objective in each]


def beginning(corpus: str, limit: int) -> list[str]:
    """Documents of a corpus up to about `limit` tokens of five characters; one alone is parted at blank lines."""
    texts, left = [], 5 * limit
    for document in documents(CorpusConfig(path=corpus)):
        texts.append(document.text[:left])
        left -= len(texts[-1])
        if left <= 0:
            break
    if len(texts) > 1:
        return texts
    paragraphs, parts = [p for p in re.split(r"\n\s*\n", texts[0]) if p.strip()], [""]
    for paragraph in paragraphs:  # pairs of texts need more than one document
        parts[-1] += paragraph + "\n\n"
        if len(parts[-1]) > len(texts[0]) / 16:
            parts.append("")
    return [part for part in parts if part]


def in_layouts(name: str, settings: dict[str, Any], layout: str | None = None) -> Iterator[Objective]:
    """The objective in each of its layouts, or in one."""
    objective = named(name, None, settings)
    kinds = layouts(type(objective))
    if layout is not None:
        yield from (named(name, kind, settings) for kind in kinds if kind == layout)
    elif "layout" in settings or not kinds:
        yield objective
    else:
        yield from (named(name, kind, settings) for kind in kinds)


def density(
    name: str, objective: Objective, side: Side, vocabulary: Vocabulary, context: int, seed: int = 0
) -> dict[str, Any]:
    """What one objective makes of the corpus, each piece once."""
    row: dict[str, Any] = {"objective": name, "layout": layout_of(objective)}
    vocabulary = started(objective, vocabulary)
    try:
        loader = _loader(objective, side, vocabulary, context, seed)
        count, seconds = counted(loader, vocabulary)
    except UserError as error:
        return {**row, "refused": str(error)}
    pieces, k = len(loader.pieces), 1000 / count.positions
    return row | {
        "targets": k * count.targets,
        "content": k * count.content,
        "marks": k * count.marks,
        **_against(expected(objective, texts_of(loader)), count, k),
        "stream": count.stream / pieces,
        "source": (count.positions - count.stream) / pieces if objective.shape(context).source else None,
        "corruption": corruption(_loader(objective, side.numbered(vocabulary.size), vocabulary, context, seed)),
        "tokens/s": round(int(loader.pieces.length.sum()) / seconds),
        **({"stand-in": "; ".join(stubs)} if (stubs := [STUBS[k] for k in STUBS if k in objective.needs]) else {}),
    }


def layout_of(objective: Objective) -> str:
    return str(objective.layout.kind) if isinstance(objective, TextToText) else "in place"


def _against(e: Expected | str, count: Count, k: float) -> dict[str, Any]:
    """The expected densities, and how far the counts are from them in standard deviations; or why there are none."""
    if isinstance(e, str):
        return {"expected": None, "off": None, "expected marks": None, "off marks": None, "unknown": e}
    return {
        "expected": k * e.targets,
        "off": deviations(count.targets, e.targets, e.targets_variance),
        "expected marks": k * e.marks,
        "off marks": deviations(count.marks, e.marks, e.marks_variance),
    }


def deviations(found: float, mean: float, variance: float) -> float:
    """Standard deviations between a count and its expectation; a miss without noise is infinitely many."""
    if abs(found - mean) < 1e-6 * max(1.0, abs(mean)):
        return 0.0
    return float("inf") if variance <= 0 else float((found - mean) / variance**0.5)


# ---------------------------------------------------------------- counting


@dataclass
class Count:
    stream: int = 0
    positions: int = 0
    targets: int = 0
    content: int = 0
    marks: int = 0

    def add(self, batch: Batch, vocabulary: Vocabulary) -> None:
        """Count a batch's real positions, and its targets with weight."""
        self.stream += int((batch.stream.block != 0).sum())
        self.positions += batch.counts()["tokens"]
        ordinary = np.zeros(vocabulary.size, bool)
        ordinary[vocabulary.ordinary] = True
        for key, t in batch.targets.items():
            value = t.value[t.weight != 0]
            self.targets += len(value)
            if batch.heads[key].over == "vocabulary" and value.ndim == 1:
                self.content += int(ordinary[value].sum())
                self.marks += int(np.isin(value, vocabulary.sentinels).sum())


def _loader(objective: Objective, side: Side, vocabulary: Vocabulary, context: int, seed: int) -> Loader:
    shape: Shape = objective.shape(context)
    return Loader(side, objective, vocabulary, shape, rows=64, seed=seed, shuffle=False, kept=side)


def texts_of(loader: Loader) -> Rows:
    """Every piece as the objective reads it, with its partner."""
    which = np.arange(len(loader.pieces))
    key = loader.order.find(which)[1]

    def texts(piece: np.ndarray, key: np.ndarray) -> Rows:
        rows = read_rows(loader.text.tokens, loader.pieces, piece, key, which, 0.0, loader.separator)
        return loader.marks.fill(rows, loader.pieces, piece)

    rows = texts(which, key)
    if loader.targets is not None:
        return replace(rows, partner=loader.targets.read(which, key, which, 0.0))
    return rows if loader.partners is None else replace(rows, partner=texts(*loader.partners(which, key)))


def counted(loader: Loader, vocabulary: Vocabulary) -> tuple[Count, float]:
    """Counts over each piece once, and the seconds that making the batches took."""
    count, seconds, begun = Count(), 0.0, time.perf_counter()
    for batch in loader.once():
        seconds += time.perf_counter() - begun
        count.add(batch, vocabulary)
        begun = time.perf_counter()
    return count, seconds
