"""UL2's mixture of denoisers (Tay et al. 2022, section 3.1 and table 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from unmask import keyed
from unmask.batch import Rows
from unmask.config import Strict
from unmask.objectives.base import Outline, Plan, Vocabulary, outline
from unmask.objectives.denoise import TextToText, corrupt, span_counts
from unmask.objectives.even import even
from unmask.objectives.layout import Pairs, Ragged
from unmask.objectives.spans import place_spans

Suffix = Literal["half", "any", "three_quarters"]

NAMES = {"R": "[NLU]", "S": "[S2S]", "X": "[NLG]"}
"""The mode tokens of the released models; the paper's text writes [R], [S] and [X]."""


class Denoiser(Strict):
    """One kind of noise of the mixture."""

    mode: Literal["R", "S", "X"]
    """R: few and short spans. S: the end of the text from its beginning. X: much noise, or long spans."""
    noise_density: float | None = Field(None, gt=0, lt=1)
    """Share of the text that is noise; of S `sequential` says it."""
    mean_span: float | None = Field(None, ge=1)
    """Mean tokens of a span; S has one span, at the end."""
    weight: float = Field(1.0, gt=0)
    """Its share of the texts, relative to the others'."""

    @model_validator(mode="after")
    def _spans_or_end(self) -> Denoiser:
        given = (self.noise_density is not None, self.mean_span is not None)
        if given != ((False, False) if self.mode == "S" else (True, True)):
            raise ValueError("R and X need noise_density and mean_span, and S has neither: see `sequential`")
        return self


SEVEN = (
    Denoiser(mode="R", mean_span=3, noise_density=0.15),
    Denoiser(mode="R", mean_span=8, noise_density=0.15),
    Denoiser(mode="S"),
    Denoiser(mode="X", mean_span=3, noise_density=0.5),
    Denoiser(mode="X", mean_span=8, noise_density=0.5),
    Denoiser(mode="X", mean_span=64, noise_density=0.15),
    Denoiser(mode="X", mean_span=64, noise_density=0.5),
)
"""Table 1 of the paper, equally often."""


@dataclass(frozen=True)
class Draw:
    """What each of R texts gets: its denoiser, noise tokens and spans."""

    denoiser: np.ndarray
    noise: np.ndarray
    spans: np.ndarray


@dataclass(frozen=True)
class Realised:
    """What one denoiser did over many texts: its share of them, its noise per token, and tokens of a span."""

    denoiser: Denoiser
    share: float
    noise_density: float
    mean_span: float


