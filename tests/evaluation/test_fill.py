from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from unmask.errors import UserError
from unmask.evaluation.fill import fill

from .helpers import model_of, tokenizer


@pytest.mark.parametrize("kind", ["byte", "bbpe", "wordpiece"])
def test_masks_are_filled_by_their_own_distributions(kind: str) -> None:
    lm, v = model_of("masked", kind), tokenizer(kind).vocabulary
    text = "the [MASK] sat on [MASK]"
    filled = fill(lm, text, top_k=3)
    ids = tokenizer(kind).encode_with_specials(text)
    at = np.flatnonzero(ids == v.mask)
    p = lm.logits([[v.cls, *ids, v.sep]])[0].softmax(-1)
    assert len(at) == len(filled.masks) == 2
    for place, candidates in zip(at, filled.masks, strict=True):
        best = p[place + 1, v.ordinary].topk(3)
        assert [c.probability for c in candidates] == pytest.approx(best.values.tolist(), rel=1e-5)
        ours = tokenizer(kind)
        tokens = [int(v.ordinary[i]) for i in best.indices.tolist()]
        spelt = [ours.token(t) if "\ufffd" in ours.decode([t]) else ours.decode([t]) for t in tokens]
        assert [c.token for c in candidates] == spelt
        ids[place] = v.ordinary[best.indices[0]]
    assert filled.text == tokenizer(kind).decode(ids)


@pytest.mark.parametrize("name", ["spans", "spans-prefix"])
def test_spans_are_written_in_order(name: str) -> None:
    """Each span is what the model writes greedily after the spans before it."""
    lm, v = model_of(name), tokenizer().vocabulary
    filled = fill(lm, "a [MASK] c [MASK]")
    assert len(filled.masks) == 2 and all(len(m) == 1 and 0 <= m[0].probability <= 1 for m in filled.masks)
    first, second = (m[0].token for m in filled.masks)
    assert filled.text == f"a {first} c {second}"
    if name == "spans":
        source = [*tokenizer().encode("a "), v.sentinels[0], *tokenizer().encode(" c "), v.sentinels[1], v.eos]
        target, allowed = [v.bos, v.sentinels[0]], [*v.ordinary, v.eos, *v.sentinels]
        best = allowed[int(lm.logits([source], decoder_input_ids=[target])[0, -1, allowed].argmax())]
        assert (best in v.ordinary) == (first != "")
        if first:
            assert first.encode("utf-8", "replace")[:1] == tokenizer().decode([best]).encode("utf-8", "replace")[:1]


def test_a_span_ends_at_any_sentinel() -> None:
    lm = model_of("spans", head_bias=True)
    head: Any = lm.network.heads["lm"]
    with torch.no_grad():
        head.bias[lm.vocabulary.sentinels[3].item()] = 100.0
    assert fill(lm, "a [MASK] c [MASK] d").text == "a  c  d"


def test_what_cannot_be_filled_is_said() -> None:
    with pytest.raises(UserError, match="fills no gaps: it can continue a text"):
        fill(model_of("causal"), "a [MASK]")
    with pytest.raises(UserError, match="holds no"):
        fill(model_of("masked"), "a cat")
    with pytest.raises(UserError, match="has 62 tokens"):
        fill(model_of("masked"), "[MASK]" + "x" * 59)
    with pytest.raises(UserError, match="9 masks are too many"):
        fill(model_of("spans"), "[MASK]" * 9)
    with pytest.raises(UserError, match="top_k"):
        fill(model_of("masked"), "[MASK]", top_k=0)
    with pytest.raises(UserError, match="not known what this model"):
        fill(replace(model_of("masked"), objective=None), "[MASK]")
