"""One run on several processes (gloo, CPU): the same numbers however it is cut, resumed and stopped; DDP and FSDP2.

Each `work` starts processes once for many jobs. Differences are told relative to the loss, and of gradients as the
norm of the difference over the norm, all tensors together.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import rankwork
import torch
from rankwork import apart, losses

from unmask.train import checkpoint
from unmask.train.ranks import Ranks
from unmask.train.sharded import Stored
from unmask.train.spread import layers_apart

ADAMW = {"train.optimizer": "adamw"}
LOSS, GRADIENT = 1e-6, 1e-5
CASES = ["spans", "mixture", "replaced", "staged"]
FEW = {"case": "mixture", "train__batch_size": 2, "evaluation__every": 10}
"""About two rows an update, some of which have no text of a part."""
AGAIN = ["masked", "spans", "shared", "experts"]
DROPS = {"model__dropout": 0.1, "budget__steps": 10}
Seen = dict[str, Any]


def job(out: str, case: str = "masked", **settings: Any) -> dict[str, Any]:
    return {"out": out, "case": case, "settings": {**ADAMW, **{k.replace("__", "."): v for k, v in settings.items()}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ranks")
    rankwork.write_text(place / "text.txt")
    return place


@pytest.fixture(scope="module")
def alone(folder: Path, one_thread: None) -> dict[str, Seen]:
    """One process; micro-batches of an update at the end of the name."""
    jobs = [
        *(job(f"{case}-{g}", case, train__grad_accumulation=g) for case in CASES for g in (1, 2, 8)),
        job("few-1", **FEW),
        job("shared-1", "shared", budget__steps=10),
        job("gdes-1", "gdes", budget__steps=10),
        job("dropout-2", train__grad_accumulation=2, model__dropout=0.1),
        job("muon-1", train__optimizer="muon", budget__steps=1),
        job("bf16-2", train__grad_accumulation=2, precision="bf16", budget__steps=10),
        *(job(f"{case}-plain", case, train__grad_accumulation=4, **DROPS) for case in AGAIN),
        job("decoder-1", "decoder", budget__steps=1),
    ]
    found = {j["out"]: rankwork.run(folder, j, Ranks()) for j in jobs}
    return {**found, "faults-1": rankwork.run(folder, faults(folder, "faults-1"), Ranks())}


def faults(folder: Path, out: str, **more: Any) -> dict[str, Any]:
    """A run that passes over updates whose gradient is larger than the third largest of `spans-1` was."""
    norms = sorted(line["grad_norm"] for line in losses(folder, "spans-1"))
    return job(out, "spans", train__at_fault="skip", train__skip_above=(norms[-3] + norms[-2]) / 2, **more)


@pytest.fixture(scope="module")
def two(folder: Path, alone: dict[str, Seen]) -> dict[str, list[Seen]]:
    """Two ranks."""
    jobs = [
        *(job(f"{case}-{how}-x2", case, parallel=how) for case in CASES for how in ("ddp", "fsdp")),
        job("replaced-fsdp-x2-4", "replaced", parallel="fsdp", train__grad_accumulation=3),
        job("dropout-x2", model__dropout=0.1),
        *(again(case, how) for case in AGAIN for how in ("ddp", "fsdp")),
        job("muon-x2", parallel="fsdp", train__optimizer="muon", budget__steps=1),
        job("bf16-x2", precision="bf16", parallel="fsdp", budget__steps=10),
        *_cut("ddp"),
        *_cut("fsdp"),
        *(faults(folder, f"faults-{how}-x2", parallel=how) for how in ("ddp", "fsdp")),
        job("minutes-x2", budget__steps=None, budget__minutes=0.01),
        job("decoder-fsdp-x2", "decoder", parallel="fsdp", budget__steps=1),
        *(counted(how) for how in ("ddp", "fsdp")),
        {**counted("fsdp"), "out": "counted-again", "of": "counted-fsdp"},
    ]
    return rankwork.work(folder, jobs, 2)


def counted(how: str) -> dict[str, Any]:
    """ELECTRA whose layers outweigh its tables; what is allocated until its first update is counted."""
    large = {"model__hidden_size": 64, "model__num_layers": 4}
    return {**job(f"counted-{how}", "replaced", parallel=how, budget__steps=1, **large), "allocated": True}


def again(case: str, how: str) -> dict[str, Any]:
    """Activation checkpointing with dropout, two micro-batches a rank."""
    more = {"train__activation_checkpointing": True, "train__grad_accumulation": 4, **DROPS}
    return job(f"{case}-again-{how}", case, parallel=how, **more)


def _cut(how: str) -> list[dict[str, Any]]:
    """A run with dropout, uncut; stopped by a signal to rank 1 in update 14; and resumed on as many ranks."""
    uncut = job(f"uncut-{how}", parallel=how, model__dropout=0.1, evaluation__every=7)
    return [uncut, {**uncut, "out": f"cut-{how}", "signal": {"rank": 1, "step": 13}}, resumed(how, "x2")]


def resumed(how: str, where: str) -> dict[str, Any]:
    name = f"cut-{how}"
    return {**job(f"{name}-{where}", parallel=how, model__dropout=0.1, evaluation__every=7), "of": name}


@pytest.fixture(scope="module")
def four(folder: Path, two: dict[str, list[Seen]]) -> dict[str, list[Seen]]:
    """Four ranks; an update of `few` has about two rows."""
    jobs = [
        *(job(f"few-{how}-x4", parallel=how, **FEW) for how in ("ddp", "fsdp")),
        *(job(f"{c}-fsdp-x4", c, parallel="fsdp", budget__steps=10) for c in ("shared", "gdes")),
        *(job(f"{case}-ddp-x4", case, parallel="ddp") for case in ("spans", "staged")),
        *(resumed(how, "x4") for how in ("ddp", "fsdp")),
    ]
    return rankwork.work(folder, jobs, 4)


def assert_equal(folder: Path, a: str, b: str, one: Seen, other: Seen) -> tuple[float, float]:
    """Losses and gradients within the stated limits, counters equal; the largest differences."""
    first, second = losses(folder, a), losses(folder, b)
    assert [x["step"] for x in first] == [x["step"] for x in second] and len(first) >= 10
    for key in ("tokens", "target_tokens", "lr"):
        assert [x[key] for x in first] == [x[key] for x in second], key
    assert [x["flops"] for x in first] == pytest.approx([x["flops"] for x in second], rel=1e-12)
    assert [x["loss"] is None for x in first] == [x["loss"] is None for x in second]
    both = [(x["loss"], y["loss"]) for x, y in zip(first, second, strict=True) if x["loss"] is not None]
    off = max(abs(x - y) / max(1.0, x) for x, y in both)
    gradient = max(apart(one["gradients"][s], other["gradients"][s]) for s in one["gradients"])
    print(f"{a} against {b}: losses {off:.1e}, gradients {gradient:.1e}")
    assert off <= LOSS and gradient <= GRADIENT, (a, b, off, gradient)
    assert [list(x["terms"]) for x in first] == [list(x["terms"]) for x in second]
    return off, gradient


@pytest.mark.parametrize("case", CASES)
def test_o26_accumulation_and_ranks_give_the_same_losses_and_gradients(folder, alone, two, case: str) -> None:
    for g in (2, 8):
        assert_equal(folder, f"{case}-1", f"{case}-{g}", alone[f"{case}-1"], alone[f"{case}-{g}"])
    for how in ("ddp", "fsdp"):
        for rank in (0, 1):
            assert_equal(folder, f"{case}-1", f"{case}-{how}-x2", alone[f"{case}-1"], two[f"{case}-{how}-x2"][rank])


def test_o26_four_ranks(folder, alone, four) -> None:
    for case in ("spans", "staged"):
        assert_equal(folder, f"{case}-1", f"{case}-ddp-x4", alone[f"{case}-1"], four[f"{case}-ddp-x4"][3])
    for case in ("shared", "gdes"):
        assert_equal(folder, f"{case}-1", f"{case}-fsdp-x4", alone[f"{case}-1"], four[f"{case}-fsdp-x4"][2])


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_ranks_pass_over_the_same_updates(folder, alone, two, how: str) -> None:
    """… and name the same texts, of the whole update."""
    other = f"faults-{how}-x2"
    skipped = alone["faults-1"]["counters"]["skipped"]
    assert 0 < skipped < 20
    for rank in two[other]:
        assert rank["counters"]["skipped"] == skipped
        assert_equal(folder, "faults-1", other, alone["faults-1"], rank)
    files = [(folder / out / "faults.jsonl").read_text() for out in ("faults-1", other)]
    named = [[json.loads(line) for line in file.splitlines()] for file in files]
    assert len(named[0]) == len(named[1]) == skipped
    for a, b in zip(*named, strict=True):
        assert (a["step"], a["documents"]) == (b["step"], b["documents"]) and a["documents"]


def test_minutes_are_the_same_updates_on_every_rank(folder, two) -> None:
    """Each rank's clock is its own; what the first one has decides."""
    plan = json.loads((folder / "minutes-x2" / "plan.json").read_text())
    for rank in two["minutes-x2"]:
        assert rank["counters"]["step"] == plan["total_steps"] >= plan["calibration_steps"] > 0
        assert rank["counters"]["seconds"] == pytest.approx(two["minutes-x2"][0]["counters"]["seconds"], rel=0.5)
    assert losses(folder, "minutes-x2")[-1]["step"] == plan["total_steps"]


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_t16_ranks_without_a_row_or_a_target_neither_hang_nor_count(folder, alone, four, how: str) -> None:
    """Two rows an update for four ranks, of one part of the mixture or of both."""
    assert_equal(folder, "few-1", f"few-{how}-x4", alone["few-1"], four[f"few-{how}-x4"][3])
    shares = [set(seen["samples"]) for seen in four[f"few-{how}-x4"]]
    assert all(seen["bare"] for seen in four[f"few-{how}-x4"][:2])
    assert not shares[3] and shares[0] and set().union(*shares) == set(alone["few-1"]["samples"])


