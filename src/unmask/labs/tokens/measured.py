"""The small world under four ways to cut text: white space, characters, BPE over its merges, unigram.

Chunks are GPT-2's (a blank stays before its word; letters, numbers, other signs apart), and no token crosses one. The
line end is a token of every line, so a line's tokens are those of its chunks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Regex, pre_tokenizers

from unmask.data.worlds import World
from unmask.tokens import bpe, unigram_training
from unmask.tokens.bpe import Pair
from unmask.tokens.pieces import GPT2_PATTERN
from unmask.tokens.probes import frequent, grid, misspelt
from unmask.tokens.unigram import Pieces, Unigram

MERGES = 300
"""The number of merges that the lecture notes look at."""
CONTEXT = 96
"""Positions of their model."""
NUMBERS = range(10, 199)
LINES = ("zukun lives in quila.", "95+42=137.", "kari livs in varno.")
"""The lines whose cuts the notes print; livs is misspelt there, too."""
ASKED = (" zukun", " lives", " livs", " kari", " varno")

Cut = Callable[[str], Sequence[str]]
Lines = Sequence[Sequence[str]]
"""Of each line its chunks."""


@dataclass(frozen=True)
class Way:
    """A way to cut a chunk, by which nothing is unknown: all fall back to characters."""

    name: str
    merges: int | None
    vocabulary: int
    cut: Cut


@dataclass(frozen=True)
class Cost:
    """A way to cut the text, and what it costs."""

    name: str
    merges: int | None
    vocabulary: int
    """Different tokens that it has; of words and white space, those of the training text."""
    tokens: int
    """Of the training text."""
    per_line: float
    attention: float
    """Pairs of positions, Σ n² over the lines, relative to characters."""
    unknown: int
    """Tokens of the held-out text that are not in the vocabulary."""
    unknown_kinds: int
    """Different ones."""


@dataclass(frozen=True)
class Spelling:
    """What swapping two inner letters of the text's most frequent words does."""

    name: str
    before: float
    """Mean tokens of a word."""
    after: float
    shared: float
    """Share of the right spelling's tokens that are left."""


@dataclass(frozen=True)
class Measured:
    """What one world shows."""

    lines: int
    characters: int
    chunks: int
    """Different ones."""
    merges: tuple[Pair, ...]
    """Until every chunk of the text is one token."""
    costs: tuple[Cost, ...]
    unknown_words: tuple[str, ...]
    """What is unknown under white space and no sum."""
    numbers: tuple[tuple[str, int | None, dict[int, int]], ...]
    """Cut, merges, and how many of 10 … 198 are one, two, three tokens."""
    halved: tuple[int, ...]
    """Numbers that are more than one token when all merges are made."""
    cuts: dict[str, tuple[Sequence[str], Pieces]]
    """Chunk → how BPE with `MERGES` merges cuts it, and how unigram with BPE's frequencies does."""
    shown: dict[str, tuple[str, ...]]
    """Line → its tokens under BPE with `MERGES` merges."""
    two: dict[str, tuple[tuple[Pieces, float], ...]]
    """Chunk → its two likeliest segmentations, with their share of its probability."""
    alike: tuple[int, int]
    """Chunks that BPE and unigram cut alike, of how many."""
    best_share: float
    """Mean share of the likeliest segmentation in a chunk's probability, over the text."""
    spellings: tuple[Spelling, ...]

    def cost(self, name: str) -> Cost:
        return next(c for c in self.costs if c.name == name)

    def pieces_of_numbers(self, merges: int) -> dict[int, int]:
        return next(n for name, k, n in self.numbers if k == merges)


def chunked(text: str) -> list[str]:
    """
    >>> chunked("zukun lives.")
    ['zukun', ' lives', '.']
    """
    found = pre_tokenizers.Split(Regex(GPT2_PATTERN), "isolated").pre_tokenize_str(text)
    return [chunk for chunk, _ in found]


def bpe_name(merges: int) -> str:
    return f"BPE, {merges} merge{'s' * (merges != 1)}"


def measured(world: World) -> Measured:
    train, valid = world.text(), world.text(split="valid")
    lines = [chunked(line) for line in train.splitlines(keepends=True)]
    chunks = Counter(chunk for line in lines for chunk in line)
    merges = tuple(bpe.learn_merges(chunks, len(train), ties="first", min_frequency=1))
    cutters = ways(chunks, merges)
    by_bpe = next(way.cut for way in cutters if way.merges == MERGES)
    counted = counted_model(chunks, by_bpe)
    cuts = {chunk: (tuple(by_bpe(chunk)), counted.viterbi(chunk)[0]) for chunk in [*chunks, *ASKED]}
    words: Counter[str] = Counter()
    for chunk, n in chunks.items():
        words[chunk.strip()] += n
    return Measured(
        lines=len(lines),
        characters=len(train),
        chunks=len(chunks),
        merges=merges,
        costs=(white_space(train, valid), closed(world, train, valid), *(cost(way, lines) for way in cutters)),
        unknown_words=tuple(sorted(token for token in unknown(train, valid) if "+" not in token)),
        numbers=tuple((way.name, way.merges, pieces(way.cut)) for way in cutters),
        halved=tuple(n for n in NUMBERS if len(bpe.encode(str(n), merges)) > 1),
        cuts={chunk: cuts[chunk] for chunk in ASKED},
        shown={line: tuple(t for chunk in chunked(line) for t in by_bpe(chunk)) for line in LINES},
        two={chunk: shares(counted, chunk, 2) for chunk in ASKED},
        alike=(sum(cuts[chunk][0] == cuts[chunk][1] for chunk in chunks), len(chunks)),
        best_share=sum(n * shares(counted, chunk, 1)[0][1] for chunk, n in chunks.items()) / chunks.total(),
        spellings=tuple(spelling(way, words) for way in cutters),
    )


