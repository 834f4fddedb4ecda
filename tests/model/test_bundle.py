from __future__ import annotations

import ast
import builtins
import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.batch import Batch, Head
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model import bundle
from unmask.model.bundle import auto_classes, export_own, import_own, is_own, read_own, source, stock_family
from unmask.model.interop import load_hf
from unmask.model.presets import preset, preset_config, preset_heads
from unmask.model.transformer import Transformer
from unmask.model.verify import check_export, trusted
from unmask.tensors import named_once

from .helpers import laid, logits_of, model_of, one_text, stream_of, tokens_of

IDS = {"pad": 0, "bos": 1, "eos": 2}
MODERN = {"norm": "rms", "positions": "rotary", "attention_bias": False, "mlp_bias": False}
MODELS: dict[str, dict[str, Any]] = {
    "prefix": {**MODERN, "visibility": "prefix", "activation": "swiglu", "num_kv_heads": 2},
    "unilm": {"visibility": "bidirectional", "token_types": 2, "norm_position": "post", "head_transform": True},
    "modern-decoder": {
        **MODERN, "activation": "relu2", "qk_norm": True, "value_embeddings": True, "residual_scalars": True,
        "logit_softcap": 15.0, "attention_pattern": "GL", "window": 3, "norm_position": "both", "tied_head": False,
    },
    "glm": {"visibility": "prefix", "positions2": 12},
    "shared-layers": {"visibility": "bidirectional", "distinct_layers": 1, "embedding_size": 8, "head_transform": True},
    "shared-stacks": {"num_source_layers": 2, "share_stacks": True, "positions": "t5", "norm": "rms"},
    "encdec": {"num_source_layers": 1, "positions": "sinusoidal", "norm_position": "post", "head_bias": True},
    "experts": {**MODERN, "activation": "swiglu", "experts": {"count": 4, "per_token": 2, "shared": 1}},
    "latent": {
        **MODERN,
        "latent": {"query_rank": 12, "key_rank": 10, "rotary_size": 4, "value_size": 6},
    },
    "alibi": {"positions": "alibi", "embedding_norm": True},
    "deberta": {"visibility": "bidirectional", "positions": "deberta", "convolution": 3, "mask_decoder": True},
    "xlnet": {"visibility": "bidirectional", "positions": "xlnet", "query_vector": True},
}  # fmt: skip


@pytest.fixture
def own_code() -> Iterator[None]:
    with trusted():
        yield


def exported(name: str, path: Path, **more: Any) -> Transformer:
    model = model_of(torch.float32, **{**MODELS[name], **more})
    export_own(model, path, IDS)
    return model


def reloaded(path: Path, auto: str | None = None, **more: Any) -> Any:
    kind = getattr(transformers, auto or auto_classes(path)[-1])
    return kind.from_pretrained(path, trust_remote_code=True, **more).eval()


# ---------------------------------------------------------------- the file


def test_every_name_the_file_uses_is_defined_once_in_it() -> None:
    text = source()
    space: dict[str, Any] = {"__name__": "generated"}
    module = types.ModuleType("generated")
    sys.modules["generated"] = module  # dataclasses look their module up
    try:
        exec(compile(text, "modeling_unmask.py", "exec"), module.__dict__)
    finally:
        del sys.modules["generated"]
    space = module.__dict__
    tree = ast.parse(text)
    defined = [n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)]
    assigned = [t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)]
    assert len({*defined, *assigned}) == len(defined) + len(assigned)
    pending = [compile(text, "modeling_unmask.py", "exec")]
    while pending:
        code = pending.pop()
        pending += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        for name in globals_of(code):
            assert name in space or hasattr(builtins, name), f"{name} in {code.co_qualname}"


def globals_of(code: types.CodeType) -> set[str]:
    import dis

    return {str(i.argval) for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}


