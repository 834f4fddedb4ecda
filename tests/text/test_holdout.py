from __future__ import annotations

import numpy as np
import pytest

from unmask.text.document import Document
from unmask.text.holdout import split


def documents(n: int) -> list[Document]:
    return [Document(f"text number {i}", str(i)) for i in range(n)]


def test_split_by_hash_keeps_duplicates_together_and_all_documents() -> None:
    many = documents(2000) * 2
    sides = list(split(many, 0.05))
    assert sorted(d.text for _, d in sides) == sorted(d.text for d in many)
    held = {d.text for out, d in sides if out}
    assert held.isdisjoint(d.text for out, d in sides if not out)
    assert 70 <= len(held) <= 130
    fewer = {d.text for out, d in split(many[:1000], 0.05) if out}
    assert fewer <= held  # a document's side does not depend on the others


@pytest.mark.parametrize("n", [20, 21, 25, 40])
def test_split_by_hash_always_holds_something_out(n: int) -> None:
    for fraction in (0.0001, 0.05):
        sides = [out for out, _ in split(documents(n), fraction)]
        assert len(sides) == n and 1 <= sum(sides) < n
    assert not any(out for out, _ in split(documents(n), 0.0))


def test_split_by_position_says_so() -> None:
    text = "".join(f"line {i} of the only text\n" for i in range(400))
    said: list[str] = []
    (first, head), (second, tail) = split([Document(text, "a.txt")], 0.05, said.append)
    assert (first, second) == (False, True)
    assert head.text + tail.text == text and head.text.endswith("\n")
    assert len(tail.text) == pytest.approx(0.05 * len(text), rel=0.1)
    assert len(said) == 1 and "1 document only" in said[0] and "by position" in said[0]
    sides = list(split([Document("a" * 50, "1"), Document("b" * 900, "2"), Document("c" * 50, "3")], 0.05))
    assert [(out, d.text[0]) for out, d in sides] == [(False, "a"), (False, "b"), (True, "c")]


def test_the_cut_of_a_single_document_cuts_words_and_spans_too() -> None:
    text = "".join(f"{i:04d} " for i in range(1000))
    words = np.arange(0, 5000, 5)
    spans = np.stack([words[8::10], words[8::10] + 14], axis=1)  # one of them, [4490, 4504), lies across the cut
    (_, head), (_, tail) = split([Document(text, "a", words, spans)], 0.101)
    cut = len(head.text)
    assert head.text + tail.text == text and cut == 4495
    assert head.words is not None and tail.words is not None and head.spans is not None and tail.spans is not None
    assert np.array_equal(np.concatenate([head.words, tail.words + cut]), words)
    assert head.spans[-2:].tolist() == [[4440, 4454], [4490, 4495]]
    assert (tail.spans[:2] + cut).tolist() == [[4495, 4504], [4540, 4554]]
    assert len(head.spans) + len(tail.spans) == len(spans) + 1
