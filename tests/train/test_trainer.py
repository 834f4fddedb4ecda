"""The loss of an update, accumulation, empty batches, precision and the budget."""

from __future__ import annotations

import io
import itertools
import json
import math
import threading
from collections.abc import Callable

import pytest
import torch
import toy

from unmask.errors import UserError
from unmask.train.hooks import Evaluation, Progress
from unmask.train.optim import Optimizer
from unmask.train.prefetch import Prefetch
from unmask.train.totals import summed
from unmask.train.trainer import Trainer


def gradients(t):
    t.precision = "fp32"
    micro = t.batches(0, 0.0)
    values = t._passes_of(t.spread)(0, micro, summed(batch.norms() for batch in micro))
    return values, {n: p.grad.clone() for n, p in t.networks.named_parameters()}


@pytest.mark.parametrize("micro", [2, 4, 8])
def test_o25_accumulation_changes_neither_loss_nor_gradient(tmp_path, micro: int) -> None:
    one, g1 = gradients(toy.trainer(tmp_path / "1"))
    many, gm = gradients(toy.trainer(tmp_path / "m", micro=micro))
    norms = [b.norms()[toy.KEY] for b in toy.batches(micro)(0, 0.0)]
    assert max(norms) > 2 * min(norms)  # a mean of means would differ
    assert many[toy.KEY][1] == pytest.approx(one[toy.KEY][1], abs=1e-6)
    for name in g1:
        assert torch.allclose(g1[name], gm[name], atol=1e-6, rtol=1e-5), name


def test_t08_logged_loss_is_that_of_the_whole_update(tmp_path) -> None:
    for micro in (1, 4):
        toy.trainer(tmp_path / str(micro), steps=10, micro=micro).run()
    one, four = (toy.metrics(tmp_path / m) for m in ("1", "4"))
    assert [x["loss"] for x in four] == pytest.approx([x["loss"] for x in one], abs=1e-6)
    assert [x["grad_norm"] for x in four] == pytest.approx([x["grad_norm"] for x in one], rel=1e-5)
    networks = toy.networks()
    parts = [toy.terms(networks, b.map(toy._tensor), None)[toy.KEY] for b in toy.batches(4)(0, 0.0)]
    by_hand = sum(float(p.sum.detach()) for p in parts) / sum(p.norm for p in parts)
    assert four[0]["loss"] == pytest.approx(by_hand, abs=1e-6)


def test_metrics_line_has_the_stated_fields(tmp_path) -> None:
    toy.trainer(tmp_path, steps=2).run()
    first, second = toy.metrics(tmp_path)
    assert list(first) == ["step", "tokens", "target_tokens", "flops", "lr", "loss", "terms", "grad_norm"]
    assert first["step"] == 1 and first["tokens"] == 48 and second["tokens"] == 96 and first["flops"] == 48
    assert first["terms"] == {"toy/lm": first["loss"]}


def test_training_lowers_the_loss(tmp_path) -> None:
    for optimizer in ("adamw", "muon"):
        toy.trainer(tmp_path / optimizer, steps=60, optimizer=optimizer).run()
        lines = toy.metrics(tmp_path / optimizer)
        assert lines[-1]["loss"] < lines[0]["loss"] - 0.5


def test_o04_update_without_targets_changes_nothing(tmp_path) -> None:
    t = toy.trainer(tmp_path, steps=6, batches=toy.batches(2, empty=lambda step: step == 3))
    build, seen = t.batches, []

    def watch(step, progress):
        seen.append(toy.weights(t))  # before update `step`
        return build(step, progress)

    t.batches = watch
    counters = t.run()
    lines = toy.metrics(tmp_path)
    same = [all(torch.equal(v, b[k]) for k, v in a.items()) for a, b in itertools.pairwise(seen)]
    assert same == [False, False, False, True, False] and counters.batches_without_targets == 2
    assert lines[3]["loss"] is None and lines[3]["terms"] == {"toy/lm": None}
    assert lines[3]["batches_without_targets"] == 2
    assert all(math.isfinite(x["loss"]) for i, x in enumerate(lines) if i != 3)


