"""Whole runs of replaced-token objectives: both networks are reported, resumed, loaded and exported."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import unmask
from unmask.cli import app
from unmask.errors import UserError
from unmask.run import pretrain, resume_run

TINY: dict[str, Any] = {
    "objective.type": "replaced",
    "tokenizer.type": "byte",
    "model.hidden_size": 16,
    "model.num_layers": 1,
    "model.num_heads": 2,
    "context": 32,
    "train.batch_size": 4,
    "train.grad_accumulation": 2,
    "evaluation.pieces": 8,
    "budget.steps": 4,
}
ELECTRA = {
    "model.preset": "electra-small-discriminator",
    "model.hidden_size": 32,
    "model.embedding_size": 16,
    "model.num_layers": 2,
    "model.num_heads": 2,
    "model.intermediate_size": 64,
    "model.max_position": 32,
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "ran", "far", "away", "from", "here"]
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(" ".join(rng.choice(words, 40)) + "." for _ in range(60)))
    return file


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("sharing", ["none", "embeddings", "gdes"])
def test_a_run_resumes_bit_for_bit(sharing: str, tmp_path: Path, text: Path) -> None:
    own = {**TINY, "objective.sharing": sharing, "evaluation.every": 2, "checkpoint.every": 2}
    for name in ("whole", "cut"):
        pretrain("encoder-small", out=tmp_path / name, cache=tmp_path / "cache", corpus=str(text), **own)
    cut = tmp_path / "cut"
    for path in (cut / "checkpoints" / "step-4").iterdir():
        path.unlink()
    (cut / "checkpoints" / "step-4").rmdir()
    resume_run(cut, cache=tmp_path / "cache")
    a, b = ((tmp_path / n / "checkpoints/step-4/model.safetensors").read_bytes() for n in ("whole", "cut"))
    assert a == b
    for x, y in zip(lines(tmp_path / "whole"), lines(cut), strict=True):
        assert {k: v for k, v in x.items() if k != "seconds"} == {k: v for k, v in y.items() if k != "seconds"}


def test_a_run_reports_both_networks(tmp_path: Path, text: Path) -> None:
    said: list[str] = []
    own = {**TINY, "train.learning_rate": 1e-9, "train.muon_learning_rate": 1e-9}
    run = pretrain(
        "encoder-small", out=tmp_path / "run", cache=tmp_path / "cache", corpus=str(text), say=said.append, **own
    )
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    lms = {name: unmask.load(tmp_path / "run", network=name) for name in ("model", "generator")}
    counts = {name: sum(p.numel() for p in lm.network.parameters()) for name, lm in lms.items()}
    assert result["networks"] == counts and result["parameters"] == run.parameters == counts["model"]
    assert any(f"{counts['model']:,} (model) and {counts['generator']:,} (generator) parameters" in s for s in said)
    terms = result["held_out_terms"]
    assert set(terms) == {"lm", "rtd", "accuracy", "always_original", "generator_accuracy", "replaced"}
    assert result["held_out_loss"] == pytest.approx(terms["rtd"], rel=1e-5) and terms["lm"] > 4 > terms["rtd"]
    assert result["held_out_accuracy"] is None and result["held_out_unigram_floor"] is None
    assert not any("unigram floor" in sentence for sentence in said)  # it is the generator's at best
    assert 0.5 < terms["always_original"] < 1
    last = [line for line in lines(tmp_path / "run") if "terms" in line][-1]["terms"]
    assert set(last) == {f"replaced/{name}" for name in terms}


@pytest.mark.parametrize("task", ["detection", "recovery", "all_tokens"])
def test_the_best_checkpoint_is_that_of_the_network_that_is_kept(task: str, tmp_path: Path, text: Path) -> None:
    """Rates so high that the two networks come apart: what is chosen follows the kept one's own term."""
    own = {**TINY, "objective.task": task, "evaluation.every": 1, "checkpoint.every": 1, "budget.steps": 6}
    own |= {"objective.coefficient": 1.0, "train.learning_rate": 0.05, "train.muon_learning_rate": 0.2}
    run = pretrain("encoder-small", out=tmp_path / "run", cache=tmp_path / "cache", corpus=str(text), **own)
    seen = {x["step"]: x["evaluation"] for x in lines(tmp_path / "run") if "evaluation" in x}
    term = "term_rtd" if task == "detection" else "term_recovery"
    assert all(found["loss"] == found[term] and "unigram_floor" not in found for found in seen.values())
    assert run.counters.best_step == min(seen, key=lambda step: seen[step][term])
    assert run.held_out.loss == run.held_out.terms[term.removeprefix("term_")]


