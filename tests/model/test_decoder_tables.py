"""Case D18 over the decoder families: a tokenizer of 1,003 entries with tables of 1,000, 1,003 and 1,024 rows."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.batch import Batch, Head
from unmask.config import TokenizerConfig
from unmask.errors import UserError
from unmask.evaluation.generate import generations
from unmask.evaluation.sampling import Sampling
from unmask.lm import LM
from unmask.loading import load
from unmask.model.transformer import Transformer
from unmask.model.translate import read_config
from unmask.objectives import Causal
from unmask.tokens.tokenizer import Tokenizer

from .helpers import logits_of, perturb, stream_of

transformers = pytest.importorskip("transformers")

ENTRIES = 1003
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
LATENT = {"q_lora_rank": 10, "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 6, "v_head_dim": 7}
FAMILIES: dict[str, dict[str, Any]] = {
    "openai-gpt": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40},
    "gpt_neo": {**SMALL, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 5},
    "gpt_neox": {**SMALL, "intermediate_size": 56},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "llama": {**SMALL, "intermediate_size": 56},
    "mistral": {**SMALL, "intermediate_size": 56, "sliding_window": 5},
    "qwen3": {**SMALL, "intermediate_size": 56, "head_dim": 8},
    "mixtral": {**SMALL, "intermediate_size": 56, "num_local_experts": 4},
    "deepseek_v3": {**SMALL, **LATENT, "intermediate_size": 56, "moe_intermediate_size": 12}
    | {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "first_k_dense_replace": 1},
    "nanochat": {**SMALL, "intermediate_size": 56},
}


@cache
def tokenizer() -> Tokenizer:
    kind = TokenizerConfig(type="byte", vocab_size=ENTRIES, sentinels=ENTRIES - 256 - 6)
    made = Tokenizer.train(kind, ["a"])
    assert made.vocabulary.size == ENTRIES
    return made


def lm_of(family: str, rows: int) -> LM:
    settings = {**FAMILIES[family], "vocab_size": rows, "max_position_embeddings": 40, "seq_length": 40}
    network = perturb(Transformer(read_config({"model_type": family, **settings}), [Head("lm")])).eval()
    return LM(network, 40, tokenizer(), Causal())


@pytest.mark.parametrize("family", FAMILIES)
def test_d18_1000_rows_are_too_few_and_both_numbers_are_said(family: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="1003 entries but the model's table 1000 rows"):
        lm_of(family, 1000).export(tmp_path / "out")
        load(tmp_path / "out")


@pytest.mark.parametrize("rows", [1003, 1024])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_d18_padded_rows_are_kept_and_never_written(family: str, rows: int, tmp_path: Path) -> None:
    lm = lm_of(family, rows)
    table = lm.network.heads["lm"].weight
    table[ENTRIES:] *= 50
    lm.export(tmp_path / "out")
    again = load(tmp_path / "out", device="cpu")
    assert again.config.vocab_size == rows and again.vocabulary.size == ENTRIES
    assert torch.equal(again.network.heads["lm"].weight, table)
    stream = stream_of(pattern="causal")
    best = logits_of(again.network, again.network(Batch(stream, {}, {}))["stream"]).argmax(-1)
    assert bool((best >= ENTRIES).any()) is (rows > ENTRIES)  # unwatched, they would be written
    for temperature in (0.0, 3.0):
        for made in generations(again, ["ab", "cat sat"], 12, Sampling(temperature)):
            assert len(made.ids) > 0 and max(made.ids) < ENTRIES