def test_the_file_needs_only_torch_and_transformers_and_says_what_it_is() -> None:
    from unmask import __version__

    tree = ast.parse(source())
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    roots = {
        (n.module or "").split(".")[0] if isinstance(n, ast.ImportFrom) else a.name.split(".")[0]
        for n in imports
        for a in n.names
    }
    assert roots <= sys.stdlib_module_names | {"torch", "numpy", "transformers"}
    header = ast.get_docstring(tree) or ""
    assert __version__ in header and "Apache-2.0" in header and "To check it" in header
    assert "pydantic" not in roots and ": ignore[" not in source()
    assert source() == source.__wrapped__()  # the same text every time


def test_settings_in_the_file_say_what_ours_say() -> None:
    """Every field, default and property, for settings far from their defaults."""
    module = types.ModuleType("generated_settings")
    sys.modules[module.__name__] = module
    exec(compile(source(), "modeling_unmask.py", "exec"), module.__dict__)
    properties = [k for k, v in vars(ModelConfig).items() if isinstance(v, property) and not k.startswith("model_")]
    assert len(properties) > 5
    for values in (*MODELS.values(), {}):
        ours = ModelConfig(**{"num_layers": 2, **values})
        theirs = module.__dict__["ModelConfig"].model_validate(ours.model_dump(mode="json"))
        for name in ModelConfig.model_fields:
            if name not in ("experts", "latent"):
                assert getattr(theirs, name) == getattr(ours, name), name
        for name in properties:
            assert getattr(theirs, name) == getattr(ours, name), name
        assert [theirs.local(i) for i in range(4)] == [ours.local(i) for i in range(4)]
        assert [theirs.sparse(i) for i in range(4)] == [ours.sparse(i) for i in range(4)]
    bare = module.__dict__["ModelConfig"]()
    assert all(getattr(bare, name) == getattr(ModelConfig(), name) for name in ModelConfig.model_fields)
    del sys.modules[module.__name__]


# ---------------------------------------------------------------- the model


@pytest.mark.parametrize("name", MODELS)
def test_a_directory_with_its_own_code_computes_what_the_model_does(name: str, tmp_path: Path) -> None:
    model = exported(name, tmp_path)
    assert check_export(model, tmp_path) < 1e-5
    own = read_own(tmp_path)
    assert own.config == model.config and own.heads == tuple(model.declared.values())
    again = Transformer(own.config, own.heads, seed=9)
    again.load_state_dict(own.state)
    state = again.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    stored = load_file(tmp_path / "model.safetensors")
    assert sum(t.numel() for t in stored.values()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    "name",
    ["unilm-base", "glm-base", "gpt3", "mass-base", "bert2bert-base", "modern-decoder", "modern-encdec", "fixed-data"],
)
def test_named_models_without_a_stock_class_are_exported_with_their_code(name: str, tmp_path: Path) -> None:
    assert stock_family(preset_config(name)) is None
    values = preset(name)
    small: dict[str, Any] = {
        "vocab_size": 50, "hidden_size": 32, "num_layers": 3, "num_heads": 4, "max_position": 40,
        "num_kv_heads": None, "head_size": None, "intermediate_size": None,
        "num_source_layers": 3 if values.get("num_source_layers") else 0, "window": 5 if values.get("window") else 0,
    }  # fmt: skip
    model = model_of(torch.float32, preset_heads(name), **{**values, **small})
    export_own(model, tmp_path, IDS)
    assert check_export(model, tmp_path) < 1e-5


def test_it_runs_where_unmask_is_not_installed(tmp_path: Path) -> None:
    model = exported("prefix", tmp_path / "hf")
    ids = torch.from_numpy(tokens_of(2, 9)).long()
    code = (
        "import sys; sys.modules['unmask'] = None\n"
        "import torch, transformers\n"
        f"m = transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path / 'hf')!r}, trust_remote_code=True)\n"
        f"ids = torch.tensor({ids.tolist()})\n"
        f"torch.save(m(ids, prefix_length=4).logits, {str(tmp_path / 'logits.pt')!r})\n"
    )
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    theirs = torch.load(tmp_path / "logits.pt", weights_only=True)
    texts = [one_text(row, "prefix", 4) for row in ids.numpy()]
    ours = logits_of(model, model(Batch(laid(texts, [[0], [1]], 9), {}, {}))["stream"])
    assert torch.allclose(theirs, ours, atol=1e-5)