def test_figures_at_the_baseline_are_warned_of(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A coefficient of 0 leaves the discriminator as it started: it detects nothing, and the run says so."""
    own = {**TINY, "objective.coefficient": 0.0, "train.learning_rate": 1e-9, "train.muon_learning_rate": 1e-9}
    pretrain("encoder-small", out=tmp_path / "run", cache=tmp_path / "cache", corpus=str(text), **own)
    assert "it detects nothing yet" in capsys.readouterr().err


def test_a_run_gives_the_discriminator_and_its_generator(tmp_path: Path, text: Path) -> None:
    run = tmp_path / "run"
    pretrain("encoder-small", out=run, cache=tmp_path / "cache", corpus=str(text), **TINY)
    model, generator = unmask.load(run), unmask.load(run, network="generator")
    assert list(model.network.heads) == ["rtd"] and list(generator.network.heads) == ["lm"]
    assert not model.can("fill") and generator.can("fill")
    assert len(generator.fill("the cat [MASK] on").masks[0]) == 5
    assert generator.score("the cat sat")[0].logprob < 0
    with pytest.raises(UserError, match=r"heads: rtd\) says no tokens, .*unmask.load\(run, network="):
        model.score("the cat sat")
    with pytest.raises(UserError, match=r"has no network 'generater' .*did you mean 'generator'"):
        unmask.load(run, network="generater")
    assert model.logits(model.tokenizer.encode("the cat")[None]).shape == (1, 7)  # type: ignore[union-attr]


@pytest.mark.parametrize("sharing", ["embeddings", "gdes"])
def test_electra_runs_export_to_the_stock_classes(sharing: str, tmp_path: Path, text: Path) -> None:
    from transformers import AutoModelForMaskedLM, ElectraForPreTraining

    own = {k: v for k, v in TINY.items() if not k.startswith("model.")} | ELECTRA | {"objective.sharing": sharing}
    if sharing == "gdes":
        own["objective.generator_width"] = 1.0
    run = tmp_path / "run"
    pretrain("encoder-small", out=run, cache=tmp_path / "cache", corpus=str(text), **own)
    model, generator = unmask.load(run), unmask.load(run, network="generator")
    assert model.export(tmp_path / "model")["left_out"] == [] == generator.export(tmp_path / "generator")["left_out"]
    stock = ElectraForPreTraining.from_pretrained(tmp_path / "model").eval()
    ids = torch.randint(5, 250, (2, 20))
    with torch.no_grad():
        assert torch.allclose(stock(input_ids=ids).logits, model.logits(ids), atol=1e-5)
    masked = AutoModelForMaskedLM.from_pretrained(tmp_path / "generator").eval()
    assert type(masked).__name__ == "ElectraForMaskedLM"
    with torch.no_grad():
        assert torch.allclose(masked(input_ids=ids).logits, generator.logits(ids), atol=1e-5)
    again = unmask.load(tmp_path / "model")
    assert torch.allclose(again.logits(ids), model.logits(ids), atol=1e-6)


@pytest.mark.parametrize("sharing", ["embeddings", "gdes"])
def test_a_run_starts_from_a_discriminator(sharing: str, tmp_path: Path, text: Path) -> None:
    place = {"cache": tmp_path / "cache", "corpus": str(text)}
    pretrain("encoder-small", out=tmp_path / "a", **place, **{**TINY, "objective.sharing": sharing})
    own = {k: v for k, v in TINY.items() if not k.startswith(("model.", "tokenizer."))}
    own |= {"objective.sharing": sharing, "train.learning_rate": 1e-12, "train.muon_learning_rate": 1e-12}
    pretrain("encoder-small", out=tmp_path / "b", init=str(tmp_path / "a"), **place, **own)
    a, b = unmask.load(tmp_path / "a").network.state_dict(), unmask.load(tmp_path / "b").network.state_dict()
    assert a.keys() == b.keys() and all(torch.allclose(a[k], b[k], atol=1e-6) for k in a)


@pytest.mark.parametrize("sharing", ["none", "embeddings", "gdes"])
def test_both_networks_start_from_those_of_a_run(sharing: str, tmp_path: Path, text: Path) -> None:
    place = {"cache": tmp_path / "cache", "corpus": str(text)}
    pretrain("encoder-small", out=tmp_path / "a", **place, **{**TINY, "objective.sharing": sharing})
    still = {k: v for k, v in TINY.items() if not k.startswith(("model.", "tokenizer."))}
    still |= {"train.learning_rate": 1e-12, "train.muon_learning_rate": 1e-12, "seed": 5}
    said: list[str] = []
    own = {**still, "objective.sharing": sharing}
    pretrain("encoder-small", out=tmp_path / "b", init=str(tmp_path / "a"), say=said.append, **place, **own)
    for network in ("model", "generator"):
        a, b = (unmask.load(tmp_path / n, network=network).network.state_dict() for n in "ab")
        assert a.keys() == b.keys() and all(torch.allclose(a[k], b[k], atol=1e-6) for k in a), network
    assert any(f"init={tmp_path / 'a'}: generator: " in s and "100% of the body" in s for s in said)
    report = json.loads((tmp_path / "b" / "init.json").read_text())
    assert report["others"]["generator"]["new"] == [] and "heads.lm.bias" not in report["unused"]

    said.clear()
    own |= {"objective.generator_width": 0.5}
    pretrain("encoder-small", out=tmp_path / "c", init=str(tmp_path / "a"), say=said.append, **place, **own)
    assert any("generator: from the recipe's seed: " in s and "they are different models" in s for s in said)
    a, c = (unmask.load(tmp_path / n).network.state_dict() for n in "ac")
    assert all(torch.allclose(a[k], c[k], atol=1e-6) for k in a)


def test_a_generator_that_no_one_has_starts_from_the_seed_and_this_is_said(tmp_path: Path, text: Path) -> None:
    place = {"cache": tmp_path / "cache", "corpus": str(text)}
    pretrain("encoder-small", out=tmp_path / "a", **place, **{**TINY, "objective.type": "masked"})
    own = {k: v for k, v in TINY.items() if not k.startswith(("model.", "tokenizer."))}
    said: list[str] = []
    pretrain("encoder-small", out=tmp_path / "b", init=str(tmp_path / "a"), say=said.append, **place, **own)
    assert any("generator: from the recipe's seed: " in s and "holds no network of this name" in s for s in said)
    assert "from the recipe's seed" in json.loads((tmp_path / "b" / "init.json").read_text())["others"]["generator"]


def test_a_model_that_restores_replaced_tokens_is_asked_nothing_about_masks(tmp_path: Path, text: Path) -> None:
    """Replace MLM: it has a head over the vocabulary, and never saw [MASK]. Its generator did."""
    own = {**TINY, "objective.task": "recovery", "objective.coefficient": 1.0}
    pretrain("encoder-small", out=tmp_path / "run", cache=tmp_path / "cache", corpus=str(text), **own)
    model, generator = (unmask.load(tmp_path / "run", network=n) for n in ("model", "generator"))
    asked: tuple[Any, ...] = ("score", "fill", "generate")
    assert not any(model.can(what) for what in asked) and all(generator.can(what) for what in asked)
    model.export(tmp_path / "hf")
    exported = unmask.load(tmp_path / "hf")  # its files name the head as any language model's
    says = r"heads: recovery\) restores texts that hold no \[MASK\], .*network='generator'\), .*--network generator"
    for m in (model, exported):
        for ask in (partial(m.fill, "a [MASK]"), partial(m.score, "a cat"), partial(m.generate, "a")):
            with pytest.raises(UserError, match=says):
                ask()
    assert model.logits([[40, 41]]).shape == (1, 2, model.config.vocab_size)


def test_the_command_line_asks_the_network_that_is_named(tmp_path: Path, text: Path) -> None:
    run = str(tmp_path / "run")
    pretrain("encoder-small", out=run, cache=tmp_path / "cache", corpus=str(text), **TINY)
    runner, generator = CliRunner(), unmask.load(run, network="generator")
    named = ["--network", "generator", "--json"]
    scored = runner.invoke(app, ["score", run, "the cat sat", *named], catch_exceptions=False)
    assert json.loads(scored.stdout)["logprob"] == pytest.approx(generator.score("the cat sat")[0].logprob)
    filled = runner.invoke(app, ["fill", run, "the [MASK] sat", *named], catch_exceptions=False)
    assert json.loads(filled.stdout)["text"] == generator.fill("the [MASK] sat").text
    written = runner.invoke(app, ["generate", run, "the", "--length", "4", *named], catch_exceptions=False)
    assert json.loads(written.stdout)["text"] == generator.generate("the", length=4)[0]
    bits = runner.invoke(app, ["evaluate", run, str(text), "--limit", "8", *named], catch_exceptions=False)
    assert "pseudo" in json.loads(bits.stdout)["event"]
    with pytest.raises(UserError, match=r"network='generator'\), on the command line --network generator"):
        runner.invoke(app, ["score", run, "the cat sat"], catch_exceptions=False)


def test_a_run_that_predicts_no_tokens_ends_with_its_terms(tmp_path: Path, text: Path) -> None:
    own = {k: v for k, v in TINY.items() if not k.startswith("objective")} | {
        "objective.type": "contrastive",
        "corpus.sentences": True,
    }
    run = pretrain("encoder-small", out=tmp_path / "run", cache=tmp_path / "cache", **{"corpus.path": str(text), **own})
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    terms = result["held_out_terms"]
    assert set(terms) == {"query", "passage"} and result["held_out_unigram_floor"] is None
    assert run.held_out.loss == pytest.approx((terms["query"] + terms["passage"]) / 2)


def test_o17_the_loss_is_that_of_both(tmp_path: Path, text: Path) -> None:
    pretrain("encoder-small", out=tmp_path / "run", cache=tmp_path / "cache", corpus=str(text), **TINY)
    updates = [line for line in lines(tmp_path / "run") if "loss" in line]
    assert len(updates) == 4
    for line in updates:
        found = line["terms"]
        assert line["loss"] == pytest.approx(found["replaced/lm"] + 50 * found["replaced/rtd"], rel=1e-6)