def test_t16_an_uneven_number_of_micro_batches(folder, alone, two) -> None:
    plan = json.loads((folder / "replaced-fsdp-x2-4" / "plan.json").read_text())
    assert plan["micro_batches"] == 3
    assert_equal(folder, "replaced-1", "replaced-fsdp-x2-4", alone["replaced-1"], two["replaced-fsdp-x2-4"][1])


def test_every_text_is_seen_once_an_epoch_whatever_the_ranks(folder, alone, two, four) -> None:
    """… and evaluation, which every rank makes of the whole, counts no text twice (T16, T20)."""
    once = Counter(alone["spans-1"]["samples"])
    assert set(once.values()) == {1}
    for seen in (two["spans-ddp-x2"], two["spans-fsdp-x2"], four["spans-ddp-x4"]):
        assert sum((Counter(rank["samples"]) for rank in seen), Counter()) == once
    figures = [evaluations(folder, out) for out in ("few-1", "few-ddp-x4", "few-fsdp-x4")]
    assert len(figures[0]) == 2
    for found in figures[1:]:
        for a, b in zip(figures[0], found, strict=True):
            assert a["evaluation"] == pytest.approx(b["evaluation"], rel=1e-6)


def test_coverage_is_said() -> None:
    from unmask.data.loader import Loader
    from unmask.data.sampling import Order

    loader = Loader.__new__(Loader)
    loader.order, loader.pieces, loader.per_step, loader.steps = Order(40, 0, True, 0), range(40), 8, 2
    assert loader.coverage(4) == "32 of the corpus's 40 texts read in 4 updates, none twice"
    assert loader.coverage(5) == "about 40 texts read in 5 updates: each of 40 1×"
    assert loader.coverage(12) == "96 texts read in 12 updates: each of 40 2×, 16 of them once more"


