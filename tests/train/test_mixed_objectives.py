"""Runs under several objectives: equal to each alone, to the sum of all, to an uncut run; losses and gradients told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unmask.batch import Batch
from unmask.loss import forward_heads
from unmask.model.cost import flops
from unmask.objectives import Mixture
from unmask.run import batch_flops, build, prepared, pretrain, resolve, stored_recipe, training_loader
from unmask.train.hooks import Gradients, Progress
from unmask.train.optim import Optimizer

TINY: dict[str, Any] = {
    "tokenizer.type": "byte",
    "model.hidden_size": 16,
    "model.num_layers": 1,
    "model.num_heads": 2,
    "model.family": "unmask",
    "context": 32,
    "train.batch_size": 8,
    "train.warmup_steps": 2,
    "evaluation.pieces": 64,
    "budget.steps": 6,
    "precision": "fp32",
    "device": "cpu",
}
CLM_MLM = {"clm": {"type": "causal"}, "mlm": {"type": "masked"}}


@pytest.fixture(autouse=True)
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"chapter {i}: it was a dark night, and {i * i} stars " + "shone " * (i % 9) for i in range(300)]
    Path("text.txt").write_text("\n\n".join(lines))


def train(out: str, objective: dict[str, Any], recipe: str = "encoder-small", **more: Any) -> Any:
    values = {**TINY, "corpus": "text.txt", **{k.replace("__", "."): v for k, v in more.items()}}
    kind = objective.get("type", "mixture")
    values = {**values, "objective.type": kind, **{f"objective.{k}": v for k, v in objective.items() if k != "type"}}
    return pretrain(recipe, out=out, cache="cache", say=lambda _: None, **values)


def mixed(out: str, parts: dict[str, Any], recipe: str = "encoder-small", **more: Any) -> Any:
    return train(out, {"type": "mixture", "parts": parts}, recipe, **more)


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]


def bare(out: str, *without: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in ("seconds", *without)} for line in lines(out)]


def weights(out: str, step: int = 6) -> bytes:
    folder = next(p for p in sorted((Path(out) / "checkpoints").iterdir()) if str(step) in p.name)
    return b"".join(p.read_bytes() for p in sorted(folder.rglob("*.safetensors")))


# ---------------------------------------------------------------- equal to what it is made of


@pytest.mark.parametrize("objective", [{"type": "causal"}, {"type": "masked", "duplicates": 2, "mask_rate": 0.3}])
def test_a_mixture_of_one_part_is_the_run_of_its_objective_bit_for_bit(objective: dict[str, Any]) -> None:
    train("alone", objective)
    mixed("mixed", {"only": {**objective, "weight": 3}})
    assert weights("alone") == weights("mixed") and len(weights("alone")) > 1000
    a, b = bare("alone", "terms"), bare("mixed", "terms")
    assert a == b and len(a) == 6
    assert [list(line["terms"].values()) for line in lines("alone")] == [
        list(line["terms"].values()) for line in lines("mixed")
    ]
    one, other = (json.loads((Path(out) / "result.json").read_text()) for out in ("alone", "mixed"))
    assert {**one, "seconds": 0} == {**other, "seconds": 0} and "held_out_parts" not in one


def test_the_gradient_of_two_parts_is_the_weighted_sum_of_each_computed_apart() -> None:
    mixed("run", {**CLM_MLM, "mlm": {"type": "masked", "factor": 0.5}})
    recipe, data = stored_recipe(Path("run")), prepared(Path("run"), "cache")
    loader = training_loader(recipe, data)
    trainer, _ = build(recipe, data, loader, Path("other"), Progress())
    network = trainer.networks["model"].double()
    (batch,) = loader(0)
    moved = batch.map(torch.from_numpy)
    whole = gradient(trainer.networks, moved, {"clm": 1.0, "mlm": 0.5})
    apart = [torch.zeros_like(p) for p in network.parameters()]
    for part, factor in (("clm", 1.0), ("mlm", 0.5)):
        keys = [k for k in moved.heads if k[0] == part]
        # The part's own texts alone, in rows of their own.
        own = only(loader, batch, part)
        assert own.norms() == {k: batch.norms()[k] for k in keys}
        found = gradient(trainer.networks, own.map(torch.from_numpy), {part: 1.0})
        apart = [a + factor * g for a, g in zip(apart, found, strict=True)]
    assert max(float(g.abs().max()) for g in whole) > 1e-3
    for g, a in zip(whole, apart, strict=True):
        assert torch.allclose(g, a, rtol=1e-5, atol=1e-8)


def only(loader: Any, batch: Batch, part: str) -> Batch:
    """A batch of one part's samples of another batch, under its objective alone."""
    from unmask.data.collate import collate, pack

    assert batch.samples is not None
    number = list(loader.parts).index(part)
    index = batch.samples.index[batch.samples.objective == number]
    lane = loader.lanes[number]
    examples = loader._examples(*lane.order.find(index), index, 0.0, lane)
    sizes = lane.part.objective.sizes(loader._outline(index, 0.0, lane))
    place = pack(sizes, loader.shape)
    return collate({part: examples}, {part: lane.part.objective.heads()}, place, shape=loader.shape, index=index)


