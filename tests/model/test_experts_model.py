"""Experts inside a model and a run: their start, packing, caching, terms in the log, exact resumption."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from unmask.batch import Batch, Head, Rows
from unmask.config import BudgetConfig, ModelConfig, TrainConfig
from unmask.config.model import ExpertsConfig
from unmask.data.collate import collate
from unmask.loss import announced, forward_heads
from unmask.model.attention import Cache
from unmask.model.experts import Experts
from unmask.model.parts import FeedForward
from unmask.model.transformer import Transformer
from unmask.objectives import Causal, PrefixLM
from unmask.objectives.layout import Layout
from unmask.objectives.show import toy
from unmask.run import pretrain, resume_run
from unmask.train.base import Settings
from unmask.train.totals import summed
from unmask.train.trainer import Trainer

from .helpers import laid, model_of, one_text, tokens_of


def test_the_model_starts_experts_as_it_starts_dense_layers() -> None:
    settings = {"num_layers": 3, "mlp_bias": True, "activation": "gelu"}
    config = ModelConfig(vocab_size=9, experts=ExpertsConfig(count=4, pattern="DE", balance_bias=True), **settings)
    layers = Transformer(config, [Head("lm")]).stack.layers
    assert [type(layer.mlp) for layer in layers] == [FeedForward, Experts, FeedForward]
    dense, sparse = layers[0].mlp, layers[1].mlp
    assert sparse.up.std().item() == pytest.approx(dense.up.weight.std().item(), rel=0.02)
    assert sparse.down.std().item() == pytest.approx(dense.down.weight.std().item(), rel=0.02)
    assert sparse.router.weight.std().item() == pytest.approx(config.init_std, rel=0.1)
    assert not any(p.any() for n, p in sparse.named_parameters() if n.endswith("bias"))
    assert not torch.equal(sparse.up[0], sparse.up[1])


@pytest.mark.parametrize("stacks", [1, 2])
def test_a_model_of_experts_is_the_same_packed_padded_and_cached(stacks: int) -> None:
    choice = {"count": 4, "per_token": 2, "pattern": "DE", "shared": 1}
    m = model_of(experts=choice, num_layers=4, num_source_layers=2 * (stacks - 1), positions="rotary")
    texts = [one_text(t[:n], "causal") for t, n in zip(tokens_of(3, 9), (9, 6, 4), strict=True)]
    apart, packed = laid(texts, [[0], [1], [2]], 9), laid(texts, [[1, 2], [0]], 12, left=True)
    source = [laid(texts, rows, 12) if stacks == 2 else None for rows in ([[0], [1], [2]], [[1, 2], [0]])]
    with torch.no_grad():
        one, two = m(Batch(apart, {}, {}, source[0])), m(Batch(packed, {}, {}, source[1]))
        memory = m.encode(source[0]) if source[0] is not None else None
        cache, steps = Cache(), []
        for i in range(9):
            piece = replace(apart.map(lambda a, i=i: a[:, i : i + 1]), isolated=False)
            steps.append(m.decode(piece, memory, source[0], cache))
    for text, (row, block) in enumerate([(1, 1), (0, 1), (0, 2)]):
        want = one["stream"][text][apart.block[text] == 1]
        torch.testing.assert_close(two["stream"][row][packed.block[row] == block], want, rtol=0, atol=1e-12)
        cached = torch.cat(steps, 1)[text][apart.block[text] == 1]
        torch.testing.assert_close(cached, want, rtol=0, atol=1e-12)
    torch.testing.assert_close(one["router"], two["router"], rtol=0, atol=1e-12)
    assert one["router"].shape == (2,) and one["router"][0] >= 1


def test_a_run_with_experts_trains_logs_its_terms_and_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n".join(f"line {i} says {i * i}" for i in range(200)))
    settings: dict[str, Any] = {
        **{"tokenizer.type": "byte", "corpus.path": "text.txt", "corpus.document": "line", "context": 16},
        **{
            "model.family": "unmask",
            "model.hidden_size": 16,
            "model.num_layers": 2,
            "model.num_heads": 2,
            "model.mlp_bias": True,
        },
        **{"model.experts.count": 4, "model.experts.balance_loss": 0.01, "model.experts.z_loss": 0.001},
        **{"model.experts.capacity_factor": 1.0, "model.experts.balance_bias": True, "model.experts.shared": 1},
        **{"train.batch_size": 4, "train.grad_accumulation": 2, "train.optimizer": "muon", "evaluation.pieces": 8},
        **{"budget.steps": 4, "checkpoint.every": 2},
    }
    pretrain("decoder-small", out="run", cache="cache", **settings)
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    terms = [line["terms"] for line in lines if "terms" in line]
    assert len(terms) == 4 and all(1 <= t["model/balance"] < 4 and t["model/router_z"] > 0 for t in terms)
    loss = {k.split("/")[1]: v for k, v in terms[0].items()}
    expected = loss["lm"] + 0.01 * loss["balance"] + 0.001 * loss["router_z"]
    assert next(line for line in lines if "terms" in line)["loss"] == pytest.approx(expected)
    last = Path("run/checkpoints/step-4")
    before = load_file(last / "model.safetensors")
    shutil.rmtree(last)
    resume_run(tmp_path / "run", cache=tmp_path / "cache")
    after = load_file(last / "model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    moved = load_file(Path("run/checkpoints/step-2/model.safetensors"))
    still = {k for k in after if torch.equal(after[k], moved[k])}
    assert {k.split(".")[-1] for k in still} == {"balance_bias"}


@pytest.mark.parametrize("stacks", [1, 2])
def test_the_z_loss_of_an_update_does_not_depend_on_its_micro_batches(stacks: int, tmp_path: Path) -> None:
    """Rows of 3 to 30 tokens in one batch, or in four; the value is the mean over all tokens and layers."""
    config = ModelConfig(
        vocab_size=100,
        hidden_size=16,
        num_layers=2,
        num_source_layers=3 * (stacks == 2),
        num_heads=2,
        experts=ExpertsConfig(count=4, z_loss=0.5, pattern="DE", shared=1),
    )
    objective = Causal() if stacks == 1 else PrefixLM(layout=Layout(kind="encdec"))
    texts = [np.random.default_rng(k).integers(11, 90, 3 + 9 * k) for k in range(4)]

    def batch(which: Sequence[int]) -> Batch:
        return collate({"x": objective(Rows.of([texts[i] for i in which], which), toy())}, {"x": objective.heads()})

    def update(groups: list[list[int]]) -> tuple[float, Tensor]:
        networks = nn.ModuleDict({"model": Transformer(config, objective.heads(), 1).double()})
        trainer = Trainer(
            networks, forward_heads, lambda *_: [], lambda _: 0.0,
            Settings(TrainConfig(), BudgetConfig(steps=1)), tmp_path, norms=announced,
        )  # fmt: skip
        trainer.precision = "fp32"
        micro = [batch(g) for g in groups]
        norms = summed(announced(networks, b) for b in micro)
        values = trainer._passes_of(trainer.spread)(0, micro, norms)
        gradient = torch.cat([p.grad.flatten() for p in networks.parameters() if p.grad is not None])
        return values["model", "router_z"][1], gradient

    one, four = update([[0, 1, 2, 3]]), update([[0], [1], [2], [3]])
    assert one[0] == pytest.approx(four[0], rel=1e-6)
    torch.testing.assert_close(one[1], four[1], rtol=1e-6, atol=1e-9)
