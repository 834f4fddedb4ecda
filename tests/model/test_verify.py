from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from unmask import lm as lm_module
from unmask.batch import Head
from unmask.config import ModelConfig, TokenizerConfig
from unmask.errors import UserError
from unmask.lm import LM
from unmask.loading import load
from unmask.model.bundle import export_own
from unmask.model.interop import export_hf
from unmask.model.transformer import Transformer
from unmask.model.verify import check_export, check_ids, trusted
from unmask.objectives import Causal, Masked, PrefixLM, SpanCorruption
from unmask.objectives.base import Objective
from unmask.tokens.tokenizer import Tokenizer

from .helpers import model_of, perturb

WORDS = ("the", "a", "cat", "dog", "bird", "sat", "ran", "flew", "on", "under", "mat", "tree", "and", "big", "red")
BERT = {
    "token_types": 2, "norm_position": "post", "norm_eps": 1e-12, "embedding_norm": True, "final_norm": False,
    "head_transform": True, "head_bias": True,
}  # fmt: skip
LLAMA = {"norm": "rms", "positions": "rotary", "activation": "swiglu", "attention_bias": False, "mlp_bias": False}
T5 = {
    "num_source_layers": 2, "positions": "t5", "norm": "rms", "norm_eps": 1e-6, "activation": "geglu_tanh",
    "attention_bias": False, "mlp_bias": False, "attention_scale": 1.0, "tied_head": False,
}  # fmt: skip
FAMILIES: dict[str, tuple[Objective, str, dict[str, Any]]] = {
    "bert": (Masked(), "wordpiece", {"family": "bert", **BERT}),
    "gpt2": (Causal(), "bbpe", {"family": "gpt2", "activation": "gelu_tanh"}),
    "llama": (Causal(), "unigram", {"family": "llama", **LLAMA}),
    "t5": (SpanCorruption(layout="encdec"), "unigram", {"family": "t5", **T5}),
    "prefix": (PrefixLM(layout="prefix"), "bbpe", LLAMA),
    "masked": (Masked(), "bpe", {"qk_norm": True, "activation": "relu2"}),
    "modern": (Causal(), "byte", {**LLAMA, "residual_scalars": True}),
}


def sentences(count: int = 100) -> list[str]:
    random = np.random.default_rng(5)
    return [" ".join(random.choice(WORDS, random.integers(3, 9))) + "." for _ in range(count)]


def lm_of(name: str) -> LM:
    objective, kind, settings = FAMILIES[name]
    tokenizer = Tokenizer.train(TokenizerConfig(type=kind, vocab_size=400, sentinels=8), sentences())  # type: ignore[arg-type]
    sizes = {"vocab_size": tokenizer.vocabulary.size, "hidden_size": 32, "num_layers": 2, "num_heads": 4}
    config = ModelConfig(**{**sizes, "max_position": 64, "visibility": objective.visibility, **settings})
    network = perturb(Transformer(config, objective.heads())).eval()
    return LM(network, 64, tokenizer, objective)


def changed(path: Path, by: float) -> None:
    """The largest tensor of a directory, scaled by a little more than 1."""
    file = path / "model.safetensors"
    tensors = load_file(file)
    name = max(tensors, key=lambda k: tensors[k].numel())
    save_file({**tensors, name: tensors[name] * (1 + by)}, file, metadata={"format": "pt"})


@pytest.mark.parametrize("name", FAMILIES)
def test_f09_an_export_keeps_ids_control_ids_logits_and_the_likeliest_tokens(name: str, tmp_path: Path) -> None:
    """100 sentences through the library alone."""
    lm = lm_of(name)
    assert lm.tokenizer is not None
    report = lm.export(tmp_path / "hf")
    assert report["difference"] < 1e-4 and report["left_out"] == []
    settings = json.loads((tmp_path / "hf" / "config.json").read_text())
    words = lm.vocabulary
    assert [settings[f"{r}_token_id"] for r in ("pad", "bos", "eos")] == [words.pad, words.bos, words.eos]
    if lm.config.num_source_layers:
        assert settings["decoder_start_token_id"] == words.bos
    with trusted():
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf", trust_remote_code=True)
        kind = {"bert": "MaskedLM", "masked": "MaskedLM", "t5": "Seq2SeqLM"}.get(name, "CausalLM")
        auto = getattr(transformers, f"AutoModelFor{kind}")
        model = auto.from_pretrained(tmp_path / "hf", trust_remote_code=True).eval()
    assert tokenizer.pad_token_id == words.pad and tokenizer.mask_token_id == words.mask
    texts = sentences()
    bare = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert bare == [ids.tolist() for ids in lm.tokenizer.encode_batch(texts)]
    with torch.no_grad():
        for text in texts[:20]:
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
            more = {"decoder_input_ids": ids} if lm.config.num_source_layers else {}
            assert float((model(ids, **more).logits - lm.logits(ids, **more)).abs().max()) < 1e-4
        if words.mask is not None and kind == "MaskedLM":
            for text in texts[:20]:
                first, *rest = text.split(" ")
                masked = " ".join([first, tokenizer.mask_token, *rest[1:]])
                ids = tokenizer(masked, return_tensors="pt")["input_ids"]
                logits = model(ids).logits[ids == tokenizer.mask_token_id][0]
                ordinary = torch.from_numpy(words.ordinary).long()
                best = ordinary[logits[ordinary].topk(5).indices]
                p = logits.softmax(-1)[best].tolist()
                ours = lm.fill(masked).masks[0]
                assert [c.probability for c in ours] == pytest.approx(p, rel=1e-4)
                assert [c.token for c in ours] == [lm.tokenizer.decode([i]) for i in best.tolist()]