def gradient(networks: nn.ModuleDict, batch: Batch, coefficients: dict[str, float]) -> list[Tensor]:
    terms = forward_heads(networks, batch, None)
    assert {k[0]: t.coefficient for k, t in terms.items()} == coefficients
    loss = sum(t.coefficient * t.sum / t.norm for t in terms.values())
    found = torch.autograd.grad(loss, list(networks["model"].parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, networks["model"].parameters(), strict=True)]


def test_a_stopped_run_goes_on_as_the_uncut_one(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {
        "clm": {"type": "causal", "until": 0.5},
        "mlm": {"type": "masked", "weight": 1, "final_weight": 3, "from": 0.25},
    }
    more = {"evaluation__gradients_every": 2, "evaluation__every": 3, "checkpoint__every": 1, "checkpoint__keep": 9}
    mixed("uncut", parts, **more)
    updates, real = [0], Optimizer.step

    def dying(self: Optimizer, share: float) -> None:
        updates[0] += 1
        if updates[0] == 4:
            raise KeyboardInterrupt
        real(self, share)

    monkeypatch.setattr(Optimizer, "step", dying)
    with pytest.raises(KeyboardInterrupt):
        mixed("cut", parts, **more)
    monkeypatch.setattr(Optimizer, "step", real)
    mixed("cut", parts, resume="must", **more)
    assert updates[0] == 4 and weights("cut") == weights("uncut") and bare("cut") == bare("uncut")
    told = [{k for k, v in line["terms"].items() if v is not None} for line in lines("uncut") if "terms" in line]
    assert told[0] == {"clm/lm"} and told[2] == {"clm/lm", "mlm/lm"} and told[3:] == [{"mlm/lm"}] * 3


def test_micro_batches_change_neither_losses_nor_counts() -> None:
    mixed("one", CLM_MLM, budget__steps=2)
    mixed("three", CLM_MLM, budget__steps=2, train__grad_accumulation=3)
    for a, b in zip(lines("one"), lines("three"), strict=True):
        assert a["target_tokens"] == b["target_tokens"] and a["tokens"] == b["tokens"] and a["flops"] == b["flops"]
        assert a["terms"] == pytest.approx(b["terms"], rel=1e-4)


# ---------------------------------------------------------------- what is told


def test_each_parts_loss_stands_beside_its_own_floor() -> None:
    run = mixed("run", CLM_MLM, evaluation__every=3)
    found = json.loads(Path("run/result.json").read_text())
    parts = found["held_out_parts"]
    assert set(parts) == {"clm", "mlm"} == set(run.held_out.parts)
    count = sum(p["content_targets"] for p in parts.values())
    assert (
        count == found["held_out_content_targets"] and parts["clm"]["content_targets"] > parts["mlm"]["content_targets"]
    )
    for name in ("loss", "accuracy", "unigram_floor"):  # of the parts, whatever their numbers of targets
        assert sum(p[name] for p in parts.values()) / 2 == pytest.approx(found[f"held_out_{name}"], rel=1e-6)
    assert parts["clm"]["unigram_floor"] != parts["mlm"]["unigram_floor"]
    evaluations = [line["evaluation"] for line in lines("run") if "evaluation" in line]
    assert len(evaluations) == 2
    assert evaluations[-1]["clm.loss"] == parts["clm"]["loss"]
    assert evaluations[-1]["mlm.unigram_floor"] == parts["mlm"]["unigram_floor"]
    for line in lines("run"):
        assert "terms" not in line or set(line["terms"]) == {"clm/lm", "mlm/lm"}


def test_flops_are_those_of_all_targets_of_both_parts() -> None:
    mixed("run", CLM_MLM, budget__steps=1)
    recipe, data = stored_recipe(Path("run")), prepared(Path("run"), "cache")
    recipe = resolve(recipe, data.tokenizer)
    (batch,) = training_loader(recipe, data)(0)
    asked = sum(int((t.weight > 0).sum()) for t in batch.targets.values())
    real = int((batch.stream.block > 0).sum())
    exact = flops(recipe.model, real, targets=float(asked), context=batch.stream.tokens.shape[1])
    assert batch_flops(recipe.model, batch, recipe.objective) == exact == lines("run")[0]["flops"]


# ---------------------------------------------------------------- gradients


def test_looking_at_gradients_leaves_the_run_as_it_was_bit_for_bit() -> None:
    more = {"model__dropout": 0.1, "train__grad_accumulation": 2}
    mixed("off", CLM_MLM, **more)
    torch.manual_seed(3)
    mixed("on", CLM_MLM, evaluation__gradients_every=2, **more)
    assert weights("on") == weights("off") and bare("on", "gradients") == bare("off")
    told = {line["step"]: line["gradients"] for line in lines("on") if "gradients" in line}
    assert list(told) == [2, 4, 6]
    for found in told.values():
        assert set(found["cosine"]) == {"clm mlm"} and -1 < found["cosine"]["clm mlm"] < 1
        assert set(found["norm"]) == {"clm", "mlm"} and min(found["norm"].values()) > 0


def test_the_cosine_is_over_the_parameters_that_both_parts_use() -> None:
    class Term:
        norm, coefficient = 2.0, 3.0

        def __init__(self, total: Tensor) -> None:
            self.sum = total

    shared, left, right = (nn.Parameter(torch.tensor(v)) for v in ([1.0, 2.0], [5.0], [7.0]))
    networks = nn.ModuleDict()
    networks.register_parameter("shared", shared)
    networks.register_parameter("left", left)
    networks.register_parameter("right", right)
    a = (shared * torch.tensor([3.0, 4.0])).sum() + 100 * left.sum()
    b = (shared * torch.tensor([4.0, 3.0])).sum() + 100 * right.sum()
    found = Gradients(1)(networks, {("a", "lm"): Term(a), ("b", "lm"): Term(b)})
    assert found["cosine"]["a b"] == pytest.approx(24 / 25)
    assert found["norm"]["a"] == pytest.approx(1.5 * (25 + 100**2) ** 0.5)
    assert all(p.grad is None for p in networks.parameters())
    none = Gradients(1)(networks, {("a", "lm"): Term(a * 0), ("b", "lm"): Term(b)})
    assert none["cosine"]["a b"] is None


# ---------------------------------------------------------------- recipes as published


GPT_BERT = {"clm": {"type": "causal"}, "mlm": {"preset": "mntp", "mask_rate": 0.3, "weight": 15}}
RECIPES: dict[str, tuple[dict[str, Any], str]] = {
    "antlm": (Mixture.antlm().model_dump(mode="json")["parts"], "encoder-small"),
    "gpt-bert": (GPT_BERT, "encoder-small"),
    "ul2": (
        {
            "r": {"preset": "t5", "mode": "[R]", "weight": 2},
            "s": {"type": "prefix_lm", "layout": {"kind": "encdec"}, "mode": "[S]"},
            "x": {"type": "span_corruption", "noise_density": 0.5, "mean_span": 8, "mode": "[X]", "weight": 2},
        },
        "encdec-small",
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_published_mixture_trains(name: str) -> None:
    parts, recipe = RECIPES[name]
    more = {"model__num_source_layers": 1, "tokenizer__extra": ["[R]", "[S]", "[X]"]} if name == "ul2" else {}
    run = mixed("run", parts, recipe, budget__steps=2, train__batch_size=16, **more)
    assert run.counters.step == 2 and set(run.held_out.parts) <= set(parts) and 0 < run.held_out.loss < 20
    terms = [set(line["terms"]) for line in lines("run")]
    assert terms == [{f"{p}/lm" for p in parts}] * 2
    shown = [{k.split("/")[0] for k, v in line["terms"].items() if v is not None} for line in lines("run")]
    assert shown == ([{"clm"}, {"mlm"}] if name == "antlm" else [set(parts)] * 2)
