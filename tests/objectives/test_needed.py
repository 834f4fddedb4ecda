"""What objectives need of a vocabulary and of a row: sentinels (against the noise itself, at every length), control
tokens, and room."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from unmask.batch import Rows
from unmask.config import TokenizerConfig
from unmask.errors import UserError
from unmask.objectives import (
    REGISTRY,
    UL2,
    Bart,
    Causal,
    CausallyMasked,
    FillInTheMiddle,
    Masked,
    SpanCorruption,
)
from unmask.objectives.base import Objective
from unmask.objectives.denoise import corrupt
from unmask.objectives.mixture import Mixture, Part
from unmask.objectives.needed import sentinels_needed
from unmask.objectives.rooms import no_room
from unmask.objectives.show import toy
from unmask.objectives.supervised import Supervised
from unmask.objectives.ul2 import Denoiser
from unmask.run import pretrain
from unmask.tokens.asked import controls_of, lacking, require_controls
from unmask.tokens.special import ROLES, Vocabulary, sentinel
from unmask.tokens.tokenizer import Tokenizer

from .suite import texts

CASES: dict[str, Objective] = {
    "t5": SpanCorruption.t5(),
    "t5-prefix": SpanCorruption.t5(layout="prefix"),
    "t5-code": SpanCorruption.t5_code(),
    "t5-code-causal": SpanCorruption.t5_code(layout="causal"),
    "heavy": SpanCorruption(noise_density=0.5, mean_span=1),
    "heavy-prefix": SpanCorruption(noise_density=0.5, mean_span=1, layout="prefix", final_sentinel=False),
    "dense": SpanCorruption(noise_density=0.9, mean_span=1),
    "dense-official": SpanCorruption(noise_density=0.9, mean_span=1, edges="official"),
    "ul2": UL2(),
    "ul2-prefix": UL2(layout="prefix"),
    "ul2-none": UL2.without_modes(final_sentinel=False),
    "ul2-one": UL2(denoisers=(Denoiser(mode="X", mean_span=1, noise_density=0.6), Denoiser(mode="S"))),
}
CONTEXTS = (16, 64, 257)


def words(sentinels: int) -> Vocabulary:
    """A vocabulary with so many sentinels."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[BOS]", "[EOS]", *(f"w{i}" for i in range(20))]
    names += [*(sentinel(k) for k in range(sentinels)), "[NLU]", "[S2S]", "[NLG]"]
    return Vocabulary.of({t: i for i, t in enumerate(names)}, range(len(names) - 3, len(names)))


def used(objective: Any, rows: Rows, vocabulary: Vocabulary) -> int:
    """The most different sentinels that one target of these texts holds."""
    target = objective.pairs(rows, vocabulary).target
    marks = np.isin(target.tokens, vocabulary.sentinels)
    owner = np.repeat(np.arange(len(target.start) - 1), np.diff(target.start))
    return int(np.bincount(owner[marks], minlength=1).max())


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", CASES)
def test_the_most_is_met_by_some_text_and_passed_by_none(name: str, context: int) -> None:
    """Every length that a row can have, and of mixtures of denoisers enough samples that each meets each of them."""
    objective = CASES[name]
    shape = objective.shape(context)
    longest, repeats = objective.room(shape), 60 if isinstance(objective, UL2) else 2
    lengths = np.repeat(np.arange(1, longest + 1), repeats)
    plenty = words(2 * longest + 2)
    rows = Rows.of([np.resize(plenty.ordinary, n) for n in lengths], index=np.arange(len(lengths)))
    needed = sentinels_needed(objective, shape)
    assert used(objective, rows, plenty) == needed
    enough, few = words(needed), words(needed - 1)
    objective.pairs(rows, enough)  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=f"needs {needed} sentinels but the tokenizer has {needed - 1}"):
        objective.pairs(rows, few)  # type: ignore[attr-defined]


def test_tokens_chosen_one_by_one_can_reach_the_most_and_never_pass_it() -> None:
    """No draw finds it at long lengths, so the noise is laid by hand: every second token."""
    objective, plenty = SpanCorruption.iid(noise_density=0.4), words(200)
    shape = objective.shape(100)
    n = objective.room(shape)
    needed = sentinels_needed(objective, shape)
    noise = np.zeros(n, bool)
    noise[: 2 * objective.counts(np.array([n]))[0][0] : 2] = True
    assert noise.sum() == objective.counts(np.array([n]))[0][0]
    rows = Rows.of([np.resize(plenty.ordinary, n)])
    assert int(np.isin(corrupt(rows, noise, True, plenty).target.tokens, plenty.sentinels).sum()) == needed
    many = Rows.of([np.resize(plenty.ordinary, k) for k in range(1, n + 1) for _ in range(20)])
    assert used(objective, many, plenty) < needed
    short = objective.shape(8)
    few = Rows.of([np.resize(plenty.ordinary, k) for k in range(1, objective.room(short) + 1) for _ in range(400)])
    assert used(objective, few, plenty) == sentinels_needed(objective, short)