@pytest.mark.parametrize("name", ["bert", "prefix", "t5"])
def test_an_export_loads_again_as_the_same_model(name: str, tmp_path: Path) -> None:
    lm = lm_of(name)
    lm.export(tmp_path / "hf")
    again = load(tmp_path / "hf", device="cpu")
    assert again.objective == lm.objective and again.context == lm.context
    assert again.config.visibility == lm.config.visibility
    for a, b in zip(again.score(sentences(5)), lm.score(sentences(5)), strict=True):
        assert a.each == pytest.approx(b.each, rel=1e-4)


@pytest.mark.parametrize("own", [True, False])
def test_changed_weights_are_refused_and_unchanged_ones_are_not(own: bool, tmp_path: Path) -> None:
    settings = {"activation": "gelu_tanh", "visibility": "prefix" if own else "causal"}
    model = model_of(torch.float32, **settings)
    (export_own if own else export_hf)(model, tmp_path, {"pad": 0})
    assert check_export(model, tmp_path) < 1e-5
    changed(tmp_path, 0.01)
    with pytest.raises(UserError, match=r"logits differ by .* the export is refused"):
        check_export(model, tmp_path)


def test_heads_without_a_vocabulary_are_compared_too(tmp_path: Path) -> None:
    model = model_of(torch.float32, [Head("rtd", over="binary")], visibility="bidirectional")
    export_own(model, tmp_path)
    assert check_export(model, tmp_path) < 1e-5
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file(
        {**tensors, "model.heads.rtd.bias": tensors["model.heads.rtd.bias"] + 0.1}, file, metadata={"format": "pt"}
    )
    with pytest.raises(UserError, match=r"logits differ by 0\.1"):
        check_export(model, tmp_path)


def test_missing_tensors_and_code_that_does_not_run_are_refused(tmp_path: Path) -> None:
    model = model_of(torch.float32, visibility="prefix")
    export_own(model, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file({k: v for k, v in tensors.items() if "final_norm" not in k}, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"has missing tensors: model\.stack\.final_norm"):
        check_export(model, tmp_path)
    (tmp_path / "modeling_unmask.py").write_text("nonsense = ]\n")
    with pytest.raises(UserError, match="transformers cannot load the export"):
        check_export(model, tmp_path)


def test_the_likeliest_tokens_must_be_the_same_ones() -> None:
    from unmask.model.verify import _same_order

    ours = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0, 0.0]])
    assert _same_order(ours, ours + 3) and not _same_order(ours, ours[:, [1, 0, 2, 3, 4, 5]])
    assert not _same_order(ours, torch.tensor([[5.0, 4.0, 3.0, 2.0, 0.0, 1.0]]))
    tied = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0, 1.0 - 1e-5]])
    assert _same_order(tied, torch.tensor([[5.0, 4.0, 3.0, 2.0, 0.9, 1.0]]))


def refuses(lm: LM, place: Path, match: str) -> None:
    """The export is refused, and nothing of it is left, hidden directories included."""
    with pytest.raises(UserError, match=match):
        lm.export(place / "hf")
    assert list(place.iterdir()) == []


def test_a_refused_export_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = lm_of("prefix")

    def wrong(model: Transformer, path: Path, ids: Any) -> tuple[str, ...]:
        export_own(model, path, ids)
        changed(path, 0.05)
        return ()

    monkeypatch.setattr(lm_module, "export_own", wrong)
    refuses(lm, tmp_path, "logits differ")
    before = set(sys.modules)
    refuses(lm, tmp_path, "logits differ")
    assert not [n for n in set(sys.modules) - before if n.startswith("transformers_modules")]


def test_another_tokenizer_and_other_control_ids_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = lm_of("gpt2")
    other = lm_of("prefix").tokenizer
    assert lm.tokenizer is not None and other is not None
    shifted = Tokenizer.train(TokenizerConfig(type="bbpe", vocab_size=290, sentinels=8), ["zz zz zz yy yy"])
    save = Tokenizer.save_hf
    monkeypatch.setattr(Tokenizer, "save_hf", lambda self, *a, **k: save(shifted, *a, **k))
    refuses(lm, tmp_path, "the tokenizer gives other ids for 'The quick brown fox")
    monkeypatch.setattr(Tokenizer, "save_hf", save)

    def wrong(model: Transformer, path: Path, ids: Any) -> tuple[str, ...]:
        return export_hf(model, path, {**ids, "eos": 3})

    monkeypatch.setattr(lm_module, "export_hf", wrong)
    refuses(lm, tmp_path, f"eos_token_id=3, but the model's is {lm.vocabulary.eos}")


def test_ids_without_a_tokenizer_are_null(tmp_path: Path) -> None:
    lm = replace(lm_of("gpt2"), tokenizer=None)
    lm.export(tmp_path / "hf")
    settings = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert settings["eos_token_id"] is None and settings["pad_token_id"] is None
    check_ids(tmp_path / "hf", {"eos": None})
    with pytest.raises(UserError, match="eos_token_id=None, but the model's is 4"):
        check_ids(tmp_path / "hf", {"eos": 4})