@pytest.mark.parametrize("name", ["prefix", "unilm", "alibi", "experts"])
def test_padding_on_either_side_with_any_id_changes_nothing(name: str, tmp_path: Path, own_code: None) -> None:
    exported(name, tmp_path)
    model = reloaded(tmp_path, dtype=torch.float64)
    ids = torch.from_numpy(tokens_of(1, 7)).long()
    more = {"prefix_length": 3} if name == "prefix" else {}
    alone = model(ids, **more).logits[0]
    for side in (slice(4, None), slice(0, 7)):
        padded, mask = torch.full((2, 11), 7), torch.zeros(2, 11, dtype=torch.long)  # 7 is a token like any other
        padded[0, side], mask[0, side] = ids[0], 1
        padded[1], mask[1] = torch.from_numpy(tokens_of(1, 11, 4))[0].long(), 1
        assert torch.allclose(model(padded, attention_mask=mask, **more).logits[0, side], alone, atol=1e-10)


def test_a_prefix_sees_itself_and_nothing_later(tmp_path: Path, own_code: None) -> None:
    exported("prefix", tmp_path)
    model = reloaded(tmp_path)
    ids = torch.from_numpy(tokens_of(1, 8)).long()

    def changed(at: int, **more: Any) -> list[bool]:
        other = ids.clone()
        other[0, at] = (ids[0, at] + 1) % 50
        return (~torch.isclose(model(ids, **more).logits, model(other, **more).logits)).any(-1)[0].tolist()

    assert changed(3, prefix_length=4) == [True] * 8
    assert changed(4, prefix_length=4) == [False] * 4 + [True] * 4
    assert changed(3) == [False] * 3 + [True] * 5  # without a prefix: causal


def test_glm_takes_its_places_inside_spans(tmp_path: Path, own_code: None) -> None:
    ours = exported("glm", tmp_path)
    model = reloaded(tmp_path)
    ids, places = torch.from_numpy(tokens_of(2, 9)).long(), torch.tensor([[0] * 5 + [1, 2, 3, 1]] * 2)
    stream = stream_of(2, 9, "prefix", prefix=5)
    states = ours(Batch(replace(stream, positions2=places.int()), {}, {}))["stream"]
    given = model(ids, prefix_length=5, positions2=places).logits
    assert torch.allclose(given, logits_of(ours, states), atol=1e-5)
    assert not torch.allclose(given, model(ids, prefix_length=5).logits, atol=1e-3)


@pytest.mark.parametrize("name", ["prefix", "modern-decoder"])
def test_the_librarys_generate_writes_what_step_by_step_decoding_writes(
    name: str, tmp_path: Path, own_code: None
) -> None:
    ours = exported(name, tmp_path, max_position=40).double()
    model = reloaded(tmp_path, dtype=torch.float64)
    prompts = [row[:n] for row, n in zip(tokens_of(3, 7), (7, 4, 5), strict=True)]
    ids, mask = torch.zeros(3, 7, dtype=torch.long), torch.zeros(3, 7, dtype=torch.long)
    for r, prompt in enumerate(prompts):
        ids[r, 7 - len(prompt) :], mask[r, 7 - len(prompt) :] = torch.from_numpy(prompt).long(), 1
    kind = {"max_new_tokens": 6, "eos_token_id": None, "pad_token_id": 0}
    written = model.generate(ids, attention_mask=mask, do_sample=False, **kind)[:, 7:]
    for r, prompt in enumerate(prompts):
        text = torch.from_numpy(prompt)
        for _ in range(6):
            text = torch.cat([text, greedy(ours, text, len(prompt))])
        assert written[r].tolist() == text[len(prompt) :].tolist()
    beams = model.generate(ids, attention_mask=mask, num_beams=3, do_sample=False, **kind)
    assert beams.shape == (3, 13) and torch.equal(beams[:, :7], ids)


