from __future__ import annotations

import unicodedata

import numpy as np
import pytest

from unmask.text.characters import (
    LAST,
    SCRIPTS,
    between_east_asian,
    codes,
    letters,
    run_starts,
    scripts_of,
    word_starts,
)

EVERY_LETTER = "".join(c for c in map(chr, range(LAST + 1)) if unicodedata.category(c)[0] == "L")


def test_scripts_are_those_of_unicode() -> None:
    """Against the script property of the `regex` library; 々 and ー belong to several scripts there."""
    regex = pytest.importorskip("regex")
    ours = scripts_of(codes(EVERY_LETTER))
    assert ours.max() < len(SCRIPTS)
    for k, script in enumerate(SCRIPTS[:-1]):
        theirs = set(regex.findall(rf"\p{{Script={script}}}", EVERY_LETTER))
        mine = {EVERY_LETTER[i] for i in np.flatnonzero(ours == k)}
        assert len(mine ^ theirs) <= 2, (script, sorted(mine ^ theirs))


def test_nothing_but_letters_has_a_script() -> None:
    others = "".join(c for c in map(chr, range(LAST + 1)) if unicodedata.category(c)[0] not in "LC")
    assert (scripts_of(codes(others)) == len(SCRIPTS)).all()
    assert letters("").sum() == letters("12 !? \n").sum() == letters("１２。").sum() == 0


@pytest.mark.parametrize("text", ["plain", "naïve 中文 ひらがな", "\U0001f600 \U0010ffff a", "Ωмир", ""])
def test_letters_are_counted_the_same_in_every_width(text: str) -> None:
    assert letters(text).sum() == sum(map(str.isalpha, text))
    assert (letters(text + "中") - letters(text)).tolist() == [int(s == "han") for s in SCRIPTS]


def test_words() -> None:
    text = "It's naïve_1 e\u0301t, 北京ひ\n\na  b"
    starts = np.flatnonzero(word_starts(codes(text))).tolist()
    ends = [*starts[1:], len(text)]
    words = [text[a:b] for a, b in zip(starts, ends, strict=True)]
    assert words == ["It", "'", "s ", "naïve_1 ", "e\u0301t", ", ", "北", "京", "ひ", "\n\n", "a", "  ", "b"]
    assert np.flatnonzero(run_starts(codes("It's a  b "))).tolist() == [0, 5, 6, 8, 9]


def test_blanks_between_east_asian_characters() -> None:
    cases = {
        "我 爱": [(1, 2)],
        "我  \t爱": [(1, 4)],
        "我\u3000爱": [(1, 2)],
        "我\n爱": [],
        "a b": [],
        "爱 a": [],
        "“ 我 ”": [(1, 2), (3, 4)],
        "said “ a ”": [],
        "한국 어": [],
        " 我 ": [],
        "カ タ": [(1, 2)],
    }
    for text, expected in cases.items():
        assert [tuple(run) for run in between_east_asian(codes(text)).tolist()] == expected, text
