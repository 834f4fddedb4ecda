"""Mode tokens in front of the texts of a mixture's parts: seen by all of a text, asked by nobody, counted."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.batch import Rows, visible
from unmask.data.loader import Loader
from unmask.errors import UserError
from unmask.objectives import (
    GLM,
    UL2,
    Causal,
    Masked,
    MultiToken,
    Permutation,
    PrefixLM,
    ShiftedMasked,
    SpanCorruption,
)
from unmask.objectives.base import Objective, Shape, outline
from unmask.objectives.dealing import picked
from unmask.objectives.layout import Layout
from unmask.objectives.mixture import Part
from unmask.objectives.show import Toy

from .test_mixture import FIELDS, MODE, VOCABULARY, corpus, mixture, texts

TOLD: dict[str, Objective] = {
    "masked": Masked(),
    "causal": Causal(),
    "shifted": ShiftedMasked(causal_share=0.5),
    "prefix": PrefixLM(),
    "spans": SpanCorruption(),
    "spans-prefix": SpanCorruption(layout=Layout(kind="prefix")),
    "spans-causal": SpanCorruption(layout=Layout(kind="causal")),
    "glm": GLM(),
    "permutation": Permutation(),
    "multi": MultiToken(),
}


@pytest.mark.parametrize("name", TOLD)
def test_a_mode_token_stands_before_the_text_and_is_seen_by_all_of_it(name: str) -> None:
    objective, mode = TOLD[name], VOCABULARY.need(MODE)
    part = Part(objective=objective, mode=MODE)
    shape = objective.shape(48)
    rows = texts([7, 1, min(20, part.room(shape)), 0, 2, 3, 12, 5], 1)
    bare, told = objective(rows, VOCABULARY), part(rows, VOCABULARY)
    sizes = part.sizes(outline(rows))
    with_mode = told.source or told.stream
    without = bare.source or bare.stream
    assert np.array_equal(np.diff(told.stream.start), sizes.stream)
    assert told.source is None or np.array_equal(np.diff(told.source.start), sizes.source)
    for r in range(8):
        a, b = slice(*without.start[r : r + 2]), slice(*with_mode.start[r : r + 2])
        old, new = without.tokens[a].tolist(), with_mode.tokens[b].tolist()
        if not old:
            assert not new
            continue
        at = int(old[0] == VOCABULARY.need("bos"))
        assert new == [*old[:at], mode, *old[at:]]
        pick = {k: getattr(with_mode, k)[b] for k in FIELDS}
        assert (pick["horizon"] <= pick["reveal"]).all()
        sees = visible(pick["block"], pick["horizon"], pick["block"], pick["reveal"])
        assert sees[:, at][at:].all()
        before = {k: getattr(without, k)[a] for k in FIELDS}
        saw = visible(before["block"], before["horizon"], before["block"], before["reveal"])
        kept = [i for i in range(len(new)) if i != at]
        assert np.array_equal(sees[np.ix_(kept, kept)], saw)  # the rest sees what it saw
        steps = np.diff(before["positions"])
        assert np.array_equal(np.diff(pick["positions"][at:])[1:], steps[at:])
    for head, t in bare.targets.items():
        new = told.targets[head]
        assert np.array_equal(t.value, new.value) and np.array_equal(t.weight, new.weight)
        if told.source is None:  # a target that was read at the opening is read at the mode, else where it was
            read = told.stream.tokens[new.index]
            assert ((read == bare.stream.tokens[t.index]) | (read == mode)).all()
            assert mode not in new.value


def test_a_causal_text_with_a_mode_stays_causal() -> None:
    e = Part(objective=Causal(), mode=MODE)(Rows.of([[11, 12], [13]]), VOCABULARY)
    mode = VOCABULARY.need(MODE)
    assert e.stream.pattern == "causal" and e.stream.tokens.tolist() == [2, mode, 11, 12, 2, mode, 13]
    assert e.stream.reveal.tolist() == e.stream.horizon.tolist() == e.stream.positions.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert e.targets["lm"].index.tolist() == [1, 2, 3, 5, 6] and e.targets["lm"].value.tolist() == [11, 12, 3, 13, 3]


def test_a_text_is_told_the_same_whatever_stands_beside_it() -> None:
    """A hybrid's causal texts stand among others: their [BOS] never sees the mode behind it, as in a causal batch."""
    hybrid = ShiftedMasked(causal_share=0.5)
    part, rows = Part(objective=hybrid, mode=MODE), texts([9] * 8)
    whole = part(rows, VOCABULARY)
    assert whole.stream.pattern == "order"
    for r in range(8):
        alone = part(picked(rows, np.array([r])), VOCABULARY).stream
        here = slice(*whole.stream.start[r : r + 2])
        assert all(np.array_equal(getattr(whole.stream, k)[here], getattr(alone, k)) for k in FIELDS)
        causal = bool(hybrid.is_causal(rows.index[r : r + 1])[0])
        assert alone.reveal.tolist() == (list(range(12)) if causal else [0] * 12)


def test_the_mode_stands_behind_cls_where_that_is_no_bos() -> None:
    class Both(Toy):
        def need(self, role: str) -> int:
            return 5 if role == "cls" else super().need(role)

    e = Part(objective=Masked(), mode=MODE)(texts([4]), Both())
    assert e.stream.tokens[:2].tolist() == [5, Both().need(MODE)]


def test_two_stacks_with_modes_say_what_ul2_says() -> None:
    """UL2's R denoiser in its own objective, and as a part with a mode token."""
    rows = texts([30, 12, 50], 2)
    r = {"mode": "R", "mean_span": 3, "noise_density": 0.15}
    ours = mixture(r={"type": "span_corruption", "mode": MODE, "final_sentinel": True})(rows, VOCABULARY)
    theirs = UL2(denoisers=(r,), final_sentinel=True)(rows, VOCABULARY)  # type: ignore[arg-type]
    assert np.array_equal(ours.source.tokens, theirs.source.tokens)
    assert np.array_equal(ours.targets["lm"].value, theirs.targets["lm"].value)


@pytest.mark.parametrize("objective", TOLD.values(), ids=TOLD)
def test_a_text_of_the_room_fits_with_its_mode(objective: Objective) -> None:
    part, shape = Part(objective=objective, mode=MODE), objective.shape(40)
    room = part.room(shape)
    sizes = part.sizes(outline(texts([room] * 50)))
    assert 0 < room <= objective.room(shape)
    assert sizes.stream.max() <= shape.stream
    assert sizes.source is None or sizes.source.max() <= shape.source


def test_a_mode_that_the_tokenizer_lacks_is_refused_before_training() -> None:
    class Poor(Toy):
        def need(self, role: str) -> int:
            if role.startswith("["):
                raise UserError(f"this tokenizer has no control token {role}")
            return super().need(role)

    m = mixture(a={"type": "masked", "mode": "[M]"})
    with pytest.raises(UserError, match=r"no control token \[M\]"):
        Loader(corpus(), m, Poor(), Shape(24), rows=4, seed=0)