def test_o04_empty_micro_batch_leaves_the_others_intact(tmp_path) -> None:
    def with_empty(step, progress):
        (whole,) = toy.batches()(step, progress)
        return [whole, *toy.batches(1, empty=lambda s: True)(step, progress)]

    one, g1 = gradients(toy.trainer(tmp_path / "a"))
    two, g2 = gradients(toy.trainer(tmp_path / "b", batches=with_empty))
    assert one == two and all(torch.equal(g1[n], g2[n]) for n in g1)


def test_unannounced_terms_are_divided_by_their_norm_per_micro_batch(tmp_path) -> None:
    def run(micro: int) -> dict:
        t = toy.trainer(tmp_path / str(micro), micro=micro)

        def terms(networks, batch, generator):
            router = toy.Addend(networks["model"].layers[0].weight.square().sum(), 2.0, 0.5)
            return {**toy.terms(networks, batch, generator), ("toy", "router"): router}

        t.terms = terms
        return gradients(t)

    (v1, g1), (v4, g4) = run(1), run(4)
    weight = toy.networks()["model"].layers[0].weight.detach()
    assert v1[("toy", "router")] == pytest.approx((0.5, float(weight.square().sum()) / 2))
    assert v4[("toy", "router")] == pytest.approx(v1[("toy", "router")])
    assert torch.allclose(g1["model.layers.0.weight"], g4["model.layers.0.weight"], atol=1e-6)


def test_nan_stops_the_run_and_names_step_and_checkpoint(tmp_path) -> None:
    t = toy.trainer(tmp_path, steps=10)
    calls = []

    def terms(networks, batch, generator):
        calls.append(1)
        scale = float("nan") if len(calls) == 6 else 1.0
        term = toy.terms(networks, batch, generator)[toy.KEY]
        return {toy.KEY: toy.Addend(term.sum * scale, term.norm)}

    t.terms = terms
    with pytest.raises(UserError, match=r"update 6 is at fault: its loss is nan.*step-4"):
        t.run()
    assert all(torch.isfinite(w).all() for w in toy.weights(t).values())
    assert [x["step"] for x in toy.metrics(tmp_path)] == [1, 2, 3, 4, 5]


def _poisoned(t: Trainer, bad: set[int], by: float) -> None:
    """Terms whose sum is multiplied by `by` in these updates, counted from 1."""

    def terms(networks, batch, generator):
        scale = by if t.counters.step + 1 in bad else 1.0
        term = toy.terms(networks, batch, generator)[toy.KEY]
        return {toy.KEY: toy.Addend(term.sum * scale, term.norm)}

    t.terms = terms
    t.documents = lambda step, progress: [{"document": step, "begins": f"text {step}"}]


def test_an_update_at_fault_is_skipped_and_named(tmp_path) -> None:
    skipping, plain = toy.trainer(tmp_path / "a", steps=8, at_fault="skip"), toy.trainer(tmp_path / "b", steps=8)
    _poisoned(skipping, {3, 6}, float("nan"))
    said: list[str] = []
    skipping.progress = Progress(io.StringIO())
    skipping.progress.say = said.append  # type: ignore[method-assign]
    plain.optimizer.step = _but({3, 6}, plain)  # type: ignore[method-assign]
    skipping.run(), plain.run()
    assert all(
        torch.equal(a, b) for a, b in zip(toy.weights(skipping).values(), toy.weights(plain).values(), strict=True)
    )
    lines = toy.metrics(tmp_path / "a")
    assert [x["step"] for x in lines] == list(range(1, 9)) and lines[-1]["skipped"] == 2
    assert [x["loss"] is None for x in lines] == [x["step"] in (3, 6) for x in lines]
    faults = [json.loads(line) for line in (tmp_path / "a" / "faults.jsonl").read_text().splitlines()]
    assert [(f["step"], f["loss"], f["documents"][0]["document"]) for f in faults] == [(3, "nan", 2), (6, "nan", 5)]
    assert any("update 3 is at fault" in s and "2 ('text 2')" in s and "it is skipped" in s for s in said)


