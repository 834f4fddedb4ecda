"""Each objective can be learnt: a tiny model brings 64 sentences below half of its floor.

Not here but in tests of their own: BART, UL2, text-to-text study, MASS, pairs of sentences, contrast, tokens ahead,
replaced tokens.
"""

from __future__ import annotations

from typing import Any

import pytest

from .cases_masked import SPARSE
from .learn import learnt, sentences
from .suite import OBJECTIVES, dressed

NAMES = [
    "causal",
    "masked",
    "masked-words",
    "ernie",
    "shifted",
    "hybrid",
    "salient",
    "full-apart",
    *(f"prefix_lm-{kind}" for kind in ("encdec", "prefix", "causal")),
    *(f"spans-{kind}-free-final" for kind in ("encdec", "prefix", "causal")),
    "fim-psm",
    "fim-spm",
    "cm3",
    "incoder",
    "permutation",
    "permutation-xlnet",
    "unilm",
    "unilm-next",
    "dials-msk_uni",
    "dials-hyb_pre",
    "glm",
    "glm-document",
    "diffusion",
]

MODELS: dict[str, dict[str, Any]] = {
    "permutation": {"query_vector": True},
    "unilm": {"token_types": 6},
    "glm": {"positions2": 64},
}
"""What a model needs beside the usual, by the objective's type."""


@pytest.mark.parametrize("name", NAMES)
def test_o30_overfits_64_sentences_to_half_its_floor(name: str) -> None:
    objective = {**OBJECTIVES, **SPARSE}[name]
    last, half = learnt(objective, dressed(objective, sentences()), **MODELS.get(objective.type, {}))
    assert last < half