def greedy(model: Transformer, text: Tensor, prefix: int) -> Tensor:
    pattern = "prefix" if model.config.visibility == "prefix" else "causal"
    stream = laid([one_text(text.numpy(), pattern, prefix)], [[0]], len(text))
    return logits_of(model, model(Batch(stream, {}, {}))["stream"])[0, -1].argmax()[None].int()


@pytest.mark.parametrize("name", ["encdec", "shared-stacks"])
def test_two_stacks_generate_too(name: str, tmp_path: Path, own_code: None) -> None:
    ours = exported(name, tmp_path).double()
    model = reloaded(tmp_path, dtype=torch.float64)
    ids = torch.from_numpy(tokens_of(2, 6)).long()
    kind = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    written = model.generate(ids, **kind)
    assert written[:, 0].tolist() == [IDS["pad"]] * 2  # decoder_start where none is given
    source = stream_of(2, 6)
    text = written[:, :1].int()
    for _ in range(5):
        stream = laid([one_text(row.numpy(), "causal") for row in text], [[0], [1]], text.shape[1])
        logits = logits_of(ours, ours(Batch(stream, {}, {}, source))["stream"])
        text = torch.cat([text, logits[:, -1:].argmax(-1).int()], 1)
    assert written.tolist() == text.tolist()
    loss = model(ids, labels=written[:, 1:]).loss
    manual = torch.nn.functional.cross_entropy(
        model(ids, decoder_input_ids=written[:, :-1]).logits.flatten(0, 1), written[:, 1:].flatten()
    )
    assert loss.item() == pytest.approx(manual.item(), rel=1e-6)


def test_losses_follow_the_librarys_customs_and_reach_every_weight(tmp_path: Path, own_code: None) -> None:
    exported("modern-decoder", tmp_path / "a")
    exported("unilm", tmp_path / "b")
    causal, masked = reloaded(tmp_path / "a"), reloaded(tmp_path / "b")
    ids = torch.from_numpy(tokens_of(2, 9)).long()
    out = causal(ids, labels=ids)
    flat = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert out.loss.item() == pytest.approx(flat.item(), rel=1e-6)
    out.loss.backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in causal.parameters())
    labels = torch.full_like(ids, -100)
    labels[:, 3] = 8
    out = masked(ids, labels=labels)
    at = torch.nn.functional.cross_entropy(out.logits[:, 3], labels[:, 3])
    assert out.loss.item() == pytest.approx(at.item(), rel=1e-6)


def test_dropout_runs_in_training_alone_and_follows_torchs_seed(tmp_path: Path, own_code: None) -> None:
    exported("alibi", tmp_path, dropout=0.2)
    model = reloaded(tmp_path)
    ids = torch.from_numpy(tokens_of(1, 9)).long()
    assert torch.equal(model(ids).logits, model(ids).logits)
    model.train()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        a, b = model(ids).logits, model(ids).logits
        torch.manual_seed(3)
        assert torch.equal(model(ids).logits, a) and not torch.equal(a, b)


def test_a_tied_table_stays_one_and_saving_again_keeps_everything(tmp_path: Path, own_code: None) -> None:
    model = exported("prefix", tmp_path / "a")
    assert named_once(model)[1] == {"heads.lm.weight": "embedding.weight"}
    assert "model.heads.lm.weight" not in load_file(tmp_path / "a" / "model.safetensors")
    theirs = reloaded(tmp_path / "a")
    assert theirs.model.heads["lm"].weight is theirs.model.embedding.weight
    theirs.save_pretrained(tmp_path / "b")
    again = reloaded(tmp_path / "b")
    ids = torch.from_numpy(tokens_of(1, 9)).long()
    assert torch.equal(theirs(ids).logits, again(ids).logits)
    network, _ = load_hf(tmp_path / "b")
    assert torch.equal(network.embedding.weight, model.embedding.weight)
    blank = transformers.AutoModelForCausalLM.from_config(theirs.config, trust_remote_code=True)
    assert torch.isfinite(blank(ids).logits).all() and blank.model.embedding.weight.std().item() < 0.03


