"""T13: tied and untied heads survive saving, in a run's checkpoint and in an export, for every family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unmask.batch import Batch, Head
from unmask.errors import UserError
from unmask.loading import load
from unmask.model.interop import export_hf, load_hf
from unmask.model.transformer import Transformer
from unmask.train import checkpoint

from .helpers import logits_of, model_of, stream_of

transformers = pytest.importorskip("transformers")

_PLAIN: dict[str, Any] = {"norm": "rms", "attention_bias": False, "mlp_bias": False}
_POST: dict[str, Any] = {"norm_position": "post", "embedding_norm": True, "final_norm": False}
FAMILIES: dict[str, dict[str, Any]] = {  # a new family is a line here
    "bert": {**_POST, "visibility": "bidirectional", "token_types": 2, "head_transform": True, "head_bias": True},
    "gpt2": {},
    "llama": {**_PLAIN, "positions": "rotary", "activation": "swiglu", "num_kv_heads": 2},
    "t5": {**_PLAIN, "positions": "t5", "attention_scale": 1.0, "num_source_layers": 2, "activation": "relu"},
}
CASES = [(name, tied) for name in FAMILIES for tied in (True, False)]
cases = pytest.mark.parametrize(("name", "tied"), CASES, ids=[f"{n}-{'' if t else 'un'}tied" for n, t in CASES])


def model(name: str, tied: bool) -> Transformer:
    made = model_of(torch.float32, family=name, tied_head=tied, **FAMILIES[name])
    assert _is_tied(made) is tied
    return made


def _is_tied(network: Transformer) -> bool:
    """One tensor, not two equal ones."""
    return network.heads["lm"].weight.data_ptr() == network.embedding.weight.data_ptr()


def answers(network: Transformer) -> Tensor:
    two = network.config.num_source_layers > 0
    pattern: Any = "full" if network.config.visibility == "bidirectional" else "causal"
    batch = Batch(stream_of(pattern=pattern), {}, {}, stream_of(pattern="full", seed=2) if two else None)
    with torch.no_grad():
        return logits_of(network, network(batch)["stream"])


@cases
def test_t13_a_checkpoint_keeps_the_tie_and_says_which_name_holds_it(name: str, tied: bool, tmp_path: Path) -> None:
    first = model(name, tied)
    place = checkpoint.write(tmp_path, 0, nn.ModuleDict({"model": first}), {}, {"step": 0})
    again = Transformer(first.config, [Head("lm")], seed=5)
    assert not torch.equal(answers(again), answers(first))
    checkpoint.load_model(nn.ModuleDict({"model": again}), place)
    assert torch.equal(answers(again), answers(first)) and _is_tied(again) is tied
    stored = load_file(place / checkpoint.MODEL)  # a plain reader of tensors
    with safe_open(place / checkpoint.MODEL, "pt") as file:
        aliases = json.loads(file.metadata()["aliases"])
    assert aliases == ({"model.heads.lm.weight": "model.embedding.weight"} if tied else {})
    assert set(stored) | set(aliases) == {f"model.{n}" for n in first.state_dict()}
    assert all(torch.equal(stored[aliases.get(f"model.{n}", f"model.{n}")], t) for n, t in first.state_dict().items())
    if tied:  # trained on, it is still one tensor
        with torch.no_grad():
            again.embedding.weight[7] += 1
        assert torch.equal(again.heads["lm"].weight[7], again.embedding.weight[7])


@cases
def test_t13_an_export_keeps_the_tie(name: str, tied: bool, tmp_path: Path) -> None:
    first = model(name, tied)
    export_hf(first, tmp_path, {"pad": 0, "bos": 2, "eos": 3})
    again, report = load_hf(tmp_path)
    assert torch.equal(answers(again), answers(first)) and _is_tied(again) is tied
    assert report.new == () and report.unused == ()
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["tie_word_embeddings"] is tied
    stored = load_file(tmp_path / "model.safetensors")
    table = [n for n, t in stored.items() if t.shape == first.embedding.weight.shape and t.shape[0] == 50]
    assert len(table) == (1 if tied else 2)
    stock = getattr(transformers, settings["architectures"][0])
    theirs, info = stock.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    shared = theirs.get_output_embeddings().weight.data_ptr() == theirs.get_input_embeddings().weight.data_ptr()
    assert shared is tied


@cases
def test_t13_an_untied_head_equal_to_the_table_is_still_a_table_of_its_own(
    name: str, tied: bool, tmp_path: Path
) -> None:
    """Whether two names share a tensor is what was said, not whether their numbers happen to be equal."""
    first = model(name, False)
    with torch.no_grad():
        first.heads["lm"].weight.copy_(first.embedding.weight)
    place = checkpoint.write(tmp_path, 0, nn.ModuleDict({"model": first}), {}, {"step": 0})
    again = Transformer(first.config.model_copy(update={"tied_head": tied}), [Head("lm")])
    if tied:  # the file has a tensor that a tied model lacks: it is another model
        with pytest.raises(UserError, match="does not fit this model"):
            checkpoint.load_model(nn.ModuleDict({"model": again}), place)
    else:
        checkpoint.load_model(nn.ModuleDict({"model": again}), place)
        assert not _is_tied(again)


@pytest.mark.parametrize("name", FAMILIES)
def test_f08_a_renamed_prefix_is_mapped_or_refused(name: str, tmp_path: Path) -> None:
    """Tensors under another prefix never leave a body at random."""
    first = model(name, True)
    export_hf(first, tmp_path)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    save_file({f"backbone.{n}": t for n, t in stored.items()}, file)
    try:
        again, _ = load_hf(tmp_path)
    except UserError as error:
        assert "weights (0%) that its config.json asks for" in str(error)
    else:
        assert torch.equal(answers(again), answers(first))


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_f08_files_of_the_bare_body_are_mapped(name: str, tmp_path: Path) -> None:
    """The common library's own other prefix: none, where only the body was saved."""
    first = model(name, True)
    export_hf(first, tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    stock = getattr(transformers, settings["architectures"][0]).from_pretrained(tmp_path)
    stock.base_model.save_pretrained(tmp_path / "bare")
    prefix = f"{stock.base_model_prefix}."
    assert not any(n.startswith(prefix) for n in load_file(tmp_path / "bare" / "model.safetensors"))
    again, _ = load_hf(tmp_path / "bare", heads=[])
    batch = Batch(stream_of(), {}, {})
    with torch.no_grad():
        assert torch.equal(again(batch)["stream"], first(batch)["stream"])


def test_a_model_loaded_in_bf16_is_asked_and_not_exported(tmp_path: Path) -> None:
    export_hf(model("gpt2", True), tmp_path / "exact")
    exact, near = (load(tmp_path / "exact", precision=p) for p in ("fp32", "bf16"))  # type: ignore[arg-type]
    assert {p.dtype for p in near.network.parameters()} == {torch.bfloat16}
    ids = [[5, 6, 7, 8]]
    assert 0 < (exact.logits(ids) - near.logits(ids).float()).abs().max() < 0.05
    with pytest.raises(UserError, match="load it in fp32 to export it"):
        near.export(tmp_path / "written")
    assert not (tmp_path / "written").exists()
