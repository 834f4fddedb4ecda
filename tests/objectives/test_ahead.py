"""Multi-token prediction: targets, heads, the model's modules against formulas written out, scoring without them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.batch import Batch, Head, Rows
from unmask.config import ModelConfig
from unmask.data.collate import collate, pack
from unmask.errors import UserError
from unmask.lm import LM
from unmask.loading import load
from unmask.loss import forward_heads
from unmask.model.cost import flops, forward_flops
from unmask.model.layers import Layer
from unmask.model.spec import parameters
from unmask.model.transformer import Transformer
from unmask.objectives import Causal, Masked, MultiToken
from unmask.objectives.base import Objective, Shape, outline
from unmask.recipe import load_recipe

from .cases import EOS, VOCABULARY, examples, texts

KINDS = ("parallel", "sequential", "independent", "shared")
TEXT = Rows.of([[11, 12, 13, 14, 15, 16, 17]])


def config(objective: MultiToken | Causal, **more: object) -> ModelConfig:
    values: dict[str, object] = {"vocab_size": 110, "hidden_size": 16, "num_layers": 2, "num_heads": 2, **more}
    if isinstance(objective, MultiToken) and objective.kind == "independent":
        values["tied_head"] = False
    return objective.networks(ModelConfig.model_validate(values))["model"]


def model(objective: MultiToken | Causal, **more: object) -> Transformer:
    """In fp64, every tensor random: norms and biases, too."""
    network = Transformer(config(objective, **more), objective.heads()).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype) * 0.3 + (p.dim() == 1))
    return network


def batch(objective: Objective, rows: Rows = TEXT, room: int | None = None) -> Batch:
    place = None if room is None else pack(objective.sizes(outline(rows)), Shape(room))
    shape = None if room is None else Shape(room)
    return collate({"x": objective(rows, VOCABULARY)}, {"x": objective.heads()}, place, shape=shape).map(
        torch.from_numpy
    )


# ---------------------------------------------------------------- targets and heads


@pytest.mark.parametrize("kind", KINDS)
def test_head_k_says_the_token_k_places_on_and_none_beyond_the_text(kind: str) -> None:
    rows = texts([7, 1, 0, 2, 30, 3])
    e = MultiToken(num_future=4, kind=kind)(rows, VOCABULARY)
    assert list(e.targets) == ["lm", "lm2", "lm3", "lm4"] == [h.name for h in MultiToken(kind=kind).heads()]
    for k, t in enumerate(e.targets.values()):
        want = []
        for r, text in enumerate(np.split(rows.tokens, rows.start[1:-1])):
            whole = [*text.tolist(), *([EOS] if rows.ends[r] else [])]
            begin = int(e.stream.start[r])
            want += [(begin + i, whole[i + k]) for i in range(len(whole) - k)]
        assert list(zip(t.index.tolist(), t.value.tolist(), strict=True)) == want
    causal = Causal()(rows, VOCABULARY)
    assert [replace(x, others={}) for x in examples(e)] == examples(causal)
    assert (e.stream.tokens == causal.stream.tokens).all()


def test_the_published_settings() -> None:
    assert [(h.name, h.coefficient, h.uses, h.states) for h in MultiToken.deepseek_v3().heads()] == [
        ("lm", 1.0, "lm", "stream"),
        ("lm2", 0.3, "lm", "ahead1"),
    ]
    assert [(h.coefficient, h.uses, h.states) for h in MultiToken.modded_nanogpt().heads()] == [
        (1.0, "lm", "stream"),
        (0.5, "lm", "stream"),
        (0.25, "lm", "stream"),
    ]
    assert [(h.coefficient, h.uses, h.states) for h in MultiToken.gloeckle().heads()] == [
        (1.0, "lm", s) for s in ("stream", "ahead1", "ahead2", "ahead3")
    ]
    assert [h.uses for h in MultiToken(num_future=2, kind="independent").heads()] == ["lm", "lm2"]


def test_settings_that_contradict_are_refused() -> None:
    with pytest.raises(ValueError, match="2 coefficients for num_future=4"):
        MultiToken(coefficients=(1.0, 0.5))
    plain = ModelConfig(vocab_size=9)
    with pytest.raises(UserError, match=r"set model\.tied_head=false"):
        MultiToken(kind="independent").networks(plain)
    with pytest.raises(UserError, match=r"model\.ahead_layers=1 but num_future=4 has 3 modules"):
        MultiToken().networks(plain.model_copy(update={"ahead_layers": 1}))
    with pytest.raises(UserError, match=r"head 'lm2' reads a module of model\.ahead_layers=0"):
        Transformer(plain, MultiToken().heads())
    once = MultiToken.deepseek_v3().networks(plain)["model"]
    assert (once.ahead_layers, once.ahead) == (1, "sequential")
    assert MultiToken.deepseek_v3().networks(once)["model"] == once
    for more in ({"num_source_layers": 2}, {"residual_scalars": True}, {"value_embeddings": True}):
        with pytest.raises(ValueError, match="ahead_layers"):
            ModelConfig(ahead_layers=1, **more)


def test_a_sequential_module_reads_causal_text_only() -> None:
    network = Transformer(
        config(MultiToken.deepseek_v3(), visibility="bidirectional"), MultiToken.deepseek_v3().heads()
    )
    masked = batch(Masked())
    asked = replace(masked, heads={("x", "lm"): Head("lm2", module="lm", ahead=1)})
    with pytest.raises(UserError, match="told later tokens, which a full mask would hand on"):
        network(asked)


# ---------------------------------------------------------------- the modules, written out (fp64)


def plain_layer(layer: Layer, x: Tensor) -> Tensor:
    """A pre-norm layer of two heads over one text (T, d), in the letters of the formulas."""
    t, d = x.shape

    def norm(n: torch.nn.Module, y: Tensor) -> Tensor:
        centred = y - y.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * n.weight + n.bias

    q, k, v = (norm(layer.attention_norm, x) @ layer.attention.qkv.weight.T + layer.attention.qkv.bias).split(d, 1)
    out = []
    for h in range(2):
        part = slice(h * d // 2, (h + 1) * d // 2)
        score = q[:, part] @ k[:, part].T / (d // 2) ** 0.5
        weight = score.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
        out.append(weight @ v[:, part])
    x = x + torch.cat(out, 1) @ layer.attention.out.weight.T + layer.attention.out.bias
    up = F.gelu(norm(layer.mlp_norm, x) @ layer.mlp.up.weight.T + layer.mlp.up.bias)
    return x + up @ layer.mlp.down.weight.T + layer.mlp.down.bias


def last_norm(n: torch.nn.Module, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], n.weight, n.bias, 1e-5)


def test_parallel_modules_are_the_paper_s_formula() -> None:
    objective = MultiToken(num_future=3)
    network, b = model(objective), batch(objective)
    got = network(b)
    e = network.embedding.weight[b.stream.tokens[0]] + network.stack.positions.weight[: b.stream.tokens.shape[1]]
    trunk = plain_layer(network.stack.layers[0], e)
    for name, layer in (
        ("stream", network.stack.layers[1]),
        *((f"ahead{k + 1}", m.layer) for k, m in enumerate(network.stack.ahead)),
    ):
        want = last_norm(network.stack.final_norm, plain_layer(layer, trunk))
        assert torch.allclose(got[name][0], want, rtol=1e-11, atol=1e-11), name
    loss = 0.0
    for k, name in enumerate(("stream", "ahead1", "ahead2")):
        logits = got[name][0] @ network.embedding.weight.T
        text = torch.tensor([*TEXT.tokens.tolist(), EOS])
        loss += F.cross_entropy(logits[: len(text) - k], text[k:]).item()
    terms = forward_heads({"model": network}, b).values()
    assert sum(t.coefficient * t.sum.item() / t.norm for t in terms) == pytest.approx(loss, rel=1e-6)


def test_sequential_modules_are_the_report_s_formula() -> None:
    objective = MultiToken(num_future=3, kind="sequential")
    network, b = model(objective), batch(objective)
    got, t = network(b), b.stream.tokens.shape[1]
    h, embedded = got["stream"][0], network.embedding.weight[b.stream.tokens[0]]
    for k, m in enumerate(network.stack.ahead, 1):
        told = torch.cat([embedded[k:], torch.zeros(k, 16, dtype=torch.float64)])  # Emb(t_{i+k})
        joined = torch.cat([last_norm(m.state_norm, h), last_norm(m.token_norm, told)], 1)
        h = last_norm(m.final_norm, plain_layer(m.layer, joined @ m.join.weight.T))
        assert torch.allclose(got[f"ahead{k}"][0], h, rtol=1e-11, atol=1e-11)
        logits = h[: t - k] @ network.embedding.weight.T
        value = torch.tensor([*TEXT.tokens.tolist(), EOS])[k:]
        term = forward_heads({"model": network}, b)["x", f"lm{k + 1}"]
        assert (term.sum / term.norm).item() == pytest.approx(F.cross_entropy(logits, value).item(), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_no_leak_through_the_modules(kind: str) -> None:
    """Module k at place i is told up to token i + k of the stream, and its target is the token after that."""
    objective = MultiToken(num_future=3, kind=kind)
    network, b = model(objective), batch(objective)
    before = network(b)
    for at in range(b.stream.tokens.shape[1]):
        tokens = b.stream.tokens.clone()
        tokens[0, at] = 77
        after = network(replace(b, stream=replace(b.stream, tokens=tokens)))
        for head in objective.heads():
            k = head.ahead if kind == "sequential" else 0
            moved = (before[head.states] != after[head.states])[0].any(-1).nonzero().flatten().tolist()
            assert min(moved) == max(at - k, 0), (head.name, at)


@pytest.mark.parametrize("kind", ["parallel", "sequential"])
@pytest.mark.parametrize("more", [{}, {"positions": "rotary", "norm": "rms"}, {"attention_pattern": "GL", "window": 2}])
def test_o24_packed_texts_do_not_reach_each_other(kind: str, more: dict[str, object]) -> None:
    objective = MultiToken(num_future=3, kind=kind)
    network = model(objective, **more)
    rows = Rows.of([range(10, 18), [30, 31], range(40, 45)], ends=np.array([True, False, True]))
    packed = forward_heads({"model": network}, batch(objective, rows, 32))
    alone = forward_heads({"model": network}, batch(objective, rows))
    for key, term in packed.items():
        assert torch.allclose(term.sum, alone[key].sum, rtol=1e-6) and term.norm == alone[key].norm
    states = network(batch(objective, rows, 32)), network(batch(objective, rows))
    flat = [[s[name].flatten(0, 1) for s in states] for name in ("stream", "ahead1", "ahead2")]
    begin = batch(objective, rows, 32).stream
    for r, block in enumerate(batch(objective, rows).stream.block):
        n = int((block != 0).sum())
        first = int(begin.tokens[0].tolist().index(int(rows.tokens[rows.start[r]]))) - 1
        for a, c in flat:
            width = states[1]["stream"].shape[1]
            assert torch.allclose(a[first : first + n], c[r * width : r * width + n], rtol=1e-10, atol=1e-12)


# ---------------------------------------------------------------- the main head alone; counts


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_head_is_a_causal_model_s(kind: str) -> None:
    """A batch without the further heads runs no module, and its states are those of the whole."""
    objective = MultiToken(num_future=3, kind=kind)
    network = model(objective)
    whole, alone = network(batch(objective)), network(batch(Causal()))
    assert set(alone) == {"stream"} and (alone["stream"] == whole["stream"]).all()
    a, b = (forward_heads({"model": network}, batch(o))["x", "lm"] for o in (objective, Causal()))
    assert a.sum == b.sum and a.norm == b.norm


MODELS: dict[str, dict[str, object]] = {
    "plain": {},
    "post": {"norm_position": "post"},
    "both-rms": {"norm_position": "both", "norm": "rms", "activation": "swiglu"},
    "shared layers": {"distinct_layers": 1},
    "one layer": {"num_layers": 1, "norm_position": "both"},
    "experts": {"experts": {"count": 4, "first_dense": 1}},
    "local": {"attention_pattern": "GL", "window": 2, "num_kv_heads": 1},
    "latent": {"positions": "rotary", "latent": {"key_rank": 4, "rotary_size": 4, "value_size": 8}},
}


@pytest.mark.parametrize("kind", ["parallel", "sequential"])
@pytest.mark.parametrize("name", MODELS)
def test_modules_are_counted_trained_and_start_from_their_names(kind: str, name: str) -> None:
    objective = MultiToken(num_future=3, kind=kind)
    made = config(objective, **MODELS[name])
    network = Transformer(made, objective.heads())
    assert sum(p.numel() for p in network.parameters()) == parameters(made, objective.heads())
    sum(t.sum / t.norm for t in forward_heads({"model": network}, batch(objective)).values()).backward()
    lacking = [n for n, p in network.named_parameters() if "ahead" in n and p.grad is None]
    assert not lacking and any("ahead" in n for n, _ in network.named_parameters())
    again = Transformer(made, objective.heads()).state_dict()
    assert all((v == again[n]).all() for n, v in network.state_dict().items())
    plain = made.model_copy(update={"ahead_layers": 0})
    assert flops(made, 10, context=10) > flops(plain, 10, context=10)
    assert forward_flops(made, 10, context=10) == forward_flops(plain, 10, context=10)


def test_coefficients_stand_beside_the_terms() -> None:
    objective = MultiToken.modded_nanogpt()
    terms = forward_heads({"model": model(objective)}, batch(objective))
    assert [t.coefficient for t in terms.values()] == [1.0, 0.5, 0.25]
    assert [t.norm for t in terms.values()] == [8.0, 7.0, 6.0]


@pytest.mark.parametrize("kind", KINDS)
def test_learns_every_token_ahead(kind: str) -> None:
    """Texts that count up by the step between their first two tokens: all three heads come to know it."""
    objective = MultiToken(num_future=3, kind=kind)
    rows = Rows.of([range(5 + a, 5 + a + 8 * s, s) for a in range(8) for s in (1, 2, 3, 4)])
    more = {"hidden_size": 48, "num_heads": 4, "vocab_size": 110}
    network = Transformer(config(objective, **more), objective.heads())
    if kind == "shared":
        return _shared_reaches_its_floor(network, objective, rows)
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3)
    data, losses = batch(objective, rows), []
    for _ in range(120):
        terms = forward_heads({"model": network}, data)
        losses = [(t.sum / t.norm).item() for t in terms.values()]
        optimizer.zero_grad()
        sum(t.coefficient * t.sum / t.norm for t in terms.values()).backward()
        optimizer.step()
    # What cannot be known: the first token (8 values), then the step (4).
    assert all(loss < 1.2 for loss in losses), losses


def _shared_reaches_its_floor(network: Transformer, objective: MultiToken, rows: Rows) -> None:
    """One distribution for three tokens cannot fall below ln 3 each where all three differ; it gets near that."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3)
    data, losses = batch(objective, rows), []
    for _ in range(120):
        terms = forward_heads({"model": network}, data)
        losses = [(t.sum / t.norm).item() for t in terms.values()]
        optimizer.zero_grad()
        sum(t.sum / t.norm for t in terms.values()).backward()
        optimizer.step()
    assert 0.9 < sum(losses) / 3 < 2.0, losses