def test_every_head_is_exported_and_answers(tmp_path: Path, own_code: None) -> None:
    heads = [Head("lm"), Head("rtd", over="binary"), Head("order", over="classes", size=3)]
    model = model_of(torch.float32, heads, visibility="bidirectional", token_types=2, pooler=True)
    export_own(model, tmp_path)
    assert auto_classes(tmp_path) == ("AutoModel", "AutoModelForPreTraining", "AutoModelForMaskedLM")
    assert check_export(model, tmp_path) < 1e-5
    ids = torch.from_numpy(tokens_of(2, 9)).long()
    out = reloaded(tmp_path, "AutoModelForPreTraining")(ids)
    shapes = {k: tuple(v.shape) for k, v in out.items()}
    assert shapes == {"lm_logits": (2, 9, 50), "rtd_logits": (2, 9), "order_logits": (2, 3)}
    detector = model_of(torch.float32, [Head("rtd", over="binary")], visibility="bidirectional")
    export_own(detector, tmp_path / "d")
    assert auto_classes(tmp_path / "d")[-1] == "AutoModelForPreTraining"
    assert check_export(detector, tmp_path / "d") < 1e-5
    own, new, left = import_own(tmp_path, [Head("lm"), Head("extra", over="binary")])
    assert new == ("heads.extra.weight", "heads.extra.bias") and {n.split(".")[1] for n in left} == {"rtd", "order"}
    assert own.heads == (Head("lm"), Head("extra", over="binary"))


# ---------------------------------------------------------------- which export, and damaged ones


def test_stock_families_come_first_and_masks_without_one_bring_their_code() -> None:
    gpt2 = {"vocab_size": 50, "activation": "gelu_tanh"}
    found = stock_family(ModelConfig(**gpt2))
    assert found is not None and found.name == "gpt2"
    assert stock_family(ModelConfig(**gpt2, visibility="prefix")) is None
    assert stock_family(ModelConfig(**gpt2, logit_softcap=9.0)) is None
    with pytest.raises(UserError, match="gpt2 cannot hold this model"):
        stock_family(ModelConfig(**gpt2, family="gpt2", logit_softcap=9.0))


def test_control_ids_and_permissions(tmp_path: Path) -> None:
    exported("prefix", tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert [settings[f"{r}_token_id"] for r in IDS] == list(IDS.values())
    assert generation == {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
    assert len({f.stat().st_mode for f in tmp_path.iterdir()}) == 1
    assert is_own(tmp_path) and not is_own(tmp_path / "nowhere")
    printed = "from unmask.model.bundle import source; print(source(), end='')"  # the check that the file's head names
    done = subprocess.run([sys.executable, "-c", printed], capture_output=True, text=True, check=True)
    assert printed in source() and done.stdout == (tmp_path / "modeling_unmask.py").read_text()


def test_damaged_directories_are_refused_by_name(tmp_path: Path) -> None:
    exported("prefix", tmp_path)
    file, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    whole, settings = load_file(file), json.loads(config.read_text())
    save_file({k: v for k, v in whole.items() if k != "model.embedding.weight"}, file)
    with pytest.raises(UserError, match=r"lacks embedding\.weight"):
        read_own(tmp_path)
    save_file({**whole, "model.other": torch.zeros(1)}, file)
    with pytest.raises(UserError, match="holds other, of which"):
        read_own(tmp_path)
    save_file({**whole, "model.embedding.weight": torch.zeros(51, 32)}, file)
    with pytest.raises(UserError, match=r"embedding\.weight has shape \(51, 32\), but config.json asks for \(50, 32\)"):
        read_own(tmp_path)
    file.write_bytes(b"half")
    with pytest.raises(UserError, match="not a readable safetensors file"):
        read_own(tmp_path)
    config.write_text(json.dumps({**settings, bundle.MODEL_TYPE: {"version": "9", "model": {"nonsense": 1}}}))
    with pytest.raises(UserError, match=r"written by unmask 9.*nonsense"):
        read_own(tmp_path)
    config.write_text(json.dumps({**settings, bundle.MODEL_TYPE: None}))
    with pytest.raises(UserError, match="holds no settings of unmask"):
        read_own(tmp_path)