def ways(chunks: Mapping[str, int], merges: Sequence[Pair]) -> list[Way]:
    """Characters; BPE over its merges; unigram with as many pieces as BPE with `MERGES` merges has tokens."""
    alphabet = sorted(set("".join(chunks)))
    steps = sorted(k for k in {*grid(len(merges)), MERGES} if 0 < k <= len(merges))
    trained = Unigram(unigram_training.learn(chunks, len(alphabet) + MERGES, alphabet=alphabet))
    size = len(trained.scores)
    return [
        Way("characters", None, len(alphabet), list),
        *(Way(bpe_name(k), k, len(alphabet) + k, _by_merges(merges[:k])) for k in steps),
        Way(f"unigram, {size} pieces", None, size, lambda chunk: trained.viterbi(chunk)[0]),
    ]


def _by_merges(merges: Sequence[Pair]) -> Cut:
    return lambda chunk: bpe.encode(chunk, merges)


def counted_model(chunks: Mapping[str, int], cut: Cut) -> Unigram:
    """A unigram model whose probabilities are the frequencies of another cut's tokens, as in the notes."""
    counts: Counter[str] = Counter()
    for chunk, n in chunks.items():
        for token in cut(chunk):
            counts[token] += n
    return Unigram([(token, math.log(n / counts.total())) for token, n in counts.items()])


def shares(model: Unigram, chunk: str, n: int) -> tuple[tuple[Pieces, float], ...]:
    """The n likeliest segmentations, each with its share of the chunk's probability."""
    whole = model.logprob(chunk)
    return tuple((pieces, math.exp(score - whole)) for pieces, score in model.nbest(chunk, n))


# ---------------------------------------------------------------- costs


def cost(way: Way, lines: Lines) -> Cost:
    size = {chunk: len(way.cut(chunk)) for chunk in {chunk for line in lines for chunk in line}}
    return _cost(way.name, way.merges, way.vocabulary, [sum(size[chunk] for chunk in line) for line in lines], lines)


def white_space(train: str, valid: str) -> Cost:
    lines = train.splitlines(keepends=True)
    sizes = [len(line.split()) + 1 for line in lines]
    return _cost("white space", None, len(set(train.split())) + 1, sizes, lines, unknown(train, valid))


def unknown(train: str, valid: str) -> Counter[str]:
    """What white space cuts from the held-out text, and not from the training text."""
    known = set(train.split())
    return Counter(token for token in valid.split() if token not in known)


def closed(world: World, train: str, valid: str) -> Cost:
    """The world's words and marks, and the line end."""
    lines, tokenizer = train.splitlines(keepends=True), world.tokenizer("word")
    unk = tokenizer.vocabulary.need("unk")
    lost = Counter(str(id_) for id_ in tokenizer.encode(valid).tolist() if id_ == unk)
    sizes = [len(ids) for ids in tokenizer.encode_batch(lines)]
    return _cost("words and marks", None, len(world.words()) + 1, sizes, lines, lost)


def _cost(
    name: str,
    merges: int | None,
    vocabulary: int,
    sizes: Sequence[int],
    lines: Lines,
    unknown: Counter[str] | None = None,
) -> Cost:
    """sizes: of each line, its tokens; lines: as strings, or as their chunks."""
    n, characters = np.array(sizes), np.array([sum(map(len, line)) for line in lines])
    attention = float((n**2).sum() / (characters**2).sum())
    lost = unknown or Counter()
    return Cost(name, merges, vocabulary, int(n.sum()), float(n.mean()), attention, lost.total(), len(lost))


# ---------------------------------------------------------------- numbers and misspellings


def pieces(cut: Cut) -> dict[int, int]:
    """How many of the numbers are one token, two, three.

    >>> pieces(list)
    {1: 0, 2: 90, 3: 99}
    """
    counts = Counter(len(cut(str(n))) for n in NUMBERS)
    return {k: counts[k] for k in (1, 2, 3)}


def spelling(way: Way, words: Mapping[str, int]) -> Spelling:
    """Of words in running text: the blank before a word belongs to it."""
    pairs = [(right, wrong) for right in frequent(words) if (wrong := misspelt(right))]
    both = [(way.cut(f" {right}"), way.cut(f" {wrong}")) for right, wrong in pairs]
    before, after = (sum(len(pair[k]) for pair in both) for k in (0, 1))
    kept = sum((Counter(a) & Counter(b)).total() for a, b in both)
    return Spelling(way.name, before / len(both), after / len(both), kept / before)
