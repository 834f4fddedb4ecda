from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.config import SourceConfig
from unmask.errors import UserError
from unmask.text.corpus import Counts, read
from unmask.text.document import Document, number_of, part, without
from unmask.text.filters import Seen, repetition


def kept(tmp_path: Path, texts: list[str], counts: Counts | None = None, **filters: Any) -> list[str]:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return [d.text for d in read(SourceConfig(path=str(path), filter=filters), counts)]


def test_length(tmp_path: Path) -> None:
    counts = Counts()
    assert kept(tmp_path, ["ab", "abc", "abcd", "abcde"], counts, min_characters=3, max_characters=4) == ["abc", "abcd"]
    assert counts == Counts(files=1, documents=2, bytes=7, filtered={"too short": 1, "too long": 1})
    assert counts.notes() == ["filters dropped 1 too long, 1 too short"]


def test_repetition(tmp_path: Path) -> None:
    """Three of six lines, 6 of 14 characters, repeat an earlier one."""
    text = "ab\nab\n\nabcd\nab\nab\n x"
    assert repetition(text) == pytest.approx(6 / 14)
    assert repetition("") == repetition("\n\n") == repetition("a\nb") == 0
    counts = Counts()
    assert kept(tmp_path, [text, "fine"], counts, max_repetition=0.42) == ["fine"]
    assert counts.filtered == {"repetitive": 1}
    assert kept(tmp_path, [text, "fine"], max_repetition=0.43) == [text, "fine"]


def test_duplicate_documents(tmp_path: Path) -> None:
    counts = Counts()
    assert kept(tmp_path, ["a", "b", "a", "A", "a "], counts, duplicates="documents") == ["a", "b", "A", "a "]
    assert counts.filtered == {"duplicate documents": 1}


def test_d23_duplicate_lines(tmp_path: Path) -> None:
    texts = ["one\ntwo\n\none", "two\nthree\n", "one\n  two  ", "two\nthree\n", "four"]
    counts = Counts()
    assert kept(tmp_path, texts, counts, duplicates="lines") == ["one\ntwo\n\n", "three\n", "four"]
    assert counts.filtered == {
        "duplicate lines": 1 + 1 + 2,
        "documents of duplicate lines alone": 1,
        "duplicate documents": 1,
    }


def test_d23_half_of_the_lines_repeat(tmp_path: Path) -> None:
    rng = random.Random(5)
    lines = [f"line number {i}" for i in range(500)]
    path = tmp_path / "a.txt"
    path.write_text("\n".join(rng.sample(lines * 2, 1000)))
    counts = Counts()
    config = SourceConfig(path=str(path), document="line", filter={"duplicates": "lines"})
    assert sorted(d.text for d in read(config, counts)) == sorted(lines)
    assert counts.filtered == {"duplicate documents": 500}
    whole = config.model_copy(update={"document": "file"})
    counts = Counts()
    (document,) = read(whole, counts)
    assert sorted(document.text.split()) == sorted(" ".join(lines).split())
    assert counts.filtered == {"duplicate lines": 500}


def test_scripts(tmp_path: Path) -> None:
    texts = ["English words", "中文的句子", "混合 with English", "123 !?"]
    counts = Counts()
    assert kept(tmp_path, texts, counts, scripts=["latin"]) == ["English words", "混合 with English"]
    assert counts.filtered == {"in other scripts": 2}
    assert kept(tmp_path, texts, scripts=["latin"], min_script_share=0.9) == ["English words"]
    assert kept(tmp_path, texts, scripts=["latin", "han"], min_script_share=1.0) == texts[:3]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no script 'latn'; the scripts are .*; did you mean 'latin'"):
        kept(tmp_path, ["a"], scripts=["latn"])
    with pytest.raises(UserError, match="max_characters=2 is below min_characters=3"):
        kept(tmp_path, ["a"], min_characters=3, max_characters=2)
    with pytest.raises(UserError, match=r"has no text \(1 files, 0 empty documents, 2 too short\)"):
        kept(tmp_path, ["a", "b"], min_characters=3)


def test_filters_keep_spans_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [
        {"text": "Ada\nBob", "ents": [[0, 3]]},
        {"text": "Bob\nAda Lovelace\nhere", "ents": [[0, 3], [8, 16], [17, 21]]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, second = read(SourceConfig(path=str(path), spans="ents", filter={"duplicates": "lines"}))
    assert second.text == "Ada Lovelace\nhere" and second.spans is not None
    assert [second.text[a:b] for a, b in second.spans] == ["Lovelace", "here"]


# ---------------------------------------------------------------- the parts


def test_seen_is_a_set_of_10_to_16_bytes_an_item() -> None:
    rng = random.Random(1)
    seen, reference = Seen(), set()
    for _ in range(60_000):
        number = rng.choice([0, 1, 256, rng.getrandbits(64), rng.getrandbits(16)])
        expected = (number or 1) not in reference
        reference.add(number or 1)
        assert seen.add(number) is expected
    assert len(seen) == len(reference)
    for _ in range(200_000):
        seen.add(rng.getrandbits(64))
    assert 10 <= seen.nbytes / len(seen) <= 16


def test_numbers_are_fixed() -> None:
    assert number_of("text") == 2024992729630503895
    assert len({number_of(str(i)) for i in range(10_000)}) == 10_000


@pytest.mark.parametrize("seed", range(20))
def test_without_moves_words_and_spans_as_characters_move(seed: int) -> None:
    rng = np.random.default_rng(seed)
    text = "".join(map(chr, rng.integers(97, 123, 40)))
    edges = np.sort(rng.choice(41, 2 * rng.integers(1, 6), replace=False)).reshape(-1, 2)
    spans = np.sort(rng.choice(41, 2 * rng.integers(1, 8), replace=False)).reshape(-1, 2)
    words = np.sort(rng.choice(40, 9, replace=False))
    gone = np.zeros(41, bool)
    for a, b in edges:
        gone[a:b] = True
    place = np.concatenate([[0], np.cumsum(~gone)])  # of each character among those that stay
    shorter = without(Document(text, "", words, spans), edges)
    assert shorter.text == "".join(c for c, g in zip(text, gone, strict=False) if not g)
    assert shorter.words is not None and shorter.spans is not None
    assert shorter.words.tolist() == sorted({int(place[w]) for w in words} - {len(shorter.text)})
    assert shorter.spans.tolist() == [[place[a], place[b]] for a, b in spans if place[a] < place[b]]


def test_part() -> None:
    whole = Document("one two three", "a:1", np.array([0, 4, 8]), np.array([[0, 3], [4, 10]]))
    middle = part(whole, 4, 9, "a:1b")
    assert middle.text == "two t" and middle.where == "a:1b"
    assert middle.words is not None and middle.words.tolist() == [0, 4]
    assert middle.spans is not None and middle.spans.tolist() == [[0, 5]]