@pytest.mark.parametrize(("objective", "needed"), [
    (Causal(), 0), (Masked(), 0), (Bart(), 0),
    (FillInTheMiddle(), 3), (FillInTheMiddle(end="sentinel"), 4),
    (CausallyMasked(), 16), (CausallyMasked.cm3(), 8), (CausallyMasked.incoder(), 9), (CausallyMasked(max_spans=2), 2),
])  # fmt: skip
def test_others_need_as_many_whatever_the_text(objective: Objective, needed: int) -> None:
    assert sentinels_needed(objective, objective.shape(512)) == needed
    if needed:
        rows = Rows.of([np.resize(toy().ordinary, 40)] * 50)
        objective(rows, words(needed))
        with pytest.raises(UserError, match=f"needs {needed} sentinels but the tokenizer has {needed - 1}"):
            objective(rows, words(needed - 1))


def test_a_mixture_needs_what_its_neediest_part_does_at_the_mixtures_room() -> None:
    """A part that leaves less room for text makes texts shorter for all."""
    heavy = SpanCorruption(noise_density=0.5, mean_span=1, layout="prefix")
    mixed = Mixture(
        parts={"t5": Part(objective=heavy), "cm3": Part(objective=CausallyMasked(max_spans=12, end_of_span=True))}
    )
    shape = mixed.shape(64)
    assert 0 < mixed.room(shape) < heavy.room(shape)
    most = heavy.counts(np.arange(1, mixed.room(shape) + 1))[1].max() + 1
    assert sentinels_needed(mixed, shape) == max(most, 13) < sentinels_needed(heavy, heavy.shape(64))


def test_a_run_hears_of_it_before_its_text_is_prepared(tmp_path: Path) -> None:
    """The corpus is not even there: what is said is about sentinels."""
    settings: Any = {
        "corpus": str(tmp_path / "none.txt"),
        "context": 1024,
        "model__max_position": 1024,
        "objective": {"type": "ul2"},
        "tokenizer__extra": ["[NLU]", "[S2S]", "[NLG]"],
    }
    with pytest.raises(UserError) as caught:
        pretrain("encdec-small", out=tmp_path / "run", **settings)
    said = (
        "objective ul2 at context=1024 needs up to 171 sentinels and the tokenizer has 100: set tokenizer.sentinels=171"
    )
    assert str(caught.value).startswith(said)
    with pytest.raises(UserError, match=r"none\.txt"):
        pretrain("encdec-small", out=tmp_path / "run", tokenizer__sentinels=171, **settings)
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_that_is_there_is_asked_too(tmp_path: Path) -> None:
    own = Tokenizer.train(TokenizerConfig(type="byte", vocab_size=300, sentinels=20), ["the cat sat"])
    own.save(tmp_path / "tokenizer.json")
    settings: Any = {"corpus": str(tmp_path / "none.txt"), "tokenizer__file": str(tmp_path / "tokenizer.json")}
    with pytest.raises(
        UserError, match=r"up to 29 sentinels and the tokenizer has 20: take one trained with tokenizer\.s"
    ):
        pretrain("encdec-small", out=tmp_path / "run", context=512, model__max_position=512, **settings)
    with pytest.raises(UserError, match=r"none\.txt"):
        pretrain("encdec-small", out=tmp_path / "run", context=256, model__max_position=256, **settings)


# ---------------------------------------------------------------- control tokens


MODES = ["[NLU]", "[S2S]", "[NLG]"]


