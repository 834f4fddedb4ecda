"""Learning a unigram model (Kudo 2018, section 3.2), as sentencepiece's trainer does it.

Start from the frequent substrings; fit their probabilities by EM; drop those whose loss costs the least likelihood;
and again, until few enough are left. Single characters always stay, so every word of known characters has a
segmentation. Nothing is random, and no sum depends on threads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unmask.tokens.bpe import EDGE, LaidOut, run_starts
from unmask.tokens.lattice import (
    LONGEST_PIECE,
    blocks_of,
    characters_of_nodes,
    expected_counts,
    paths,
    viterbi,
)

MOST = 4_000_000
"""Cost of the distinct words kept (`counting.MOST`): the tables take 64 bytes a character."""
SEEDS = 200_000
"""Substrings to start from (sentencepiece takes 1,000,000)."""
MANY = 4
"""Of each length, candidates for this many times as many seeds are looked at."""
STEPS = 2
"""EM steps between two prunings; this and the next three are sentencepiece's."""
KEEP = 0.75
"""Share of the pieces that a pruning leaves."""
SLACK = 1.1
"""Pruning ends at this many times the wanted size; the rarest beyond it are dropped last."""
EXPECTED = 0.5
"""Pieces expected less often than this are dropped after an EM step."""
DIGITS = 6
"""Decimals of the log-probabilities in the result: finer than any text can tell."""


def learn(
    words: Mapping[str, int],
    size: int,
    *,
    alphabet: Sequence[str],
    min_frequency: int = 2,
    forbidden: Collection[str] = (),
    seeds: int = SEEDS,
) -> list[tuple[str, float]]:
    """At most `size` pieces with their log-probabilities, likeliest first.

    Every character of `alphabet` is one; other characters part the words they stand in. Substrings that occur fewer
    than `min_frequency` times are no candidates. The log-probabilities are those of maximum likelihood.
    """
    model = Trainer(words, alphabet, max(2, min_frequency), max(seeds, 2 * size), forbidden)
    while True:
        for _ in range(STEPS):
            model.fit()
        if model.size <= SLACK * size:
            break
        model.prune(max(int(SLACK * size), int(KEEP * model.size)))
    model.keep_likeliest(size)
    for _ in range(STEPS):
        model.fit_likelihood()
    return model.result()