# ---------------------------------------------------------------- export


@pytest.mark.parametrize("kind", KINDS)
def test_a_llama_is_exported_without_what_looks_ahead(kind: str, tmp_path: Path) -> None:
    values = load_recipe("decoder-small", {"corpus": "nowhere"}).model.model_dump(exclude_unset=True)
    small = {"vocab_size": 110, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_position": 24}
    objective = MultiToken(num_future=3, kind=kind)  # type: ignore[arg-type]
    network = model(objective, **{**values, **small}).float().eval()
    assert network.config.family == "llama"
    lm = LM(network, 24, objective=objective)
    report = lm.export(tmp_path / "hf")
    settings = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert settings["architectures"] == ["LlamaForCausalLM"] and report["difference"] < 1e-4
    left = {"parallel": "stack.ahead.", "sequential": "stack.ahead.", "independent": "heads.lm"}.get(kind, "none")
    assert all(name.startswith(left) for name in report["left_out"]) and bool(report["left_out"]) == (kind != "shared")
    again = load(tmp_path / "hf", device="cpu")
    assert torch.allclose(again.logits([[5, 6, 7]]), lm.logits([[5, 6, 7]]), atol=1e-5)
    card = (tmp_path / "hf" / "README.md").read_text()
    written = sum(t.numel() for t in again.network.parameters())
    assert f"{written:,} parameters" in card  # of the files, not of what was left out
    assert ("stack.ahead.* (" in card) == (kind in ("parallel", "sequential"))


def test_of_no_family_its_modules_stay(tmp_path: Path) -> None:
    network = model(MultiToken(num_future=2), max_position=24).float().eval()
    report = LM(network, 24, objective=MultiToken(num_future=2)).export(tmp_path / "hf")
    assert report["own_code"] and report["left_out"] == []
