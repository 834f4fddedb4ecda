"""Stages of a run: other contexts and batch sizes on the way, and everything else as in a run of one stage."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import toy
from typer.testing import CliRunner

from unmask.batch import Batch
from unmask.cli import app
from unmask.compare.planning import planned
from unmask.config import BudgetConfig, TrainConfig
from unmask.data.loader import Loader
from unmask.data.shards import Prepared
from unmask.data.stages import Stages, seed_of
from unmask.directory import gave_up
from unmask.errors import UserError
from unmask.networks import batch_flops
from unmask.planning import plan
from unmask.recipe import Recipe, load_recipe
from unmask.run import begin, pretrain, resolve, training_batches, training_loader
from unmask.scale.ladder import sampled
from unmask.train import compiled
from unmask.train.base import Counters
from unmask.train.optim import Optimizer
from unmask.train.plan import mean_cost, steps_within
from unmask.train.schedule import factor

TINY: dict[str, Any] = {
    "tokenizer.type": "byte",
    "model.hidden_size": 16,
    "model.num_layers": 1,
    "model.num_heads": 2,
    "model.dropout": 0.1,
    "context": 32,
    "train.batch_size": 8,
    "train.warmup_steps": 4,
    "evaluation.pieces": 8,
    "device": "cpu",
    "precision": "fp32",
    "budget.steps": 20,
}
LENGTHS = [{"share": 0.4, "context": 16, "batch_size": 16}, {"share": 0.3}, {"share": 0.3, "batch_size": 3}]
BATCHES = [{"share": 0.25, "batch_size": 2}, {"share": 0.25, "batch_size": 5}, {"share": 0.5}]
PAIRS = ["objective.type=pairs", "objective.layout=causal", "objective.max_target=8"]
PARTS = {"clm": {"type": "causal", "until": 0.8}, "mlm": {"type": "masked", "from": 0.3}}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "masked": ("encoder-small", {"objective.type": "masked"}),
    "replaced": ("encoder-small", {"objective.type": "replaced"}),
    "spans": ("encdec-small", {"model.num_source_layers": 1}),
    "mixture": ("encoder-small", {"objective.type": "mixture", "objective.parts": PARTS, "model.family": "unmask"}),
    "order": ("encoder-small", {"objective.type": "sentence_order", "corpus.sentences": True}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stages")
    for name, count in (("text", 260), ("more", 90)):
        lines = [f"{name} {i}: the night was dark. {i * i} stars {'shone ' * (i % 9)}. It ended." for i in range(count)]
        (place / f"{name}.txt").write_text("\n\n".join(lines))
    return place


def asked(folder: Path, kind: str = "masked", **more: Any) -> Recipe:
    name, settings = KINDS[kind]
    own = {k.replace("__", "."): v for k, v in more.items()}
    if "corpus.sources" not in own:
        own = {"corpus": str(folder / "text.txt"), "corpus.document": "blank_line", **own}
    return load_recipe(name, {**TINY, **settings, **own})


def built(recipe: Recipe, folder: Path) -> tuple[Recipe, Prepared, Stages]:
    recipe, text, _ = begin(recipe, folder / "cache", lambda _: None)
    recipe = resolve(recipe, text.tokenizer)
    return recipe, text, training_batches(recipe, text)


def numbers(batch: Any) -> list[np.ndarray]:
    """Every array of a batch."""
    found: list[np.ndarray] = []
    batch.map(lambda a: found.append(np.asarray(a)) or a)
    return found


def assert_equal(a: list[Batch], b: list[Batch]) -> None:
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        x, y = numbers(one), numbers(other)
        assert len(x) == len(y) > 3 and all(np.array_equal(p, q) for p, q in zip(x, y, strict=True))


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("kind", ["masked", "replaced", "spans", "order"])
def test_each_stage_is_a_plain_loader_of_its_context_and_batch(folder: Path, kind: str) -> None:
    """Of the recipe's seed the first context; of a seed of its own the second, from its beginning."""
    recipe, text, stages = built(asked(folder, kind, train__stages=[*LENGTHS[:2], {"share": 0.3}]), folder)
    total, first = 40, 16
    short = training_loader(recipe.model_copy(update={"context": 16, "train": TrainConfig(batch_size=16)}), text)
    full = training_loader(recipe, text, seed=seed_of(recipe.seed, 1))
    assert short.shape != full.shape and seed_of(recipe.seed, 1) != seed_of(recipe.seed, 2) != recipe.seed
    for step in range(first):
        assert_equal(stages(step, step / total), short(step, step / total))
    for step in range(first, total // 2):
        assert_equal(stages(step, step / total), full(step - first, (step - first) / total))
    widths = {b.stream.tokens.shape[1] for s in (0, 39) for b in stages(s, s / total)}
    assert len(widths) == 2 or kind == "spans"


def test_one_stage_is_no_stage(folder: Path) -> None:
    for given in ([], [{"share": 1}]):
        recipe, text, stages = built(asked(folder, "mixture", train__stages=given), folder)
        plain = training_loader(recipe, text)
        for step in range(0, 40, 3):
            assert_equal(stages(step, step / 40), plain(step, step / 40))
            assert_equal(stages(step, step / 40, range(1, 3, 2)), plain(step, step / 40, range(1, 3, 2)))
        assert stages.coverage(9) == plain.coverage(9) and stages.notes == plain.notes


def test_stages_of_one_context_read_no_text_twice(folder: Path) -> None:
    recipe, _, stages = built(asked(folder, context=16, train__stages=BATCHES), folder)
    whole = len(stages.loaders[0].pieces)
    total = 1
    while sum(n * a.per_step for a, n in _lengths(stages, total)) < whole - 3 * 256:
        total += 1
    assert total > 20
    read, found = Counter(), []
    for step in range(total):
        found.append([i for b in stages(step, step / total) for i in b.samples.index.tolist()])
        read.update((d, t.tobytes()) for d, t in stages.texts(step, step / total))
    samples = Counter(i for each in found for i in each)
    assert set(samples.values()) == {1} and max(samples) < whole  # an epoch: each at most once
    expected = sum(n * a.per_step for a, n in _lengths(stages, total))
    assert abs(len(samples) - expected) < 255
    sizes = [np.mean([len(x) for x in found[a:b]]) for a, b in pairwise([*recipe.train.begins(total), total])]
    assert sizes[0] < sizes[1] < sizes[2]
    told = stages.coverage(total)
    assert told is not None and told.startswith("stage 1, 2, 3: about ") and told.endswith("none twice")


def _lengths(stages: Stages, total: int) -> list[tuple[Loader, int]]:
    ends = [*stages.begins(total), total]
    return [(own, b - a) for own, (a, b) in zip(stages.loaders, pairwise(ends), strict=True)]


def test_a_context_that_comes_back_goes_on_in_its_order(folder: Path) -> None:
    given = [{"share": 0.25}, {"share": 0.5, "context": 16}, {"share": 0.25, "batch_size": 4}]
    _, _, stages = built(asked(folder, train__stages=given), folder)
    total = 24
    index = [
        {i for s in part for b in stages(s, s / total) for i in b.samples.index.tolist()}
        for part in (range(6), range(6, 18), range(18, 24))
    ]
    loader = stages.loaders[0]
    assert min(index[0]) == min(index[1]) == 0
    assert min(index[2]) >= max(index[0]) - loader.per_step * loader.steps
    assert not index[0] & index[2] and min(index[2]) >= loader.per_step * 6
    told = stages.coverage(total)
    assert told is not None and told.startswith("stage 1, 3: about ") and "; stage 2: " in told


def test_contexts_that_cut_no_text_share_an_order(folder: Path) -> None:
    (folder / "short.txt").write_text("\n".join(f"line {i * i}" for i in range(900)))
    given = [{"share": 0.5, "context": 16}, {"share": 0.5}]
    recipe = asked(folder, train__stages=given, corpus=str(folder / "short.txt"), **{"corpus.document": "line"})
    _, _, stages = built(recipe, folder)
    index = [
        {i for s in part for b in stages(s, s / 12) for i in b.samples.index.tolist()}
        for part in (range(6), range(6, 12))
    ]
    assert not index[0] & index[1] and max(index[1]) < len(stages.loaders[0].pieces)
    read = [t.tobytes() for s in range(12) for _, t in stages.texts(s, s / 12)]
    assert len(read) == len(set(read)) > 100
    assert str(stages.coverage(12)).startswith("stage 1, 2: about ")


def test_the_texts_of_an_update_are_those_of_its_batches(folder: Path) -> None:
    _, _, stages = built(asked(folder, train__stages=LENGTHS), folder)
    for step in range(20):
        loader = stages.loaders[0 if step < 8 else 1 if step < 14 else 2]
        index = np.concatenate([b.samples.index for b in stages(step, step / 20)])
        pieces = np.unique(loader.order.find(index)[0])
        assert [d for d, _ in stages.texts(step, step / 20)] == loader.pieces.document[pieces].tolist()


def test_sources_are_mixed_in_every_stage(folder: Path) -> None:
    sources = {name: {"path": str(folder / f"{name}.txt"), "document": "blank_line"} for name in ("text", "more")}
    given = {"corpus.sources": sources, "corpus.mix": "temperature", "corpus.temperature": 5.0}
    _, text, stages = built(asked(folder, train__stages=[*LENGTHS[:2], {"share": 0.3}], **given), folder)
    second = text.train.first[1]
    for part in (range(16), range(16, 40)):
        documents = [d for s in part for d, _ in stages.texts(s, s / 40)]
        assert 0.25 < np.mean([d >= second for d in documents]) < 0.6
    told = stages.mixture(["text", "more"], 40)
    assert told.startswith("stage 1, mixture: text ") and "; stage 2, mixture: text " in told


# ---------------------------------------------------------------- runs


def lines(out: Path) -> list[dict[str, Any]]:
    return [x for x in toy.metrics(out) if "evaluation" not in x]


def weights(out: Path, step: int) -> bytes:
    return b"".join(p.read_bytes() for p in sorted((out / "checkpoints" / f"step-{step}").glob("*.safetensors")))


@pytest.mark.parametrize("kind", ["replaced", "spans", "mixture"])
def test_a_run_cut_in_a_stage_and_between_two_is_the_uncut_run(
    folder: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = asked(folder, kind, train__stages=LENGTHS, checkpoint__every=1, train__grad_accumulation=2)
    said: list[str] = []
    train = lambda out, resume: pretrain(
        recipe, out=tmp_path / out, resume=resume, cache=folder / "cache", say=said.append
    )
    train("uncut", "never")
    updates, real = [0], Optimizer.step

    def dying(self: Optimizer, share: float) -> None:
        updates[0] += 1
        if updates[0] in deaths:
            raise KeyboardInterrupt
        real(self, share)

    deaths = {4, 9 + 1, 12 + 2}  # amid stage 1; in the first update of stage 2; amid stage 2 (each death costs one)
    monkeypatch.setattr(Optimizer, "step", dying)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            train("cut", "auto")
    train("cut", "must")
    assert updates[0] == 20 + 3 and toy.metrics(tmp_path / "cut") == toy.metrics(tmp_path / "uncut")
    assert weights(tmp_path / "cut", 20) == weights(tmp_path / "uncut", 20)
    assert any("stage 1: " in s and "stage 2, 3: " in s for s in said)


def test_the_learning_rate_goes_by_the_update_alone(folder: Path, tmp_path: Path) -> None:
    recipe = asked(folder, train__stages=LENGTHS)
    pretrain(recipe, out=tmp_path / "run", cache=folder / "cache", say=lambda _: None)
    rate = recipe.train.learning_rate
    assert [x["lr"] for x in lines(tmp_path / "run")] == [factor(s, 20, recipe.train) * rate for s in range(20)]


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_batches_built_ahead_make_the_same_run(
    folder: Path, tmp_path: Path, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through all stages, and from a checkpoint amid on."""
    from unmask.train import trainer
    from unmask.train.prefetch import Prefetch

    recipe = asked(folder, "mixture", train__stages=LENGTHS, checkpoint__every=5)
    train = lambda out, resume="never": pretrain(
        recipe, out=tmp_path / out, resume=resume, cache=folder / "cache", say=lambda _: None
    )
    train("plain")
    ahead: list[Prefetch] = []

    def deep(batches: Any, depth: int, asked: int = depth) -> Prefetch:
        assert depth == 0  # on a CPU
        ahead.append(Prefetch(batches, asked))
        return ahead[-1]

    monkeypatch.setattr(trainer, "Prefetch", deep)
    train("ahead")
    real = Optimizer.step

    def dying(self: Optimizer, share: float) -> None:
        if share == factor(12, 20, recipe.train) and len(ahead) == 2:
            raise KeyboardInterrupt
        real(self, share)

    monkeypatch.setattr(Optimizer, "step", dying)
    with pytest.raises(KeyboardInterrupt):
        train("cut")
    train("cut", "must")
    assert len(ahead) == 3 and all(p.pool is not None for p in ahead)
    for out in ("ahead", "cut"):
        assert toy.metrics(tmp_path / out) == toy.metrics(tmp_path / "plain")
        assert weights(tmp_path / out, 20) == weights(tmp_path / "plain", 20)


# ---------------------------------------------------------------- budgets, plans


def test_a_budget_counts_each_stage_by_its_length() -> None:
    train = TrainConfig(stages=({"share": 0.6}, {"share": 0.4}))

    def batches(step: int, progress: float) -> Any:
        total = round(step / progress) if step else 1000
        return [SimpleNamespace(counts=lambda: {"tokens": 10 if step >= train.begins(total)[1] else 5})]

    for steps in (10, 100, 1000, 12_345):
        found = steps_within(BudgetConfig(tokens=7 * steps), batches, lambda b: 0.0, train.begins)
        assert found is not None and abs(7 * found - 7 * steps) <= 7
        spent = sum(batches(s, s / found)[0].counts()["tokens"] for s in range(found))
        assert abs(spent - 7 * steps) <= 10
    assert mean_cost([0, 3, 3], 4, 2, lambda s: [1.0, 2.0, 3.0, 10.0][s]) == pytest.approx(0.75 * 1.5 + 0.25 * 10)


@pytest.mark.parametrize(("unit", "amount"), [("tokens", 6000), ("target_tokens", 1500), ("flops", 4e7)])
def test_a_run_in_stages_ends_near_its_budget(folder: Path, tmp_path: Path, unit: str, amount: float) -> None:
    budget = {"budget.steps": None, f"budget.{unit}": amount}
    recipe = asked(folder, train__stages=LENGTHS, **budget)
    own, _, stages = built(recipe, folder)
    said: list[str] = []
    run = pretrain(recipe, out=tmp_path / "run", cache=folder / "cache", say=said.append)
    found, c = plan(recipe, cache=folder / "cache"), run.counters
    assert found["steps"] == c.step
    assert [row["updates"] for row in found["stages"]] == np.diff([*own.train.begins(c.step), c.step]).tolist()
    assert [(r["context"], r["batch_size"]) for r in found["stages"]] == [(16, 16), (32, 8), (32, 3)]
    for name in ("tokens", "target_tokens", "flops"):
        assert found[name] == pytest.approx(getattr(c, name), rel=0.05), name
    dearest = max(_cost(own, stages, s, c.step, unit) for s in range(c.step))
    assert abs(getattr(c, unit) - amount) < 2 * dearest


def _cost(recipe: Recipe, stages: Stages, step: int, total: int, unit: str) -> float:
    flops = lambda b: batch_flops(recipe.model, b, recipe.objective)
    return sum(flops(b) if unit == "flops" else b.counts()[unit] for b in stages(step, step / total))


def test_a_plan_and_a_run_tell_their_stages(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {**TINY, **KINDS["masked"][1], "corpus.path": str(folder / "text.txt"), "corpus.document": "blank_line"}
    words = [f"{k}={v}" for k, v in settings.items()]
    stages = "train.stages=[{share: 0.4, context: 16, batch_size: 16}, {share: 0.6}]"
    command = ["pretrain", "encoder-small", *words, stages, f"cache={folder / 'cache'}"]
    told = CliRunner().invoke(app, [*command, "--plan"])
    assert told.exit_code == 0, told.output
    rows = [line.split() for line in told.stdout.splitlines()]
    assert ["8", "16", "16"] in [r[:3] for r in rows] and ["12", "32", "8"] in [r[:3] for r in rows]
    ran = CliRunner().invoke(app, [*command, f"out={tmp_path / 'run'}"])
    assert ran.exit_code == 0, ran.output
    said = ran.output + capsys.readouterr().err
    assert "stage 1 of 2, from update 1 on: context 16, 16 rows an update" in said
    assert "stage 2 of 2, from update 9 on: context 32, 8 rows an update" in said


# ---------------------------------------------------------------- compilations


def test_each_stage_may_compile_as_the_first_updates_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    torch._dynamo.reset()
    counted, counters, said = compiled.Compilations(), Counters(), []
    module = toy.nn.Identity()
    module.forward = lambda x: 2 * x  # type: ignore[method-assign]
    counted.compile(module)
    with torch._dynamo.config.patch(recompile_limit=64):  # torch's own bound is 8 for each function
        for update in range(20):
            if update == 10:
                assert counted.count == compiled.WARM + compiled.MOST
                counted.expect()
            x = torch.ones([1] * (update + 1))
            counted.counted(lambda x=x: module(x), counters, said.append)
    assert counters.compilations == 2 * (compiled.WARM + compiled.MOST) and len(said) == 2
    counted.close()
    torch._dynamo.reset()


def test_a_run_in_stages_compiles_a_few_times(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first updates of a stage compile at most what those of a run do; nothing is left uncompiled for that."""
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    found: list[int] = []
    said: list[str] = []
    for given in ([], [{"share": 0.5, "context": 16}, {"share": 0.5}]):
        torch._dynamo.reset()
        recipe = asked(folder, train__stages=given, compile=True, model__dropout=0, evaluation__every=0)
        run = pretrain(recipe, out=tmp_path / str(len(given)), cache=folder / "cache", say=said.append)
        found.append(run.counters.compilations)
    torch._dynamo.reset()
    assert 0 < found[0] <= found[1] <= 2 * found[0] + compiled.MOST
    assert not any("runs uncompiled" in sentence for sentence in said)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(("settings", "sentence"), [
    (["train.stages=[{share: 0.5}, {share: 0.4}]"], "the shares of stages make 0.9, and must make 1"),
    (["train.stages=[{share: 0.5, context: 64}, {share: 0.5}]"], "stage 1: its rows of context=64 go beyond those of "),
    (["train.stages=[{share: 0.5, context: 2}, {share: 0.5}]"], "train.stages.0.context=2 in recipe encoder-small"),
    (["train.stages=[{share: 0.5, length: 8}, {share: 0.5}]"], "unknown key 'train.stages.0.length'"),
    (
        [*PAIRS, "train.stages=[{share: 0.5, context: 6}, {share: 0.5}]"],
        "train.stages, stage 1: context=6 leaves no room for text under pairs",
    ),
    (["train.stages=[{share: 1.5}, {share: -0.5}]"], "train.stages.0.share=1.5"),
    (["train.stages=0.5"], "train.stages=0.5"),
    (["train.stages=[{share: 0.5}, {share: 0.5}]", "corpus.stream=true"], "drop train.stages or corpus.stream"),
    (["train.stages=[{share: 0.5}, {share: 0.5}]", "budget.minutes=1"], "with train.stages later ones take another"),
    (["train.stages=[{share: 0.01}, {share: 0.99}]"], "stage 1 of 2 would have no update in a run of 20"),
])  # fmt: skip
def test_what_cannot_be_is_one_sentence_and_exit_code_2(folder: Path, settings: list[str], sentence: str) -> None:
    words = [f"{k}={v}" for k, v in TINY.items() if "budget.minutes=1" not in settings or k != "budget.steps"]
    command = ["pretrain", "encoder-small", f"corpus={folder / 'text.txt'}", *words, *settings, f"out={folder / 'no'}"]
    told = CliRunner().invoke(app, command)
    assert isinstance(told.exception, UserError) and sentence in str(told.exception), told.output
    assert not (folder / "no" / "checkpoints").exists() and (gave_up(folder / "no") or not (folder / "no").exists())


def test_the_command_ends_with_code_2(folder: Path) -> None:
    command = [sys.executable, "-m", "unmask", "pretrain", "encoder-small", f"corpus={folder / 'text.txt'}"]
    words = ["train.stages=[{share: 0.5}]", "budget.steps=2", f"out={folder / 'no'}"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=100)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "must make 1" in done.stderr


def test_an_encoder_decoder_s_target_may_be_no_longer_either(folder: Path) -> None:
    stages = [{"share": 0.5, "context": 16, "target_context": 40}, {"share": 0.5}]
    with pytest.raises(UserError, match=r"stage 1: its rows of context=16 go beyond"):
        asked(folder, "spans", train__stages=stages)
    recipe = asked(folder, "spans", train__stages=[{"share": 0.5, "context": 16}, {"share": 0.5}])
    assert [recipe.shape(s).source for s in recipe.stages] == [16, 32]
    assert recipe.shape(recipe.stages[0]).stream < recipe.shape().stream


def test_a_ladder_and_a_comparison_by_minutes_want_one_stage(folder: Path, tmp_path: Path) -> None:
    recipe = asked(folder, train__stages=LENGTHS)
    with pytest.raises(UserError, match=r"one context and one batch size: leave train\.stages out"):
        sampled(recipe, folder / "cache", lambda _: None)
    study: Any = SimpleNamespace(entries={"a": recipe}, budget={"minutes": 1.0}, recipe=lambda name: recipe)
    with pytest.raises(UserError, match=r"entry a: budget\.minutes times the first updates"):
        planned(study, tmp_path, folder / "cache", lambda _: None, lambda: {})


def test_stages_stand_in_a_yaml_recipe(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    asked_for = asked(folder, train__stages=LENGTHS)
    file.write_text(json.dumps(asked_for.model_dump(mode="json")))
    assert load_recipe(file).train.stages == asked_for.train.stages
