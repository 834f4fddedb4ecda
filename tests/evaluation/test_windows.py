from __future__ import annotations

import numpy as np
import pytest

from unmask.evaluation.windows import Windows, behind, between, read, side_by_side

LENGTHS = (0, 1, 5, 6, 7, 11, 12, 13, 25)


def described(w: Windows) -> list[tuple[int, int, int, int, bool]]:
    """(begin, end, first scored, end of scored, ends) of each window."""
    first = w.begin + w.skip
    columns = (w.begin, w.begin + w.length, first, first + w.scored, w.ends)
    return list(zip(*(c.tolist() for c in columns), strict=True))


def test_the_picture_of_the_module() -> None:
    start = np.array([0, 12])
    assert described(side_by_side(start, 6)) == [(0, 6, 0, 6, False), (6, 12, 6, 12, True)]
    assert described(behind(start, 6, 2)) == [
        (0, 6, 0, 6, False), (2, 8, 6, 8, False), (4, 10, 8, 10, False), (6, 12, 10, 12, True),
    ]  # fmt: skip
    assert described(between(start, 6, 2)) == [
        (0, 6, 0, 4, False), (2, 8, 4, 6, False), (4, 10, 6, 8, False), (6, 12, 8, 12, True),
    ]  # fmt: skip


@pytest.mark.parametrize("stride", [1, 2, 5, 6])
@pytest.mark.parametrize("kind", ["behind", "between", "source"])
def test_every_token_is_scored_once_with_what_is_promised_around_it(kind: str, stride: int) -> None:
    room, offset = 6, 3
    for lengths in [[n] for n in LENGTHS] + [list(LENGTHS)]:
        start = offset + np.concatenate([[0], np.cumsum(lengths)])
        w = {
            "behind": lambda s=start: behind(s, room, stride),
            "between": lambda s=start: between(s, room, stride),
            "source": lambda s=start: behind(s, room, stride, source=4),
        }[kind]()
        seen = []
        for text, (begin, end, first, last, ends) in zip(w.text.tolist(), described(w), strict=True):
            a, b = int(start[text]), int(start[text + 1])
            assert a <= begin <= first <= last <= end <= b and ends == (last == b)
            assert end - begin <= room if kind != "source" else (last - first <= room and first - begin <= 4)
            for place in range(first, last):
                seen.append(place)
                before = min(place - a, (room - stride) // 2 if kind == "between" else room - stride)
                assert place - begin >= min(before, 4) if kind == "source" else place - begin >= before
                if kind == "between":
                    assert end - 1 - place >= min(b - 1 - place, (room - stride) // 2)
        assert seen == list(range(start[0], start[-1]))
        assert len(set(w.text.tolist())) == len(lengths)  # an empty text has a window too


@pytest.mark.parametrize("stride", [1, 3, 7])
def test_rolling_windows_are_those_of_lm_eval(stride: int) -> None:
    """Theirs predict the same runs of tokens; they feed one token more, where our windows begin with [BOS]."""
    utils = pytest.importorskip("lm_eval.utils")
    for n in (1, 6, 7, 8, 20, 31):
        theirs = utils.get_rolling_token_windows(list(range(n)), -1, max_seq_len=7, context_len=7 - stride + 1)
        runs = [(pred[0], pred[-1] + 1) for _, pred in theirs]
        ours = behind(np.array([0, n]), 7, stride)
        assert [(first, last) for _, _, first, last, _ in described(ours)] == runs


def test_without_a_start_token_every_window_begins_after_another_token() -> None:
    assert described(side_by_side(np.array([0, 12]), 6, opening=1)) == [
        (0, 6, 1, 6, False), (5, 11, 6, 11, False), (10, 12, 11, 12, True),
    ]  # fmt: skip
    assert described(behind(np.array([0, 9]), 6, 2, opening=1)) == [
        (0, 6, 1, 6, False), (2, 8, 6, 8, False), (3, 9, 8, 9, True),
    ]  # fmt: skip
    assert described(side_by_side(np.array([0, 0, 1]), 6, opening=1)) == [(0, 0, 0, 0, True), (0, 1, 1, 1, True)]


def test_a_context_stands_in_front_of_every_window() -> None:
    tokens = np.arange(100, 112)
    w = side_by_side(np.array([2, 7]), 3)
    query, at = read(tokens, w, (np.array([0, 0]), np.array([2, 2])))
    assert query.rows.tokens.tolist() == [100, 101, 102, 103, 104, 100, 101, 105, 106]
    assert at.tolist() == [0, 1, 2, 3, 4, 0, 1, 5, 6]
    assert query.given.tolist() == [2, 2]
    assert np.flatnonzero(query.asked).tolist() == [2, 3, 4, 7, 8]
    assert query.rows.ends.tolist() == [False, True]