class Trainer:
    """A model in the making: its pieces, their log-probabilities, and where they stand in the words.

    Pieces are numbered from 1, first the characters: 0 is "no piece". place (V + 1,): where a piece stands in the
    text; length (V + 1,); scores (V + 1,). tables (LONGEST_PIECE, nodes): see `lattice.viterbi`.
    """

    def __init__(
        self,
        words: Mapping[str, int],
        alphabet: Sequence[str],
        min_frequency: int,
        seeds: int,
        forbidden: Collection[str],
    ) -> None:
        text = LaidOut(words, alphabet, "", "")
        self.alphabet, self.symbol = text.names, text.symbol
        inside = np.concatenate([[False], self.symbol != EDGE, [False]])
        starts = np.flatnonzero(inside[1:] & ~inside[:-1])
        self.weight = text.weight[starts].astype(np.float64)
        self.blocks = blocks_of(np.flatnonzero(inside[:-1] & ~inside[1:]) - starts)
        self.node = np.zeros(len(self.symbol), np.int32)  # after each character
        for block in self.blocks:
            real = slice(len(block.words), None)
            self.node[characters_of_nodes(block, starts)[real]] = np.arange(*block.columns.indices(2**62))[real]
        self._seed(frequent_substrings(self.symbol, text.weight, min_frequency, MANY * seeds), seeds, forbidden)

    @property
    def size(self) -> int:
        return len(self.scores) - 1

    def _seed(self, levels: list[Level], seeds: int, forbidden: Collection[str]) -> None:
        """The characters, and the substrings that cover most text (count × length)."""
        singles = len(self.alphabet)
        worth = np.concatenate([np.empty(0, np.int64), *(level.worth for level in levels)])
        worth[self._spells(levels, forbidden)] = 0
        chosen = np.argsort(-worth, kind="stable")[: max(0, seeds - singles)]
        chosen = chosen[worth[chosen] > 0]
        number = np.zeros(len(worth), np.int32)
        number[chosen] = np.arange(singles + 1, singles + 1 + len(chosen))

        self.tables = np.zeros((LONGEST_PIECE, self.blocks[-1].columns.stop if self.blocks else 0), np.int32)
        self.place, self.length = np.zeros((2, singles + 1 + len(chosen)), np.int64)
        self.length[1 : singles + 1] = 1
        real = np.flatnonzero(self.symbol != EDGE)
        self.tables[0, self.node[real]] = self.symbol[real] + 1
        done = 0
        for level in levels:
            own = number[done : done + len(level.counts)]
            ends = self.node[level.places + (level.length - 1)]
            self.tables[level.length - 1, ends] = np.repeat(own, np.diff(level.starts))
            self.place[own] = level.first  # of piece 0 it means nothing
            self.length[own] = level.length
            done += len(own)
        self.length[0] = 0
        count = np.bincount(self.symbol[real], minlength=singles)
        weight = np.concatenate([np.maximum(count, EXPECTED), worth[chosen]])
        self.scores = np.concatenate([[-np.inf], np.log(weight / weight.sum())])

    def _spells(self, levels: list[Level], forbidden: Collection[str]) -> np.ndarray:
        """Which of the candidates, counted through all levels, are forbidden strings."""
        number = {name: i for i, name in enumerate(self.alphabet)}
        out = [np.zeros(0, bool)]
        for level in levels:
            bad = np.zeros(len(level.counts), bool)
            for string in forbidden:
                if len(string) == level.length and all(c in number for c in string):
                    symbols = self.symbol[level.first[:, None] + np.arange(level.length)]
                    bad |= (symbols == [number[c] for c in string]).all(1)
            out.append(bad)
        return np.concatenate(out)

    # ------------------------------------------------------------ EM

    def fit(self) -> float:
        """One step towards few pieces: with a sparse Dirichlet prior, exp(digamma(count)) takes the count's place.

        Returns the log-likelihood before it (natural logarithm, all segmentations). Pieces expected less than
        `EXPECTED` times are dropped, characters are not.
        """
        counts, likelihood = self._expected()
        singles = np.arange(len(counts)) <= len(self.alphabet)
        counts[singles] = np.maximum(counts[singles], EXPECTED)
        counts[0] = 0
        self._keep(counts >= EXPECTED)
        counts = counts[counts >= EXPECTED]
        self.scores[1:] = digamma(counts) - digamma(counts.sum(keepdims=True))
        return likelihood

    def fit_likelihood(self) -> float:
        """One step of plain EM: probabilities are shares of expected counts, and the likelihood cannot fall."""
        counts, likelihood = self._expected()
        with np.errstate(divide="ignore"):
            self.scores[1:] = np.log(counts[1:]) - np.log(max(counts.sum(), EXPECTED))
        return likelihood

    def _expected(self) -> tuple[np.ndarray, float]:
        counts, likelihood = np.zeros(len(self.scores)), 0.0
        for block in self.blocks:
            weight = self.weight[block.words]
            likelihood += expected_counts(block, self.tables[:, block.columns], self.scores, weight, counts)
        counts[0] = 0
        return counts, likelihood

    # ------------------------------------------------------------ fewer pieces

    def prune(self, size: int) -> None:
        """Keep the characters and the pieces whose loss would cost most likelihood, at most `size` in all.

        What is lost when a piece goes: in the best segmentations its occurrences become its own best segmentation
        into other pieces. Pieces of no best segmentation go in any case.
        """
        used = self._used()
        multiple = np.flatnonzero((self.length > 1) & (used > 0))
        score, parts, joint = self._alternatives(multiple, used)
        own, total = used[multiple], used.sum()
        after = joint - parts * np.log(total + own * (parts - 1))
        loss = own * (np.log(own) - np.log(total) - after)
        loss[score > self.scores[multiple]] = -np.inf  # not even its own best segmentation
        best = np.argsort(-loss, kind="stable")[: max(0, size - len(self.alphabet))]
        kept = np.arange(len(self.scores)) <= len(self.alphabet)
        kept[multiple[best[loss[best] > -np.inf]]] = True
        self._keep(kept)

    def keep_likeliest(self, size: int) -> None:
        multiple = np.flatnonzero(self.length > 1)
        best = np.argsort(-self.scores[multiple], kind="stable")[: max(0, size - len(self.alphabet))]
        kept = np.arange(len(self.scores)) <= len(self.alphabet)
        kept[multiple[best]] = True
        self._keep(kept)

    def _used(self) -> np.ndarray:
        """(V + 1,) how often each piece stands in the best segmentations of all words."""
        used = np.zeros(len(self.scores))
        for block in self.blocks:
            tables = self.tables[:, block.columns]
            steps = list(paths(block, viterbi(block, tables, self.scores), tables))
            weight = self.weight[block.words]
            pieces = np.concatenate([pieces for _, pieces in steps])
            used += np.bincount(pieces, weight[np.concatenate([words for words, _ in steps])], len(used))
        return used

    def _alternatives(self, pieces: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each piece's best segmentation into others: score, number of parts n, and Σ log(used[n] + its own use)."""
        score, parts, joint = np.zeros((3, len(pieces)))
        place, length = self.place[pieces], self.length[pieces]
        for block in blocks_of(length):
            # Each piece is read where it stands in the text; nodes before it are not looked at.
            tables = self.tables[:, self.node[characters_of_nodes(block, place)]]
            best = viterbi(block, tables, self.scores, whole=False)
            score[block.words] = best.score
            own = used[pieces[block.words]]
            for alive, others in paths(block, best, tables):
                parts[block.words[alive]] += 1
                joint[block.words[alive]] += np.log(used[others] + own[alive])
        return score, parts, joint

    def _keep(self, kept: np.ndarray) -> None:
        """kept (V + 1,) bool; number the others anew, in the same order."""
        kept[0] = True
        number = np.where(kept, np.cumsum(kept) - 1, 0).astype(np.int32)
        for row in self.tables:
            row[:] = number[row]
        self.tables = self.tables[: int(self.length[kept].max(initial=1))]
        self.scores, self.place, self.length = self.scores[kept], self.place[kept], self.length[kept]

    def result(self) -> list[tuple[str, float]]:
        """Likeliest first; equal ones by spelling. A character that no segmentation needs still has a probability."""
        counts, _ = self._expected()
        names = [*self.alphabet, "\0"]  # EDGE is the last
        floor = float(np.log(EXPECTED / counts.sum())) if counts.any() else 0.0
        out = []
        for i in range(1, len(self.scores)):
            place = int(self.place[i])
            symbols = self.symbol[place : place + int(self.length[i])].tolist()
            name = names[i - 1] if i <= len(self.alphabet) else "".join(names[s] for s in symbols)
            out.append((name, round(max(float(self.scores[i]), floor), DIGITS)))
        return sorted(out, key=lambda piece: (-piece[1], piece[0]))


# ---------------------------------------------------------------- candidates


@dataclass(frozen=True)
class Level:
    """The frequent substrings of one length.

    places (k,): where they stand, the first `starts[1]` of them those of substring 0, and so on, each ascending.
    counts (G,): occurrences in the text. worth (G,): count × length, 0 for a substring that one longer by a character
    covers everywhere.
    """

    length: int
    places: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    worth: np.ndarray

    @property
    def first(self) -> np.ndarray:
        return self.places[self.starts[:-1]]


def frequent_substrings(symbol: np.ndarray, weight: np.ndarray, least: int, most: int) -> list[Level]:
    """Of 2 to `LONGEST_PIECE` symbols, inside words, at least `least` times; fewer than `most` of each length.

    A substring is frequent only if the one without its last symbol is, so each length extends the one before.
    """
    places = np.flatnonzero(symbol != EDGE).astype(np.int32)
    name = symbol[places].astype(np.int64)
    alphabet = int(symbol.max(initial=0)) + 1
    levels: list[Level] = []
    for length in range(2, LONGEST_PIECE + 1):
        following = symbol[places + (length - 1)]
        inside = following != EDGE
        places, name, following = places[inside], name[inside], following[inside]
        if not len(places):
            break
        shift = len(symbol).bit_length()
        # (substring, place) as one number, sorted: groups of equal substrings.
        packed = (name * alphabet + following) << shift | places
        packed.sort()
        places = (packed & ((1 << shift) - 1)).astype(np.int32)
        packed >>= shift
        starts = run_starts(packed)
        parent = packed[starts] // alphabet
        counts = np.add.reduceat(weight[places], starts, dtype=np.int64)
        sizes = np.diff(np.append(starts, len(places)))
        if levels:
            levels[-1].worth[parent[counts == levels[-1].counts[parent]]] = 0
        frequent = counts >= least
        if len(counts) > most:
            frequent &= counts > np.partition(counts, len(counts) - most)[len(counts) - most]
        places = places[np.repeat(frequent, sizes)]
        counts, sizes = counts[frequent], sizes[frequent]
        name = np.repeat(np.arange(len(sizes)), sizes)
        levels.append(Level(length, places, np.concatenate([[0], np.cumsum(sizes)]), counts, counts * length))
    return levels


def digamma(x: np.ndarray) -> np.ndarray:
    """The logarithmic derivative of the gamma function, for x > 0, to about 1e-9.

    By its recurrence up to 6, then its asymptotic series (Abramowitz and Stegun 1964, 6.3.5 and 6.3.18).

    >>> digamma(np.array([1.0, 0.5])).round(6).tolist()  # - Euler's constant, and that - 2 log 2
    [-0.577216, -1.96351]
    """
    x = np.array(x, np.float64)
    out = np.zeros_like(x)
    while (small := x < 6).any():
        out[small] -= 1 / x[small]
        x[small] += 1
    square = 1 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    return out + np.log(x) - 0.5 / x - series