def test_every_missing_control_token_is_named_at_once_before_the_text_is_prepared(tmp_path: Path) -> None:
    """Following the advice is enough: it holds what was set already."""
    settings: Any = {"corpus": str(tmp_path / "none.txt"), "objective": {"preset": "ul2"}}
    for extra in ([], ["[NLU]"], ["[S2S]", "[MINE]"]):
        with pytest.raises(UserError, match=r"objective ul2 needs .*control token") as caught:
            pretrain("encdec-small", out=tmp_path / "run", tokenizer__extra=extra, **settings)
        advised = yaml.safe_load(str(caught.value).rpartition("tokenizer.extra=")[2])
        assert set(advised) == {*extra, *MODES} and advised[: len(extra)] == extra
        with pytest.raises(UserError, match=r"none\.txt"):
            pretrain("encdec-small", out=tmp_path / "run", tokenizer__extra=advised, **settings)
    parts = {"clm": {"type": "causal", "mode": "[CLM]"}, "mlm": {"type": "masked", "mode": "[MLM]"}}
    with pytest.raises(UserError, match=r"tokenizer\.extra=\['\[CLM\]','\[MLM\]'\]$"):
        settings["objective"] = {"type": "mixture", "parts": parts}
        pretrain("encoder-small", out=tmp_path / "run", model__family="unmask", **settings)


def test_a_given_tokenizer_is_told_all_that_it_lacks(tmp_path: Path) -> None:
    own = Tokenizer.train(TokenizerConfig(type="byte", vocab_size=300, sentinels=0), ["the cat sat"])
    own.save(tmp_path / "tokenizer.json")
    spec = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(spec.replace("[MASK]", "[ODD]").replace("[SEP]", "[ODD2]"))
    file = str(tmp_path / "tokenizer.json")
    settings: Any = {"corpus": str(tmp_path / "none.txt"), "tokenizer__file": file}
    parts = {"mlm": {"type": "masked", "mode": "[MLM]"}, "clm": {"type": "causal", "mode": "[CLM]"}}
    with pytest.raises(UserError) as caught:
        more: Any = {"objective": {"type": "mixture", "parts": parts}, "model__family": "unmask"}
        pretrain("encoder-small", out=tmp_path / "run", **settings, **more)
    said = str(caught.value)
    assert said.startswith(f"the tokenizer of {file} has no mask and no [MLM] and no [CLM] token, which objective mix")
    assert "tokenizer.extra=['[MLM]','[CLM]']" in said and "[MASK], [MLM], [CLM]" in said
    words = Tokenizer.load(file)
    assert lacking(Masked(), words.vocabulary) == ("mask",) and lacking(Causal(), words.vocabulary) == ()
    with pytest.raises(UserError, match=r"unmask convert M NEW --add-token '\[MASK\]', and take NEW"):
        require_controls(Masked(), words.vocabulary, words, "M", "M")


@pytest.mark.parametrize("name", [*REGISTRY.own_types, *REGISTRY.own_presets])
def test_what_is_asked_for_is_what_every_text_needs(name: str) -> None:
    """A vocabulary of just these control tokens serves real texts, too: nothing more is asked for later."""
    objective = REGISTRY.make(name)
    asked = controls_of(objective)
    table = [*(ROLES.get(a, a) for a in asked), *(f"w{k}" for k in range(110)), *map(sentinel, range(64))]
    own = Vocabulary.of({t: k for k, t in enumerate(table)}, [k for k, a in enumerate(asked) if a not in ROLES])
    assert not lacking(objective, own)
    found = texts(objective, [1, 2, 3, 5, 8, 13, 21, 34, 55] * 4)
    for progress in (0.0, 0.99):
        objective(replace(found, progress=progress), own)
    assert set(lacking(objective, Vocabulary.of({"w": 0}))) == set(asked)


# ---------------------------------------------------------------- room


def test_a_row_without_room_says_what_takes_it_and_what_to_set() -> None:
    """The advice is exact: with it there is room, and with one token less there is none."""
    pairs, causal = Supervised(), Supervised(layout="prefix", max_target=40)
    said = no_room(pairs, pairs.shape(64))
    assert said.startswith("context=64 leaves no room for text under pairs, beside the target of up to max_target=128 ")
    for objective, context in ((pairs, 64), (causal, 32), (Bart(), 1), (Masked(), 2)):
        told = no_room(objective, objective.shape(context))
        least = int(re.search(r"raise context to at least (\d+)", told)[1])  # type: ignore[index]
        assert objective.room(objective.shape(least)) > 0 == objective.room(objective.shape(least - 1))
    least = int(re.search(r"set target_context to at least (\d+)", said)[1])  # type: ignore[index]
    assert pairs.room(pairs.shape(64, least)) > 0 == pairs.room(pairs.shape(64, least - 1))
    mixed = Mixture(parts={"clm": Part(objective=Causal()), "qa": Part(objective=causal, mode="[QA]")})
    told = no_room(mixed, mixed.shape(32))
    assert "under part qa (pairs), beside the target of up to max_target=40 tokens and the mode token [QA]" in told
    assert told.endswith("or lower objective.parts.qa.max_target") and "clm" not in told