def evaluations(folder: Path, out: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "evaluation" in line]


def test_dropout_over_ranks_is_that_of_accumulation(folder, alone, two) -> None:
    assert_equal(folder, "dropout-2", "dropout-x2", alone["dropout-2"], two["dropout-x2"][1])
    a, b = losses(folder, "dropout-2"), losses(folder, "spans-1")
    assert a[0]["loss"] != b[0]["loss"]


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
@pytest.mark.parametrize("case", AGAIN)
def test_activation_checkpointing_over_ranks_changes_no_number(folder, alone, two, case: str, how: str) -> None:
    """… nor does dropout: two ranks that compute layers again against one process that keeps what it has."""
    names = f"{case}-plain", f"{case}-again-{how}"
    assert_equal(folder, *names, alone[names[0]], two[names[1]][1])


@pytest.mark.slow
def test_compiled_ranks_give_the_numbers_of_plain_ones(folder, one_thread) -> None:
    """Captured by dynamo and differentiated by AOTAutograd; inductor's own kernels would take minutes here."""
    jobs = [
        {**job(f"compiled-{how}", parallel=how, compile=True, budget__steps=4), "backend": "aot_eager"}
        for how in ("ddp", "fsdp")
    ]
    for name, seen in rankwork.work(folder, [job("compiled-none", budget__steps=4), *jobs], 2).items():
        plain = losses(folder, "compiled-none")
        assert [x["loss"] for x in losses(folder, name)] == pytest.approx([x["loss"] for x in plain], rel=LOSS)
        assert (seen[0]["counters"]["compilations"] > 0) == (name != "compiled-none")


def test_muon_of_shards_is_muon_of_whole_matrices(alone, two) -> None:
    """One update. Newton–Schulz runs in bf16, where a last bit of a gradient may turn a digit: 1 % of the way."""
    start, moved = alone["muon-1"]["start"], alone["muon-1"]["weights"]
    for name, weight in two["muon-x2"][1]["weights"].items():
        way = float((moved[name] - start[name]).norm())
        assert float((weight - moved[name]).norm()) <= 0.01 * way + 1e-7, name


def test_bf16_autocast_of_shards_is_that_of_one_process(folder, two) -> None:
    a, b = losses(folder, "bf16-2"), losses(folder, "bf16-x2")
    assert [x["loss"] for x in a] == pytest.approx([x["loss"] for x in b], rel=1e-3)
    assert a[-1]["loss"] < a[0]["loss"] and all(w.dtype == torch.float32 for w in two["bf16-x2"][0]["weights"].values())


