"""The unigram model of segmentation (Kudo 2018, "Subword regularization", section 3.2).

A segmentation's probability is the product of its pieces'; a word's is the sum over its segmentations. This reads a
model; `unigram_training` makes one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence

import numpy as np

from unmask.errors import UserError

Pieces = tuple[str, ...]


class Unigram:
    """Segmentations of single words under given log-probabilities of pieces.

    unk: the log-probability of a character that no piece covers; None = such a word has no segmentation.

    >>> model = Unigram([("a", -2.0), ("b", -2.0), ("ab", -3.0)])
    >>> model.viterbi("abb")
    (('ab', 'b'), -5.0)
    >>> [pieces for pieces, _ in model.nbest("ab", 5)]
    [('ab',), ('a', 'b')]
    """

    def __init__(self, pieces: Sequence[tuple[str, float]], unk: float | None = None) -> None:
        self.scores = dict(pieces)
        self.unk = unk
        self._longest = max(map(len, self.scores), default=0)

    def viterbi(self, word: str) -> tuple[Pieces, float]:
        """The likeliest segmentation and its log-probability; of equal ones, the one with shorter last pieces."""
        best: list[tuple[float, int]] = [(0.0, 0)]
        for end in range(1, len(word) + 1):
            ways = [(best[begin][0] + score, begin) for begin, score in self._edges(word, end)]
            best.append(max(ways, default=(-math.inf, 0)))
        self._check(word, best[-1][0])
        cuts = [len(word)]
        while cuts[-1]:
            cuts.append(best[cuts[-1]][1])
        return _pieces(word, cuts), best[-1][0]

    def nbest(self, word: str, n: int) -> list[tuple[Pieces, float]]:
        """The n likeliest segmentations, best first, with their log-probabilities."""
        best: list[list[tuple[float, tuple[int, ...]]]] = [[(0.0, (0,))]]
        for end in range(1, len(word) + 1):
            ways = (
                (total + score, (end, *cuts)) for begin, score in self._edges(word, end) for total, cuts in best[begin]
            )
            best.append(heapq.nlargest(n, ways))
        return [(_pieces(word, cuts), total) for total, cuts in best[-1]]

    def logprob(self, word: str) -> float:
        """Log of the sum over all segmentations; -inf where there is none."""
        return self._forward(word, 1.0)[-1]

    def sample(self, word: str, uniform: np.ndarray, alpha: float = 1.0) -> Pieces:
        """A segmentation drawn with probability proportional to its own to the power `alpha`.

        Forward filtering, backward sampling (sentencepiece's SampleEncode): 0 < alpha < 1 is flatter, larger
        alpha nearer to the best. uniform (len(word),): numbers in [0, 1), one for each piece that is drawn, such as
        `keyed.uniform(key, np.arange(len(word)))`.
        """
        forward = self._forward(word, alpha)
        self._check(word, forward[-1])
        cuts = [len(word)]
        for u in uniform.tolist():
            end = cuts[-1]
            if not end:
                break
            edges = list(self._edges(word, end))
            passed = np.cumsum([math.exp(forward[begin] + alpha * s - forward[end]) for begin, s in edges])
            chosen = int(np.searchsorted(passed, u * passed[-1], side="right"))
            cuts.append(edges[min(chosen, len(edges) - 1)][0])
        return _pieces(word, cuts)

    def _edges(self, word: str, end: int) -> Iterator[tuple[int, float]]:
        """(begin, log-probability) of the pieces that end at a place, longest first."""
        for begin in range(max(0, end - self._longest), end):
            if (score := self.scores.get(word[begin:end])) is not None:
                yield begin, score
        if self.unk is not None and word[end - 1] not in self.scores:
            yield end - 1, self.unk

    def _forward(self, word: str, alpha: float) -> list[float]:
        sums = [0.0]
        for end in range(1, len(word) + 1):
            sums.append(_logsumexp([sums[begin] + alpha * score for begin, score in self._edges(word, end)]))
        return sums

    def _check(self, word: str, total: float) -> None:
        if total == -math.inf:
            raise UserError(
                f"no pieces of the vocabulary make up {word!r}: it lacks some of these characters; "
                "give the score of an unknown character"
            )


def _pieces(word: str, cuts: Sequence[int]) -> Pieces:
    """Cuts from the end to the start."""
    return tuple(word[a:b] for a, b in zip(cuts[:0:-1], cuts[-2::-1], strict=True))


def _logsumexp(values: list[float]) -> float:
    top = max(values, default=-math.inf)
    return top if top == -math.inf else top + math.log(sum(math.exp(v - top) for v in values))