class UL2(TextToText):
    """Each text by one of several denoisers, told to the model by a mode token in front of the source.

        text                                 thank you for inviting me to your party
        R, few short spans   source  [NLU]   thank you <0> me to your party [EOS]
                             target          <0> for inviting <1> [EOS]
        S, the end           source  [S2S]   thank you for inviting me <0> [EOS]
                             target          <0> to your party <1> [EOS]
        X, much              source  [NLG]   thank <0> inviting <1> [EOS]
                             target          <0> you for <1> me to your party <2> [EOS]

    Which denoiser a text gets is a function of its sample number: any 2^k in a row (numbers 2^k b … 2^k b + 2^k − 1, up
    to 128) hold each by its weight but for less than two samples, and chance says which. The published codes differ in
    S, of which the paper's table says 25 % on average: `sequential` half = 1 … n/2 tokens, uniformly (mean 25 %;
    llm-foundry); any = 1 … n − 1 (levanter, whose empty sources are left out); three_quarters = always 75 % (flashT5).

    >>> from unmask.objectives.show import toy
    >>> e = UL2()(Rows.of([range(11, 19)], index=np.array([1])), toy())  # sample 1 is S, and [S2S] is 98
    >>> e.source.tokens.tolist(), e.targets["lm"].value.tolist()
    ([98, 11, 12, 13, 14, 15, 16, 17, 90, 3], [90, 18, 91, 3])
    """

    type: Literal["ul2"] = "ul2"
    denoisers: tuple[Denoiser, ...] = Field(SEVEN, min_length=1)
    sequential: Suffix = "half"
    """How much of a text S asks for: half, any or three_quarters."""
    modes: Literal["released", "paper", "none"] = "released"
    """released: [NLU], [S2S], [NLG]; paper: [R], [S], [X]; none: no mode tokens. The tokenizer must hold them
    (tokenizer.extra, or unmask convert --add-token)."""
    final_sentinel: bool = True
    """The target closes with one more sentinel, before [EOS]."""

    plan: ClassVar[Plan] = "infill"

    @classmethod
    def ul2(cls, **settings: Any) -> UL2:
        """The seven denoisers of table 1, equally often."""
        return cls(**settings)

    @classmethod
    def without_modes(cls, **settings: Any) -> UL2:
        """The ablation of section 4.4: the model is not told."""
        return cls(**{"modes": "none", **settings})

    def token(self, mode: str) -> str:
        """The spelling of a mode's token."""
        return NAMES[mode] if self.modes == "released" else f"[{mode}]"

    def draw(self, of: Outline) -> Draw:
        """The denoiser of each text and what it takes."""
        weight = np.cumsum([d.weight for d in self.denoisers])
        which = np.searchsorted(weight / weight[-1], even(of.index, "ul2"), side="right")
        which = np.minimum(which, len(weight) - 1)
        density, mean = self._settings()
        noise, spans = span_counts(of.lengths, density[which], mean[which])
        ends = np.array([d.mode == "S" for d in self.denoisers])[which]
        return Draw(which, np.where(ends, self._suffix(of), noise), np.where(ends, np.minimum(of.lengths, 1), spans))

    def _settings(self) -> tuple[np.ndarray, np.ndarray]:
        """(D,) density and mean span of each denoiser; where it is S, what does no harm."""
        return (
            np.array([d.noise_density or 0.5 for d in self.denoisers]),
            np.array([d.mean_span or 1.0 for d in self.denoisers]),
        )

    def _suffix(self, of: Outline) -> np.ndarray:
        """(R,) tokens that S asks for, never none and never all (of one token, that one)."""
        low, high = self._suffix_range(of.lengths)
        draw = keyed.bits(keyed.absorb(of.key, keyed.purpose("suffix")), np.zeros(len(of.key), np.int64))
        return low + keyed.below(draw, high - low + 1)

    def _suffix_range(self, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        least = np.minimum(n, 1)
        most = np.maximum(n - 1, least)
        if self.sequential == "three_quarters":
            least = most = np.clip(np.rint(0.75 * n).astype(np.int64), least, most)
        return least, np.clip(n // 2, least, most) if self.sequential == "half" else most

    def realised(self, of: Outline) -> list[Realised]:
        """Share, density and mean span of each denoiser over these texts, to be held against the settings."""
        draw = self.draw(of)
        out = []
        for number, denoiser in enumerate(self.denoisers):
            mine = draw.denoiser == number
            noise, spans, tokens = (int(a[mine].sum()) for a in (draw.noise, draw.spans, of.lengths))
            out.append(Realised(denoiser, float(mine.mean()), noise / max(tokens, 1), noise / max(spans, 1)))
        return out

    # ------------------------------------------------------------ sizes

    def pair_sizes(self, of: Outline) -> tuple[np.ndarray, np.ndarray]:
        draw = self.draw(of)
        return self._measured(of.lengths, draw.noise, draw.spans)

    def _measured(self, n: np.ndarray, noise: np.ndarray, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return n - noise + spans + 1 + (self.modes != "none"), noise + spans + int(self.final_sentinel) + 1

    def extremes(self, lengths: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        return [self._measured(lengths, *t) for t in self._taken(lengths)]

    def _taken(self, lengths: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """(R,) noise tokens and spans by each denoiser; by S at its least and at its most."""
        taken: list[tuple[np.ndarray, np.ndarray]] = []
        for denoiser, density, mean in zip(self.denoisers, *self._settings(), strict=True):
            if denoiser.mode == "S":
                taken += [(noise, np.minimum(lengths, 1)) for noise in self._suffix_range(lengths)]
            else:
                taken.append(span_counts(lengths, density, mean))
        return taken

    def most_spans(self, lengths: np.ndarray) -> np.ndarray:
        """(R,) the most spans of texts of these lengths, by whichever denoiser."""
        return np.asarray(np.max([spans for _, spans in self._taken(lengths)], axis=0))

    def longest(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        source, target = zip(*self.extremes(lengths), strict=True)
        return np.max(source, axis=0), np.max(target, axis=0)

    # ------------------------------------------------------------ the pair

    def pairs(self, rows: Rows, vocabulary: Vocabulary) -> Pairs:
        draw = self.draw(outline(rows))
        ends = np.array([d.mode == "S" for d in self.denoisers])[draw.denoiser]
        some = np.where(ends, 0, draw.noise), np.where(ends, 0, draw.spans)
        noise = place_spans(rows.lengths, *some, keyed.absorb(rows.key, keyed.purpose("spans")), "free")
        noise |= rows.place >= np.repeat(np.where(ends, rows.lengths - draw.noise, rows.lengths), rows.lengths)
        pairs = corrupt(rows, noise, self.final_sentinel, vocabulary)
        if self.modes == "none":
            return pairs
        mode = np.array([vocabulary.need(self.token(d.mode)) for d in self.denoisers], np.int32)
        return Pairs(in_front(pairs.source, mode[draw.denoiser]), pairs.target)


def in_front(texts: Ragged, first: np.ndarray) -> Ragged:
    """Each text behind one more token (R,)."""
    r = len(first)
    start = texts.start + np.arange(r + 1)
    tokens = np.empty(start[-1], np.int32)
    tokens[start[:-1]] = first
    tokens[np.arange(len(texts.tokens)) + np.repeat(np.arange(1, r + 1), texts.lengths)] = texts.tokens
    return Ragged(tokens, start)
