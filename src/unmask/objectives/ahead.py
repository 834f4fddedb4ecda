"""Multi-token prediction: every position says the next n tokens (Gloeckle et al. 2024)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from unmask.batch import Examples, Head, Rows, Targets
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.objectives.base import LM, Objective, Outline, Shape, Sizes, Vocabulary
from unmask.objectives.causal import Causal


class MultiToken(Objective):
    """The next token as in `Causal`, and from the same position those after it: −Σ_k c_k Σ_i log p_k(x_{i+k-1} | x_<i).

    Head k of n has its own coefficient c_k and its own mean: it has k − 1 targets fewer in each text, since nothing
    is asked beyond the text. Scores, samples and the held-out loss are the first head's alone.

        tokens     [BOS]   the   cat   sat
        lm           the   cat   sat  [EOS]
        lm2          cat   sat  [EOS]
        lm3          sat  [EOS]

    What says the k-th token, from h, the states of the shared trunk:

        parallel      layer_k(h), by one output table: n Transformer layers side by side, of which the model's last is
                      the first (Gloeckle et al. 2024, section 2; `model.ahead_layers` = n − 1)
        sequential    layer_k(M_k [norm(h_k-1); norm(embedding of x_{i+k-2})]), by one output table: each module reads
                      the module before it and the token that that one had to say (DeepSeek-V3 report, section 2.2)
        independent   h, by an output table of its own (needs model.tied_head=false, else all were one)
        shared        h, by the one output table: one distribution for all n tokens (modded-nanogpt)

    The modules of the first two belong to the model and run in training only.

    >>> from unmask.objectives.show import toy
    >>> e = MultiToken(num_future=3)(Rows.of([[11, 12, 13]]), toy())
    >>> e.stream.tokens.tolist(), [t.value.tolist() for t in e.targets.values()]
    ([2, 11, 12, 13], [[11, 12, 13, 3], [12, 13, 3], [13, 3]])
    >>> [t.index.tolist() for t in e.targets.values()]
    [[0, 1, 2, 3], [0, 1, 2], [0, 1]]
    """

    type: Literal["multi_token"] = "multi_token"
    num_future: int = Field(4, ge=1)
    """n: how many tokens each position says (the paper's best for words: 4)."""
    kind: Literal["parallel", "sequential", "independent", "shared"] = "parallel"
    coefficients: tuple[float, ...] = ()
    """Of the n heads in the loss, the next token's first; empty = 1 each (Gloeckle et al. 2024, equation 2)."""

    @model_validator(mode="after")
    def _one_each(self) -> MultiToken:
        if self.coefficients and len(self.coefficients) != self.num_future:
            raise ValueError(f"{len(self.coefficients)} coefficients for num_future={self.num_future}: give one each")
        return self

    @classmethod
    def gloeckle(cls) -> MultiToken:
        """Gloeckle et al. 2024, section 2: four parallel layers, all of one weight."""
        return cls()

    @classmethod
    def deepseek_v3(cls) -> MultiToken:
        """One token more, by a sequential module with λ = 0.3 (DeepSeek-V3 report, sections 2.2 and 4.2).

        With D modules each has λ / D.
        """
        return cls(num_future=2, kind="sequential", coefficients=(1.0, 0.3))

    @classmethod
    def modded_nanogpt(cls) -> MultiToken:
        """Three tokens by one head, weighted 1, 1/2, 1/4 (there the two later ones fade out during training)."""
        return cls(num_future=3, kind="shared", coefficients=(1.0, 0.5, 0.25))

    def heads(self) -> tuple[Head, ...]:
        """lm, lm2, lm3, …: `lm` is a causal model's own head, and all that is left when training is over."""
        out = []
        for k, c in enumerate(self.coefficients or (1.0,) * self.num_future):
            if k == 0:
                out.append(Head(LM.name, coefficient=c))
            elif self.kind == "independent":
                out.append(Head(f"lm{k + 1}", coefficient=c))
            else:
                out.append(Head(f"lm{k + 1}", coefficient=c, module=LM.name, ahead=0 if self.kind == "shared" else k))
        return tuple(out)

    def networks(self, model: ModelConfig) -> dict[str, ModelConfig]:
        """The model with the modules that the heads read."""
        if self.kind == "independent" and model.tied_head:
            raise UserError("independent heads would share the embedding's table: set model.tied_head=false")
        if self.kind in ("independent", "shared"):
            return {"model": model}
        count = self.num_future - 1
        if model.ahead_layers not in (0, count):
            raise UserError(
                f"model.ahead_layers={model.ahead_layers} but num_future={self.num_future} has {count} modules: "
                "leave model.ahead_layers out"
            )
        values = {**model.model_dump(exclude_unset=True), "ahead_layers": count, "ahead": self.kind}
        return {"model": ModelConfig.model_validate(values)}

    def room(self, shape: Shape) -> int:
        return shape.stream - 1

    def sizes(self, of: Outline) -> Sizes:
        return Sizes(of.lengths + of.ends)

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        next_token = Causal()(rows, vocabulary)
        value, start = next_token.targets[LM.name].value, next_token.stream.start
        assert start is not None
        left = np.repeat(start[1:], np.diff(start)) - np.arange(len(value))  # tokens from here to the text's end
        targets = dict(next_token.targets)
        for k in range(1, self.num_future):
            at = np.flatnonzero(left > k)
            targets[f"lm{k + 1}"] = Targets.at(at, value[at + k])
        return Examples(next_token.stream, targets)
