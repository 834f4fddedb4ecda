"""Every position scheme from end to end: with and without a cache, alone and in batches, with either padding.

A new scheme is one line of SCHEMES.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unmask.evaluation.beam import Beams
from unmask.evaluation.generate import generations, n_best
from unmask.evaluation.steps import Start, Steps
from unmask.lm import LM
from unmask.run import evaluate

from .helpers import model_of
from .test_beam import next_log_p
from .test_generate import WRITERS, greedy_without_cache

BUCKETS = {"relative_buckets": 8, "relative_max_distance": 16}
LATENT = {"query_rank": 12, "key_rank": 10, "rotary_size": 4, "value_size": 6}
SCHEMES: dict[str, dict[str, Any]] = {
    "learned": {"positions": "learned", "num_kv_heads": 2},
    "sinusoidal": {"positions": "sinusoidal", "num_kv_heads": 2},
    "rotary": {"positions": "rotary", "num_kv_heads": 2},
    "rotary-partly": {"positions": "rotary", "rotary_share": 0.5},
    "t5": {"positions": "t5", "num_kv_heads": 2, **BUCKETS},
    "alibi": {"positions": "alibi", "num_kv_heads": 2},
    "deberta": {"positions": "deberta", **BUCKETS},
    "deberta-unshared": {"positions": "deberta", **BUCKETS, "relative_buckets": 0, "relative_shared": False},
    "xlnet": {"positions": "xlnet", "token_types": 2},
    "none": {"positions": "none", "num_kv_heads": 2},
    "local": {"positions": "rotary", "attention_pattern": "LG", "window": 3, "rotary_local_base": 100.0},
    "latent": {"positions": "rotary", "latent": LATENT},
}
PROMPTS = ["the", "a dog sat", "the cat"]
"""Of 3, 9 and 7 tokens: those of F12, and one more."""
IDS = [[9, 30, 41, 17, 88, 12, 63, 40, 21], [25, 14, 60]]


def double(name: str, scheme: str) -> LM:
    lm = model_of(name, **SCHEMES[scheme])
    lm.network.double()
    return lm


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", WRITERS)
def test_f13_cached_logits_equal_those_of_full_passes(
    name: str, scheme: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unequal prompts in one batch, token by token; a row leaves and the others change places on the way.

    whole: as in 16 bits on a CPU, where layers get the cache's buffers with their empty places.
    """
    lm = double(name, scheme)
    if whole:
        monkeypatch.setattr("unmask.model.transformer.explicit_kernel", lambda *given: True)
    assert lm.tokenizer is not None and lm.objective is not None
    v, spans = lm.vocabulary, lm.objective.plan == "infill"
    ids = lm.tokenizer.encode_batch(PROMPTS)
    none = np.zeros(0, np.int32)
    begin = [
        Start(np.append(e, [v.sentinels[0], v.need("eos")]), v.sentinels[:1], 0) if spans else Start(e, none, 0)
        for e in ids
    ]
    held = [(prompt, ()) for prompt in PROMPTS]
    written = np.random.default_rng(1).integers(10, 200, (7, 3))
    with torch.no_grad():
        steps = Steps(lm, begin)
        assert steps.cache.whole == whole
        for step, tokens in enumerate(written.tolist()):
            log_p = steps.logits().log_softmax(-1).numpy()
            for row, (prompt, text) in zip(log_p, held, strict=True):
                full = next_log_p(lm, prompt, [text])[0]
                seen = full > -np.inf
                assert np.abs(row[seen] - full[seen]).max() < 1e-5
            if step in (2, 4):
                rows = [2, 0, 1] if step == 2 else [1, 1, 0]
                steps.keep(rows)
                held = [held[i] for i in rows]
            steps.add(tokens)
            held = [(prompt, (*text, t)) for (prompt, text), t in zip(held, tokens, strict=True)]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", WRITERS)
def test_f13_greedy_texts_are_the_same_without_a_cache(name: str, scheme: str) -> None:
    lm = double(name, scheme)
    for prompt, g in zip(PROMPTS, generations(lm, PROMPTS, 8), strict=True):
        assert g.ids == greedy_without_cache(lm, prompt, 8)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", WRITERS)
def test_f12_texts_alone_and_together(name: str, scheme: str) -> None:
    """Writing, searching, scoring and reading states: short prompts are padded in a batch, and it must not show."""
    lm = double(name, scheme)
    together, found = generations(lm, PROMPTS, 6), n_best(lm, PROMPTS, Beams(2), 2, 5)
    scores, vectors = lm.score(PROMPTS), lm.embed(PROMPTS)
    for i, prompt in enumerate(PROMPTS):
        alone = generations(lm, prompt, 6)[0]
        assert alone.ids == together[i].ids and alone.logprob == pytest.approx(together[i].logprob, rel=1e-5)
        assert [g.ids for g in n_best(lm, prompt, Beams(2), 2, 5)[0]] == [g.ids for g in found[i]]
        assert lm.score(prompt)[0].logprob == pytest.approx(scores[i].logprob, rel=1e-5)
        torch.testing.assert_close(lm.embed(prompt)[0], vectors[i], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["masked", "causal", "prefix", "prefix-encdec"])
def test_f12_logits_with_either_padding(name: str, scheme: str) -> None:
    """Rows of 9 and 3 tokens; what padding holds does not matter either."""
    lm = double(name, scheme)
    longer, shorter = IDS
    more = {"decoder_input_ids": [[4, 30, 31, 33]]} if name == "prefix-encdec" else {}
    both = {k: [x[0], x[0]] for k, x in more.items()}
    alone = [lm.logits([ids], **more)[0] for ids in IDS]
    for fill in (0, 77):
        right = lm.logits([longer, [*shorter, *[fill] * 6]], [[1] * 9, [1] * 3 + [0] * 6], **both)
        left = lm.logits([longer, [*[fill] * 6, *shorter]], [[1] * 9, [0] * 6 + [1] * 3], **both)
        for found, real in ((right, slice(0, 3)), (left, slice(6, 9))):
            torch.testing.assert_close(found[0], alone[0], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(found[1, slice(0, 4) if more else real], alone[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", WRITERS)
def test_a_model_held_in_bf16_writes_with_half_the_cache_and_about_the_same_numbers(name: str) -> None:
    lm = model_of(name, positions="rotary")
    assert lm.tokenizer is not None
    ids = [Start(e, np.zeros(0, np.int32), 0) for e in lm.tokenizer.encode_batch(PROMPTS)]
    if lm.objective is not None and lm.objective.plan == "infill":
        pytest.skip("its prompts end with a sentinel")
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        lm.network.to(dtype)
        with torch.no_grad():
            steps = Steps(lm, ids)
            steps.add([10, 11, 12])
            found.append((steps.logits().log_softmax(-1), steps.cache))
    (exact, wide), (near, narrow) = found
    held = lambda cache: sum(x.nbytes for pair in [*cache.layers.values(), *cache.memory.values()] for x in pair)
    assert held(wide) == 2 * held(narrow)
    assert 0 < (exact.exp() - near.exp()).abs().max() < 0.01


def test_figures_of_a_model_held_in_bf16_say_so(tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("the cat sat on the mat\n" * 5)
    lm = model_of("causal")
    assert not evaluate(lm, "bpb", text=text).get("warnings")
    lm.network.to(torch.bfloat16)
    (warning,) = evaluate(lm, "bpb", text=text)["warnings"]
    assert "held in bfloat16" in warning
