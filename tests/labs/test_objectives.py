"""Laboratory `objectives`: its claims, a fresh run against the committed results, and each figure by another way."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from unmask.compare.results import Results
from unmask.data.worlds import World
from unmask.labs.objectives import characters, grids, lab
from unmask.labs.objectives.characters import decided_count, decided_share, spelt, undecided
from unmask.labs.objectives.corruptions import exact_fates, fates
from unmask.labs.objectives.lab import IID, SPANS, STATEMENTS, Found

from .committed import assert_like, committed

REFUTED = {"More than half of T5's i.i.d. targets are sentinels"}


@pytest.fixture(scope="module")
def found() -> Found:
    return lab.found(0)


@pytest.fixture(scope="module")
def fresh(found: Found) -> Results:
    return lab.results([found])


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda s: s.text[:40])
def test_each_claim_is_recorded_as_it_came_out(statement: Any) -> None:
    (claim,) = (c for c in committed("objectives").claims if c.statement == statement.text)
    assert claim.holds is (statement.text not in REFUTED) and claim.source == statement.source


def test_a_run_of_today_finds_what_is_committed(fresh: Results) -> None:
    held = committed("objectives")
    assert held.seeds == [0, 1, 2, 3, 4] and held.command.startswith("unmask lab objectives ")
    assert [c.statement for c in held.claims] == [c.statement for c in fresh.claims]
    assert all(f.evidence in c.evidence for c, f in zip(held.claims, fresh.claims, strict=True))
    assert len(fresh.tables) == len(held.tables) and fresh.notes == held.notes
    for one, other in zip(fresh.tables, held.tables, strict=True):
        assert_like(one, other)


def test_the_picture_is_drawn_from_the_record(fresh: Results) -> None:
    drawn = lab.picture(fresh)
    assert drawn.count("<title>") == 9 + 5 and "ELECTRA" in drawn  # the notes have five of nine


# ---------------------------------------------------------------- by another way


def test_grids_by_hand() -> None:
    assert grids.prefixed().seen.astype(int).tolist() == [
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 1],
    ]
    pair = grids.exchange()
    assert pair.across.seen.shape == (3, 5) and np.array_equal(pair.target.seen, np.tril(np.ones((3, 3))))


def test_densities_by_hand(found: Found) -> None:
    """Rows of 32: 30 tokens between [CLS] and [SEP], of which round(4.5) = 4 are hidden; 31 behind [BOS] of a causal
    row. The last row is shorter, so that the figures are not quite these."""
    d = found.densities
    assert d["BERT, exact budget"].targets == pytest.approx(1000 * 4 / 32, rel=1e-3)
    assert d["BERT"].expected == pytest.approx(1000 * 4.5 / 32, rel=1e-3)
    assert d["prefix LM"].expected == pytest.approx(1000 * 16 / 31, rel=2e-3)
    assert d["ELECTRA"].expected == pytest.approx(1000 * (30 + 4) / 32, rel=1e-3)


def test_sentinels_of_the_notes_are_those_of_20_tokens() -> None:
    """3 of 20 are hidden, in 3 · 18 / 20 runs, and one more sentinel comes last."""
    table = lab._lengths()
    assert table.rows[1] == [20, pytest.approx((2.7 + 1) / 3), pytest.approx(2 / 3)]
    assert round(103 / 84, 2) == round(float(str(table.rows[1][1])), 2)


def test_what_a_word_decides_by_trying_every_mask() -> None:
    known = ["kind", "mind", "mint", "a", "on", "or", "and"]
    rate, text = 0.3, {"kind": 2, "on": 1, "mint": 1, "a": 3}
    decided = masked = 0.0
    for word, count in text.items():
        for hidden in product([False, True], repeat=len(word)):
            chance = np.prod([rate if h else 1 - rate for h in hidden])
            seen = re.compile("".join("." if h else c for c, h in zip(word, hidden, strict=True)))
            fits = [w for w in known if seen.fullmatch(w)]
            for place in np.flatnonzero(hidden).tolist():
                masked += count * chance
                decided += count * chance * (len({w[place] for w in fits}) == 1)
    assert decided_share(text, known, rate) == pytest.approx(decided / masked, rel=1e-12)
    assert undecided("mint", known)[0b0001] == 0b0000  # _int
    assert undecided("mind", known)[0b0001] == 0b0001  # _ind
    assert undecided("mind", known)[0b1011] == 0b1001  # __n_


def test_masks_are_drawn_as_often_as_is_expected() -> None:
    lines = World().lines("reviews", "train")[:300]
    masked, _ = decided_count(lines, World().words(), 7)
    characters_of_words = sum(len(c) for line in lines for c in line.split())
    assert abs(masked - 0.15 * characters_of_words) < 4 * (0.15 * 0.85 * characters_of_words) ** 0.5


def test_the_letters_of_crest_by_trying_all_spellings() -> None:
    words = {"tasty": 3, "fresh": 1, "sweet": 2, "crisp": 1, "great": 1}
    found = spelt(words)
    chance = {
        "".join(letters): np.prod([found.marginals[k][c] for k, c in enumerate(letters)])
        for letters in product(*found.marginals)
    }
    assert sum(chance.values()) == 1 and sum(chance[w] for w in words) == found.right
    assert chance[found.likeliest] == max(chance.values()) and found.words["tasty"] == Fraction(3, 8)


def test_fates_are_counted_from_the_input_alone() -> None:
    each = {fate.name: fate for fate in fates(World(), 3)}
    assert set(each) == set(exact_fates()) and all(abs(fate.off) < lab.MOST for fate in each.values())
    assert each["random"].exact + each["kept"].exact == Fraction(3, 100)


def test_of_bert_s_line_all_three_fates_are_shown(found: Found) -> None:
    (bert,) = (c for c in found.line if c.name == "BERT")
    assert bert.reads.count("[MASK]") >= 1 and "(kept)" in bert.asked and "(random)" in bert.asked
    reads = bert.reads.split(" ")
    for place, token, fate in re.findall(r"(\d+) → (\S+?)(?: \((\w+)\))?(?:, |$)", bert.asked):
        assert (reads[int(place)] == token) == (fate == "kept") and (reads[int(place)] == "[MASK]") == (not fate)


# ---------------------------------------------------------------- claims can fail

Change = Callable[[Found], Found]


def _density(name: str, **changes: Any) -> Change:
    return lambda found: replace(found, densities={**found.densities, name: replace(found.densities[name], **changes)})


def _characters(**changes: Any) -> Change:
    return lambda found: replace(found, characters=replace(found.characters, **changes))


def _unlike(found: Found) -> Found:
    """Two stacks whose encoder is causal, and a prefix LM that is causal."""
    one = {name: found.pair.one["causal, [BOS] in front"] for name in found.pair.one}
    return replace(found, pair=replace(found.pair, one=one))


WRONG: list[tuple[str, Change]] = [
    ("A source of 5", _unlike),
    ("A prefix LM's answers", lambda f: replace(f, pair=replace(f.pair, one={"prefix": grids.encoder(8)}))),
    ("BERT's input", lambda f: replace(f, fates=[replace(f.fates[0], off=-5.0), *f.fates[1:]])),
    ("Targets and sentinels are", _density("UL2", off=4.5)),
    ("Targets and sentinels are", _density(IID, off_marks=-4.5)),
    ("Under GPT", _density("GPT", targets=999.0)),
    ("A prefix LM asks", _density("prefix LM", targets=700.0)),
    ("BERT asks", _density("GPT", targets=900.0)),
    ("T5's i.i.d. targets", _density(IID, words=140.0)),
    ("Spans of 3", _density(SPANS, marks=40.0)),
    ("Spans of 3", _density(SPANS, words=80.0)),
    (
        "Of masked characters",
        _characters(
            expected={
                key: {0.15: 0.9}
                for key in (
                    (characters.LETTERS_OF_REVIEWS, characters.THEIR_OWN),
                    (characters.LETTERS_OF_REVIEWS, characters.WORLD),
                    (characters.ALL_OF_REVIEWS, characters.WORLD),
                )
            }
        ),
    ),
    ("Of characters that masks", _characters(decided=10_000)),
    ("The likeliest letter", _characters(is_word={"crest": True})),
]


@pytest.mark.parametrize(("begins", "change"), WRONG, ids=lambda v: v if isinstance(v, str) else "")
def test_a_claim_fails_where_it_is_false(found: Found, begins: str, change: Change) -> None:
    (statement,) = (s for s in STATEMENTS if s.text.startswith(begins))
    assert statement.judge(found)[0] is True and statement.judge(change(found))[0] is False


def test_the_claim_of_sentinels_could_hold(found: Found) -> None:
    (statement,) = (s for s in STATEMENTS if s.text in REFUTED)
    assert statement.judge(found)[0] is False and statement.judge(_density(IID, marks=140.0)(found))[0] is True


@pytest.mark.parametrize(
    ("begins", "name", "instead"),
    [
        ("Of six tokens", "prefixed", lambda *_: grids.decoder()),
        ("In T5's paper", "papers_example", lambda: ("Thank you <extra_id_0> week .", "<extra_id_0>")),
        ("BERT's input", "exact_fates", lambda: exact_fates(Fraction(40, 100))),
    ],
)
def test_a_claim_of_no_seed_fails_where_the_code_is_wrong(
    found: Found, monkeypatch: pytest.MonkeyPatch, begins: str, name: str, instead: Callable[..., Any]
) -> None:
    (statement,) = (s for s in STATEMENTS if s.text.startswith(begins))
    assert statement.judge(found)[0] is True
    monkeypatch.setattr(lab, name, instead)
    assert statement.judge(found)[0] is False