def _but(steps: set[int], t: Trainer) -> Callable[[float], None]:
    """The optimizer's step, left out at these updates."""
    move = t.optimizer.step
    return lambda factor: None if t.counters.step + 1 in steps else move(factor)


def test_a_gradient_norm_above_the_limit_is_at_fault(tmp_path) -> None:
    t = toy.trainer(tmp_path, steps=8, skip_above=1e4)
    _poisoned(t, {5}, 1e9)
    with pytest.raises(UserError, match=r"update 5 is at fault: its gradient norm is .* above train.skip_above=10000"):
        t.run()
    assert t.counters.step == 4


def test_a_run_that_skips_ten_in_a_row_stops(tmp_path) -> None:
    t = toy.trainer(tmp_path, steps=30, at_fault="skip")
    _poisoned(t, set(range(7, 31)), float("inf"))
    with pytest.raises(UserError, match=r"update 16 is at fault.*the 10th in a row"):
        t.run()


def test_o27_evaluation_does_not_change_training(tmp_path) -> None:
    plain, watched = toy.trainer(tmp_path / "a", dropout=0.2), toy.trainer(tmp_path / "b", dropout=0.2)

    def noisy(networks):
        assert not networks.training
        torch.rand(5)
        return toy.evaluate(networks)

    watched.evaluation = Evaluation(3, noisy)
    plain.run(), watched.run()
    assert watched.networks.training
    assert all(torch.equal(v, toy.weights(watched)[k]) for k, v in toy.weights(plain).items())
    lines = toy.metrics(tmp_path / "b")
    assert [x["step"] for x in lines if "evaluation" in x] == [3, 6, 9, 12, 15, 18, 20]
    assert [x for x in lines if "evaluation" not in x] == toy.metrics(tmp_path / "a")


def test_bf16_trains_and_is_recorded(tmp_path) -> None:
    t = toy.trainer(tmp_path, steps=30, precision="bf16")
    t.run()
    lines = toy.metrics(tmp_path)
    assert t.plan.precision == "bf16" and lines[-1]["loss"] < lines[0]["loss"]
    assert all(w.dtype == torch.float32 for w in toy.weights(t).values())


def test_shared_parameters_between_networks_move_once(tmp_path) -> None:
    t = toy.trainer(tmp_path, steps=3)
    twin = toy.networks(seed=1)["model"]
    twin.table.weight = twin.head.weight = t.networks["model"].table.weight
    t.networks["twin"] = twin
    t.optimizer = Optimizer(t.networks, t.settings.train)
    names = list(t.optimizer.named)
    assert "model.table.weight" in names and "twin.table.weight" not in names and "twin.layers.0.weight" in names
    t.run()
    assert twin.head.weight is t.networks["model"].head.weight


def test_prefetched_batches_equal_those_built_in_place(tmp_path) -> None:
    threads, seen = set(), []

    def build(step, progress):
        threads.add(threading.current_thread().name.split("_")[0])
        seen.append(step)
        return [(step, progress)]

    prefetch = Prefetch(build, depth=2)
    got = [prefetch.get(s, range(s + 1, 6), lambda s: s / 6) for s in range(6)]
    prefetch.close()
    assert got == [[(s, s / 6)] for s in range(6)]
    assert sorted(seen) == list(range(6)) and threads == {"MainThread", "prefetch"}


def test_out_that_holds_a_run_is_refused(tmp_path) -> None:
    toy.trainer(tmp_path, steps=2).run()
    with pytest.raises(UserError, match="already holds a run"):
        toy.trainer(tmp_path, steps=2).run()
    with pytest.raises(UserError, match=r"planned with budget\.steps=2, not budget\.steps=3"):
        toy.trainer(tmp_path, steps=3).run(resume=True)