# ---------------------------------------------------------------- stopped, resumed


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_t01_a_signal_to_one_rank_stops_all_and_the_run_goes_on_bit_for_bit(folder, two, how: str) -> None:
    for rank in two[f"cut-{how}"]:
        assert rank["stopped"] == "SIGTERM" and rank["counters"]["step"] == 14
    uncut, cut = two[f"uncut-{how}"], two[f"cut-{how}-x2"]
    assert losses(folder, f"uncut-{how}") == losses(folder, f"cut-{how}-x2")
    assert len(evaluations(folder, f"cut-{how}-x2")) == 3
    for a, b in zip(uncut, cut, strict=True):
        assert all(torch.equal(b["weights"][n], w) for n, w in a["weights"].items())


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_t01_a_run_goes_on_with_more_ranks_or_none(folder, two, four, how: str) -> None:
    """Micro-batches stay those of the start (`plan.json`), so dropout does, too."""
    rankwork.run(folder, resumed(how, "x1"), Ranks())
    for where in ("x1", "x4"):
        assert_run(folder, f"uncut-{how}", f"cut-{how}-{where}")


def assert_run(folder: Path, a: str, b: str) -> None:
    one, other = losses(folder, a), losses(folder, b)
    assert [x["loss"] for x in one] == pytest.approx([x["loss"] for x in other], rel=LOSS)
    assert [x["tokens"] for x in one] == [x["tokens"] for x in other]


def test_every_rank_holds_a_share_of_every_layer(alone, two, four) -> None:
    whole = alone["shared-1"]["held"]
    shares = [seen["held"] for seen in four["shared-fsdp-x4"]]
    assert sum(shares) == whole and max(shares) < 0.3 * whole
    assert [seen["held"] for seen in two["spans-ddp-x2"]] == [alone["spans-1"]["held"]] * 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("masked-plain", "masked-again-fsdp"),
        ("decoder-1", "decoder-fsdp-x2"),  # whose head is its table
        ("experts-plain", "experts-again-fsdp"),
        ("spans-1", "spans-fsdp-x2"),  # two stacks
        ("replaced-1", "replaced-fsdp-x2"),
        ("shared-1", "shared-fsdp-x4"),
        ("gdes-1", "gdes-fsdp-x4"),
    ],
)
def test_shards_start_with_the_weights_of_one_process(alone, two, four, one: str, other: str) -> None:
    """… bit for bit, though no process made them whole."""
    wanted = alone[one]["start"]
    for seen in {**two, **four}[other]:
        assert seen["start"].keys() == wanted.keys()
        assert all(torch.equal(seen["start"][name], weight) for name, weight in wanted.items())


def test_no_rank_of_shards_ever_holds_the_whole_model(folder, two) -> None:
    """Neither where it starts, when it holds its half and one parameter more, nor where it goes on; a copy does."""
    sizes = [4 * weight.numel() for weight in two["counted-ddp"][0]["weights"].values()]
    half = sum(sizes) / 2 + 1.1 * max(sizes)
    assert all(seen["allocated"] >= sum(sizes) > half for seen in two["counted-ddp"])
    assert all(seen["allocated"] < half for seen in two["counted-fsdp"])
    moments = sum(4 * state.numel() for state in two["counted-again"][0]["state"].values())
    files = (folder / "counted-fsdp" / "checkpoints" / "step-1").glob("optimizer*.safetensors")
    mapped = sum(file.stat().st_size for file in files)  # counted as allocated, though only its own rows are read
    for seen in two["counted-again"]:
        assert seen["allocated"] - mapped < half + moments / 2


def test_t13_a_checkpoint_of_shards_is_that_of_copies(folder, two) -> None:
    ddp, fsdp = (folder / f"uncut-{how}" / "checkpoints" / "step-20" for how in ("ddp", "fsdp"))
    for kind in (checkpoint.MODEL, checkpoint.OPTIMIZER):
        a, b = Stored(ddp, kind), Stored(fsdp, kind)
        assert a.keys() == b.keys() and a.aliases == b.aliases and len(a.files) == 1 and len(b.files) == 2
        assert all(a[k].shape == b[k].shape and torch.allclose(a[k][...], b[k][...], atol=1e-6) for k in a)


# ---------------------------------------------------------------- which layers


def test_layers_that_share_a_parameter_are_left_to_the_root() -> None:
    import toy

    networks = toy.networks()
    assert len(list(layers_apart(networks))) == 2
    networks["model"].tied = networks["model"].layers[1]  # one module under two names is still alone
    assert len(list(layers_apart(networks))) == 2
    networks["model"].layers[0].bias = networks["model"].layers[1].bias
    assert list(layers_apart(networks)) == []
