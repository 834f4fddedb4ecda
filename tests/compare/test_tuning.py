"""Tuning: the same trials for all, what is chosen, and what is marked."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from unmask.compare.job import Spec, work
from unmask.compare.lengths import shortened
from unmask.compare.page.record import ALONG, flattened
from unmask.compare.settings import Tune, written_out
from unmask.compare.tuning import chosen, factors, scaled, trial
from unmask.errors import UserError
from unmask.recipe import Recipe, load_recipe

TUNE = Tune(count=4, share=0.25, seed=1000)


def recipe(corpus: str = "text.txt", **more: object) -> Recipe:
    return load_recipe("decoder-small", {"corpus": corpus, "train.warmup_steps": 40, **more})


def results(*losses: float | None, falling: bool = False) -> list[dict[str, object]]:
    return [{"loss": loss, "falling": falling, "flops": 10.0, "seconds": 2.0} for loss in losses]


def test_a_trial_is_a_run_in_small_with_both_rates_scaled() -> None:
    tried = [shortened(trial(recipe(), TUNE, f), 400, TUNE.share, 1)[0] for f in factors(4)]
    assert [t.train.learning_rate for t in tried] == [1.5e-3, 3e-3, 6e-3, 12e-3]
    assert [t.train.muon_learning_rate for t in tried] == [0.01, 0.02, 0.04, 0.08]
    assert {(t.budget.steps, t.train.warmup_steps, t.seed) for t in tried} == {(100, 10, 1000)}


def test_the_page_knows_all_settings_that_are_tuned() -> None:
    plain, twice = (flattened(scaled(recipe().train, f).model_dump(mode="json"), "train.") for f in (1.0, 2.0))
    changed = {name for name in plain if plain[name] != twice[name]}
    assert changed == {TUNE.setting, ALONG[TUNE.setting]}


def test_the_least_loss_is_chosen_and_its_cost_is_that_of_all_trials() -> None:
    factor, record = chosen("gpt", recipe(), TUNE, results(2.2, 2.0, 2.1, None, falling=True))
    assert factor == 1.0 and record.chosen == 3e-3 and record.losses == [2.2, 2.0, 2.1, None]
    assert not record.edge and record.falling and (record.flops, record.seconds, record.seed) == (40.0, 8.0, 1000)
    factor, record = chosen("gpt", recipe(), TUNE, results(2.2, 2.1, 2.0, 1.9))
    assert factor == 4.0 and record.edge and not record.falling
    with pytest.raises(UserError, match="every learning rate tried for gpt diverged"):
        chosen("gpt", recipe(), TUNE, results(None, None, None, None))


def test_a_trial_that_diverges_has_no_loss(tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text("\n".join(f"line {k} of a text about the number {k * k}." for k in range(300)))
    small = {"model.hidden_size": 16, "model.num_heads": 2, "model.num_layers": 1, "context": 32}
    text = {"corpus.document": "line", "corpus.valid_fraction": 0.2, "tokenizer.type": "char"}
    given = recipe(str(corpus), **small, **text, **{"train.batch_size": 4, "budget.steps": 12})
    wild = given.model_copy(
        update={
            "train": given.train.model_copy(update={"learning_rate": 1e38, "optimizer": "adamw", "warmup_steps": 0})
        }
    )
    found = work(Spec("trial", written_out(wild), "a", str(tmp_path / "cache")), tmp_path)
    assert found["loss"] is None and "is at fault: its loss is nan" in found["said"] and found["flops"] > 0
    kept = work(Spec("trial", written_out(given), "b", str(tmp_path / "cache")), tmp_path)
    assert math.isfinite(kept["loss"]) and kept["flops"] > found["flops"] and kept["seconds"] > 0
    with pytest.raises(UserError, match="is at fault: its loss is nan"):  # of a run it is an error
        work(Spec("run", written_out(wild), "c", str(tmp_path / "cache")), tmp_path)
