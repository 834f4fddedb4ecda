"""How much of what a study evaluates on stands in its training text (`data.overlap`), in one line."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from unmask.data.overlap import Overlap
from unmask.data.spool import spooled
from unmask.data.text import Text
from unmask.errors import UserError
from unmask.evaluation.choice import read_choice
from unmask.evaluation.gaps import read_gaps
from unmask.evaluation.pairs import read_pairs
from unmask.recipe import Recipe

MOST = 100_000_000
"""Characters of held-out text that are looked for."""


def contamination(recipe: Recipe, suites: Mapping[str, str | None], say: Callable[[str], None]) -> str:
    """A sentence for the held-out text and one for each suite's items; of a stream, its first chapter is looked at."""
    if not recipe.corpus.stream:
        return _found(Text(recipe.corpus, recipe.valid), "the training text", suites, say)
    with (
        tempfile.TemporaryDirectory() as folder,
        spooled(recipe.corpus, recipe.valid, Path(folder)) as chapter,
    ):
        return _found(chapter.text, "the stream's first chapter", suites, say)


def _found(text: Text, where: str, suites: Mapping[str, str | None], say: Callable[[str], None]) -> str:
    looked: dict[str, Overlap] = {}
    short: list[str] = []
    for name, texts in {"held-out text": _held_out(text), **_items(suites)}.items():
        try:
            looked[name] = Overlap(texts)
        except UserError:  # no words, such as of a text of signs
            short.append(name)
    for item in text.items():
        if not item.held_out:
            for overlap in looked.values():
                overlap.add([item.document.text])
    told = [_told(name, overlap) for name, overlap in looked.items()]
    told += [f"{name}: no words to look for" for name in short]
    line = "; ".join(told)
    say(f"found in {where}: {line}")
    return f"Found in {where}: {line}."


def _held_out(text: Text) -> Iterator[str]:
    size = 0
    for item in text.items():
        if item.held_out and size < MOST:
            size += len(item.document.text)
            yield item.document.text


def _items(suites: Mapping[str, str | None]) -> dict[str, Iterator[str]]:
    """Suite → its texts, answers put in."""
    found: dict[str, Iterator[str]] = {}
    for suite, path in suites.items():
        if suite == "minimal-pairs" and path is not None:
            found[suite] = (good for s in read_pairs(path).sets for good, _ in s.pairs)
        elif suite == "cloze":
            found[suite] = (gap.filled(gap.answers[0]) for gap in read_gaps(path).gaps)
        elif suite == "choice" and path is not None:
            found[suite] = (q.context + q.choices[q.label] for q in read_choice(path))
    return found


def _told(name: str, overlap: Overlap) -> str:
    found = overlap.result()
    short = f", {found.short:,} shorter texts are not judged" if found.short else ""
    if not found.documents:
        return f"{name}: no text of {found.n} words or more to look for{short}"
    texts = "text shares" if found.documents == 1 else "texts share"
    return (
        f"{name}: {found.documents_found:,} of {found.documents:,} {texts} {found.n} words in a row with it, "
        f"{found.ngram_share:.1%} of their runs of {found.n} words{short}"
    )
