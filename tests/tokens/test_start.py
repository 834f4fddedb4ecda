"""A vocabulary without a start token, as T5's: its pad starts what a second stack writes: in show, runs and exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from unmask.errors import UserError
from unmask.loading import load
from unmask.objectives import Causal, PrefixLM, SpanCorruption
from unmask.objectives.base import Objective
from unmask.run import pretrain, resume_run, stored_recipe
from unmask.show import show
from unmask.show.density import densities
from unmask.tokens.special import Vocabulary
from unmask.tokens.start import started
from unmask.tokens.tokenizer import Tokenizer

TEXT = "the cat sat on the mat and the dog lay on the rug . "
TINY: dict[str, Any] = {
    "model.hidden_size": 16,
    "model.num_layers": 1,
    "model.num_source_layers": 1,
    "model.num_heads": 2,
    "context": 32,
    "train.batch_size": 4,
    "budget.steps": 2,
    "checkpoint.every": 1,
}


@pytest.fixture
def t5(tmp_path: Path) -> Path:
    """A tokenizer with T5's control tokens, and no others."""
    pieces = [
        "<pad>",
        "</s>",
        "<unk>",
        "▁",
        *(f"▁{w}" for w in sorted(set(TEXT.split()))),
        *"abcdefghijklmnopqrstuvwxyz.",
    ]
    library = Library(models.Unigram([(p, -float(k)) for k, p in enumerate(pieces)], unk_id=2))
    library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    library.add_special_tokens(["<pad>", "</s>", "<unk>", *(f"<extra_id_{k}>" for k in range(20))])
    library.save(str(tmp_path / "t5.json"))
    return tmp_path / "t5.json"


@pytest.mark.parametrize(
    ("objective", "bos"),
    [(SpanCorruption(), 0), (PrefixLM(layout="encdec"), 0), (SpanCorruption(layout="prefix"), None), (Causal(), None)],
)
def test_pad_starts_what_a_second_stack_writes_and_nothing_else(objective: Objective, bos: int | None) -> None:
    words = Vocabulary.of({"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3, "<extra_id_0>": 4})
    assert started(objective, words).bos == bos
    own = Vocabulary.of({"[PAD]": 0, "[BOS]": 1, "a": 2})
    assert started(objective, own) is own


def test_show_starts_as_t5_does(t5: Path) -> None:
    words = Tokenizer.load(t5)
    shown = show("t5", TEXT.strip(), tokenizer=words)
    assert shown.records[0]["pieces"][0] == "<pad>" and shown.lines()
    (t5.parent / "text.txt").write_text(TEXT * 40)
    (row,) = densities(str(t5.parent / "text.txt"), "t5", words, 32, layout="encdec")
    assert "refused" not in row
    with pytest.raises(UserError, match="no bos token"):
        show("causal", TEXT, tokenizer=words)


def test_a_run_starts_so_and_all_that_follows_it(t5: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n\n".join(TEXT * (3 + k) for k in range(60)))
    given = {**TINY, "corpus": "text.txt", "corpus.document": "blank_line", "tokenizer.file": str(t5)}
    given["objective.preset"] = "t5"
    pretrain("encdec-small", out="run", cache="cache", say=lambda text: None, **given)
    assert stored_recipe(Path("run")).start == 0
    pretrain("encdec-small", out="run", cache="cache", resume="auto", say=lambda text: None, **given)  # the same run
    resume_run("run", "cache")
    lm = load("run", device="cpu")
    asked = lm.score("the cat", plan="decoder")[0]
    assert lm.vocabulary.bos == 0 and "<pad> <extra_id_0>" in asked.event
    assert lm.export("hf")["difference"] < 1e-4
    assert json.loads(Path("hf/config.json").read_text())["decoder_start_token_id"] == 0
    again = load("hf", device="cpu").score("the cat", plan="decoder")[0]
    assert again.each == pytest.approx(asked.each, rel=1e-4) and again.event == asked.event
    with pytest.raises(UserError, match="no bos token, which objective causal needs"):
        pretrain("decoder-small", out="other", cache="cache", corpus="text.txt", **{"tokenizer.file": str(t5)})
