"""Replaced tokens: a small generator fills the masks, and the model says which tokens are not the text's own.

Clark et al. 2020, "ELECTRA"; He et al. 2023, "DeBERTaV3" (gradient-disentangled sharing of embeddings). The noise here
is the generator's masks and the uniforms of its samples; sampling itself happens in a step (`unmask.electra`).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, ValidationError, model_validator

from unmask import keyed
from unmask.batch import Examples, Head, Rows, Targets, full
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.objectives.base import LM, Vocabulary
from unmask.objectives.masked import Spanned
from unmask.objectives.units import Selected

GENERATOR = "generator"
"""The network that fills the masks; the other one, "model", is the discriminator."""
DETECTION, RECOVERY, COPY = "rtd", "recovery", "copy"

Sharing = Literal["none", "embeddings", "all", "gdes"]


class Replaced(Spanned):
    """Two networks: the generator is trained to fill masks, the discriminator to tell its samples from the text.

    The generator reads the masked text, x^masked, and has the usual loss at the selected positions. One sample of
    its answers (fp32, no gradient) at each of them gives the discriminator's text, x^corrupt; a token of it is
    "replaced" where it differs from the text's, so a sample that hits the original is "original"
    (Clark et al. 2020, section 2).

        loss = Σ −log p_G(x_t | x^masked) / selected + coefficient · Σ binary cross-entropy_t / tokens

        text       [CLS]   the  chef  cooked  the   meal [SEP]
        generator  [CLS] [MASK] chef  [MASK]  the   meal [SEP]
        lm                 the        cooked
        sampled    [CLS]   the  chef    ate   the   meal [SEP]
        rtd                 0     0      1     0      0

    Detection is asked at every token of the text; [CLS] and [SEP], which are never replaced, and padding are not asked
    (Google's code asks the two as well). Until the samples are drawn, every target of `rtd` says 0, "original".

    >>> from unmask.objectives.show import toy
    >>> e = Replaced(mask_rate=0.4)(Rows.of([[11, 12, 13, 14, 15]]), toy())
    >>> e.stream.tokens.tolist(), e.targets["lm"].index.tolist(), e.targets["lm"].value.tolist()
    ([2, 11, 12, 4, 4, 15, 3], [3, 4], [13, 14])
    >>> e.targets["rtd"].index.tolist(), e.targets["rtd"].value.tolist()
    ([1, 2, 3, 4, 5], [0, 0, 0, 0, 0])
    >>> e.targets["lm"].draw.round(3).tolist()
    [0.899, 0.413]
    """

    type: Literal["replaced"] = "replaced"
    mask_share: float = Field(0.85, ge=0, le=1)
    """Share of the selected that the generator reads as [MASK]; the rest it reads as they are, and answers and replaces
    all the same. 0.85: Google's code (the paper's equations always have [MASK])."""
    random_share: float = Field(0.0, ge=0, le=1)
    """Share of the selected that the generator reads as a random token."""
    coefficient: float = Field(50.0, ge=0)
    """Of the discriminator's loss beside the generator's (λ, Clark et al. 2020, appendix A; DeBERTa's code: 10)."""
    task: Literal["detection", "masked_detection", "recovery", "all_tokens"] = "detection"
    """What the discriminator is asked (Clark et al. 2020, section 3.5): detection at every token; at the selected alone
    (ELECTRA 15%); the original at the selected (Replace MLM); the original at every token, by a softmax and a gate that
    copies the input (All-Tokens MLM)."""
    generator_width: float = Field(0.25, gt=0, le=1)
    """The generator's hidden size, heads and feed-forward size as a share of the model's (1/4 to 1/2 work best: Clark
    et al. 2020, section 3.2)."""
    generator_depth: float = Field(1.0, gt=0, le=1)
    """Its layers, likewise (DeBERTaV3: 1/2)."""
    sharing: Sharing = "embeddings"
    """What the networks have in common. embeddings: tables of tokens, positions and types and the norm of their sum, as
    in Google's code; all: everything but the heads; gdes: the discriminator's tables are those of the generator, which
    its loss does not move, plus tables of its own that start at 0 (He et al. 2023, section 3.3)."""

    program: ClassVar[str] = "replaced"

    @model_validator(mode="after")
    def _same_size(self) -> Replaced:
        if self.sharing == "all" and (self.generator_width, self.generator_depth) != (1, 1):
            raise ValueError("sharing=all needs a generator of the model's size: generator_width=1 generator_depth=1")
        return self

    def heads(self) -> tuple[Head, ...]:
        lm = Head(LM.name, network=GENERATOR)
        if self.task in ("detection", "masked_detection"):
            return lm, Head(DETECTION, over="binary", coefficient=self.coefficient)
        recovery = Head(RECOVERY, module=LM.uses, coefficient=self.coefficient)
        return (
            (lm, recovery, Head(COPY, over="binary", coefficient=0.0)) if self.task == "all_tokens" else (lm, recovery)
        )

    def networks(self, model: ModelConfig) -> dict[str, ModelConfig]:
        return {"model": model, GENERATOR: self.generator(model)}

    def generator(self, model: ModelConfig) -> ModelConfig:
        """The generator's settings; tables are as wide as the discriminator's, and a projection leads on from them.

        >>> g = Replaced().generator(ModelConfig(hidden_size=256, num_heads=4, num_layers=12))
        >>> g.hidden_size, g.num_heads, g.mlp_size, g.num_layers, g.table_size, g.head_transform
        (64, 1, 256, 12, 256, True)
        """
        values: dict[str, Any] = {"num_layers": max(1, round(model.num_layers * self.generator_depth))}
        if model.distinct_layers and values["num_layers"] % model.distinct_layers:
            values["distinct_layers"] = 1
        if self.generator_width < 1:
            heads = max(1, round(model.num_heads * self.generator_width))
            groups = max(1, round(model.kv_heads * self.generator_width))
            step = 2 * heads  # rotary positions turn dimensions by twos
            values |= {
                "hidden_size": step * max(1, round(model.hidden_size * self.generator_width / step)),
                "num_heads": heads,
                "num_kv_heads": None if model.num_kv_heads is None else groups if heads % groups == 0 else 1,
                "embedding_size": model.table_size,
                "head_transform": True,
            }
            if model.intermediate_size is not None:
                values["intermediate_size"] = max(8, 8 * round(model.intermediate_size * self.generator_width / 8))
            if model.family != "electra":  # no other has embeddings of another width
                values["family"] = "unmask"
        try:
            return ModelConfig.model_validate({**model.model_dump(), **values})
        except ValidationError as error:
            fault = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise UserError(f"the generator of objective replaced cannot be built for this model: {fault}") from error

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        framed = self.framed(rows, vocabulary)
        selected = self.select(framed)
        tokens = framed.tokens.copy()
        tokens[selected.at] = self.replacement(framed, selected, vocabulary)
        return Examples(full(tokens, framed.start), self.targets(framed, selected))

    def targets(self, rows: Rows, selected: Selected) -> dict[str, Targets]:
        at = selected.at
        key = keyed.absorb(rows.key, keyed.purpose("sample"))
        draw = keyed.uniform(key[rows.row[at]], rows.place[at])
        found = {LM.name: Targets.at(at, rows.tokens[at], draw=draw)}
        asked = at if self.task in ("masked_detection", "recovery") else np.flatnonzero(~rows.fixed)
        original = np.zeros(len(asked), np.int32)
        if self.task in ("detection", "masked_detection"):
            return found | {DETECTION: Targets.at(asked, original)}
        found[RECOVERY] = Targets.at(asked, rows.tokens[asked])
        return found | {COPY: Targets.at(asked, original)} if self.task == "all_tokens" else found

    # ---------------------------------------------------------------- as published

    @classmethod
    def electra(cls) -> Replaced:
        """Clark et al. 2020 and their code: 15 % of the tokens, λ = 50, a generator of a quarter (base: a third)."""
        return cls()

    @classmethod
    def deberta_v3(cls) -> Replaced:
        """He et al. 2023, sections 3.2, 3.3 and 4.1: always [MASK], a generator as wide and half as deep, gradient-
        disentangled embeddings. Their code trains by two optimizers and adds [CLS]'s state to each one that is asked;
        here one optimizer moves both networks, and heads are ELECTRA's."""
        return cls(mask_share=1.0, generator_width=1.0, generator_depth=0.5, sharing="gdes")

    @classmethod
    def electra_15(cls) -> Replaced:
        """Clark et al. 2020, section 3.5: detection at the selected tokens alone."""
        return cls(task="masked_detection")

    @classmethod
    def replace_mlm(cls) -> Replaced:
        """Clark et al. 2020, section 3.5: the original at the selected tokens, from the replaced text."""
        return cls(task="recovery", coefficient=1.0)

    @classmethod
    def all_tokens_mlm(cls) -> Replaced:
        """Clark et al. 2020, section 3.5: the original at every token, by a softmax and a gate that copies."""
        return cls(task="all_tokens", coefficient=1.0)
