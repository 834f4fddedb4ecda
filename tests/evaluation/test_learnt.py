"""A head over classes that has learnt nothing is told of once, with its numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unmask.evaluation.learnt import Classes, unlearnt
from unmask.run import pretrain

BAD = {"nsp_accuracy": 0.5, "nsp_majority": 0.53}
GOOD = {"nsp_accuracy": 0.8, "nsp_majority": 0.53}


@pytest.mark.parametrize(("measured", "due"), [
    ([BAD, BAD, BAD, BAD], [2]),  # twice in a row, said once
    ([BAD, GOOD, BAD, GOOD], []),
    ([GOOD, GOOD, BAD, BAD], [3]),
    ([{}, {"lm": 2.0}, {}, {}], []),
])  # fmt: skip
def test_at_the_second_measurement_in_a_row(measured: list[dict[str, float]], due: list[int]) -> None:
    watch = Classes(warmup=1)
    assert [i for i, terms in enumerate(measured) if watch(i, terms)] == due


def test_at_the_last_measurement_unless_it_was_said() -> None:
    assert len(Classes(warmup=100)(5, BAD, last=True)) == 1
    watch = Classes(warmup=0)
    assert [len(watch(step, BAD, last=step == 3)) for step in (1, 2, 3)] == [0, 1, 0]


def test_heads_of_a_mixture_and_of_electra_are_told_apart() -> None:
    terms = {f"rtd.{k}": v for k, v in electra(0.80).items()} | {"pairs.nsp_accuracy": 0.4, "pairs.nsp_majority": 0.5}
    found = unlearnt(terms)
    assert set(found) == {"rtd.detection", "pairs.nsp"} and "it detects nothing yet" in found["rtd.detection"]
    assert "head pairs.nsp is right at 0.400 of its held-out targets" in found["pairs.nsp"]
    assert set(unlearnt(electra(0.80))) == {"detection"} and unlearnt(electra(0.95)) == {}


def electra(accuracy: float) -> dict[str, float]:
    return {"accuracy": accuracy, "always_original": 0.85, "replaced": 0.5, "generator_accuracy": 0.3}


def test_targets_of_one_class_are_no_question() -> None:
    (told,) = unlearnt({"nsp_accuracy": 1.0, "nsp_majority": 1.0}).values()
    assert "all held-out targets of head nsp are of one class" in told


def test_a_run_of_sentence_pairs_says_so_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At a rate that moves nothing the head guesses, at every evaluation."""
    rng = np.random.default_rng(0)
    words = ["sea", "ship", "sail", "port", "oven", "bread", "salt", "flour", "star", "moon", "sky", "night"]
    line = lambda: ". ".join(" ".join(rng.choice(words, 4)) for _ in range(6)) + "."
    (tmp_path / "text.txt").write_text("\n\n".join(line() for _ in range(150)))
    own = {
        "corpus": {"path": str(tmp_path / "text.txt"), "document": "blank_line", "sentences": True},
        "objective": {"type": "next_sentence"},
        "tokenizer": {"type": "word", "vocab_size": 200},
        "model": {"preset": "bert-base", "hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32},
        "train": {"batch_size": 8, "warmup_steps": 1, "learning_rate": 1e-8, "optimizer": "adamw"},
        "evaluation": {"every": 2, "pieces": 64},
        "context": 48,
        "budget": {"steps": 8},
        "device": "cpu",
    }
    pretrain("encoder-small", out=tmp_path / "run", cache=tmp_path / "cache", **own)
    (told,) = [text for text in capsys.readouterr().err.splitlines() if "nothing beyond how common" in text]
    assert "head nsp is right at" in told
