from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from unmask.config import SourceConfig
from unmask.errors import UserError
from unmask.text import segment
from unmask.text.characters import codes, word_starts
from unmask.text.corpus import read
from unmask.text.document import Document
from unmask.text.segment import by_blanks, by_jieba
from unmask.text.spans import Lexicon


def found(tmp_path: Path, rows: list[dict[str, Any]], **settings: Any) -> list[Document]:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return list(read(SourceConfig(path=str(path), spans="ents", **settings)))


def marked(document: Document) -> list[str]:
    assert document.spans is not None
    return [document.text[a:b] for a, b in document.spans]


# ---------------------------------------------------------------- annotated spans


def test_every_form_of_a_span(tmp_path: Path) -> None:
    text = "Ada met Bob in York."
    forms = [
        [[15, 19], [0, 3]],
        [[0, 3, "PER"], [15, 19, "LOC", 0.9]],
        [{"begin": 0, "end": 3}, {"start": 15, "end": 19}],
    ]
    documents = found(tmp_path, [{"text": text, "ents": form} for form in [*forms, [], None]])
    assert [marked(d) for d in documents] == [["Ada", "York"]] * 3 + [[], []]


def test_spans_follow_what_reading_changes(tmp_path: Path) -> None:
    text = "x\r\nAda\r\nLove 😀 \r\n\r\nBob"
    spans = [[text.index(w), text.index(w) + len(w)] for w in ("Ada\r\nLove", "😀", "Bob")]
    row = {"text": text, "ents": spans}
    (whole,) = found(tmp_path, [row])
    assert "\r" not in whole.text and marked(whole) == ["Ada\nLove", "😀", "Bob"]
    first, second = found(tmp_path, [row], document="blank_line")
    assert marked(first) == ["Ada\nLove", "😀"] and marked(second) == ["Bob"]
    parts = found(tmp_path, [row], document="regex", separator=r"^x\n")
    assert [(d.text, marked(d)) for d in parts] == [("Ada\nLove 😀 \n\nBob", ["Ada\nLove", "😀", "Bob"])]
    segmented = {"text": "张 华 去 北京 大学", "ents": [[0, 3], [6, 11]]}
    (joined,) = found(tmp_path, [segmented], words="blanks")
    assert joined.text == "张华去北京大学" and marked(joined) == ["张华", "北京大学"]
    assert joined.words is not None and joined.words.tolist() == [0, 1, 2, 3, 5]


@pytest.mark.parametrize(
    ("spans", "match"),
    [
        ([[0, 9]], r"a\.jsonl:2: the span \[0, 9\] of 'ents' is not inside its text of 8 characters"),
        ([[-1, 2]], "is not inside"),
        ([[3, 3]], "is not inside"),
        ([[0, 3], [2, 5]], r"the span \[2, 5\] of 'ents' overlaps the one before it"),
        ([[0, 5], [1, 2]], "overlaps"),
        ([[0, "3"]], r"'ents' holds .* which is no span: give \[begin, end\]"),
        ([[0]], "which is no span"),
        ([{"begin": 0}], "which is no span"),
        ([[0, True]], "which is no span"),
        ([3, 5], "which is no span"),
        ("0-3", "the key 'ents' holds a str, not a list"),
    ],
)
def test_refusals_name_the_line(spans: Any, match: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=match):
        found(tmp_path, [{"text": "fine", "ents": []}, {"text": "some tex", "ents": spans}])


def test_more_refusals(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.jsonl:1 has no key 'ents'.*set corpus.spans; did you mean 'ent'"):
        found(tmp_path, [{"text": "a", "ent": []}])
    with pytest.raises(UserError, match=r"the span 'a\\n\\nb' of 'ents' is in no single document.*document=blank_line"):
        found(tmp_path, [{"text": "a\n\nb", "ents": [[0, 4]]}], document="blank_line")


# ---------------------------------------------------------------- lexicon


def longest_matches(text: str, phrases: set[str]) -> list[str]:
    """By definition: at each word start, left to right, the longest phrase that ends where a word does."""
    starts = set(word_starts(codes(text)).nonzero()[0].tolist())
    ends = {i for i in range(1, len(text) + 1) if i == len(text) or i in starts or text[i].isspace()}
    result, at = [], 0
    while at < len(text):
        here = [p for p in phrases if at in starts and text.startswith(p, at) and at + len(p) in ends]
        if here:
            result.append(max(here, key=len))
            at += len(result[-1])
        else:
            at += 1
    return result


@pytest.mark.parametrize("seed", range(30))
def test_the_longest_phrases_by_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    words = ["a", "b", "ab", "New", "York", "北", "京", "-", ",", "x1"]

    def draw(n: int) -> str:
        return re.sub(" +", " ", "".join(rng.choice(words) + rng.choice(["", " "]) for _ in range(n))).strip()

    phrases = {draw(rng.randint(1, 4)) for _ in range(12)}
    text = draw(60)
    lexicon = Lexicon(sorted(phrases))
    assert [text[a:b] for a, b in lexicon.find(text)] == longest_matches(text, phrases)


def test_phrases_match_over_line_ends_and_whole_words_alone(tmp_path: Path) -> None:
    (tmp_path / "lex.txt").write_text("New York\nNew York City\n\n 北京 \nAT&T\n", encoding="utf-8")
    (tmp_path / "a.txt").write_text(
        "New\nYork and New York City, NewYork, New Yorker; 去北京吧 AT&T AT & T", encoding="utf-8"
    )
    (document,) = read(SourceConfig(path=str(tmp_path / "a.txt"), lexicon=str(tmp_path / "lex.txt")))
    assert marked(document) == ["New\nYork", "New York City", "北京", "AT&T"]


def test_phrases_keep_to_a_given_segmentation(tmp_path: Path) -> None:
    (tmp_path / "lex.txt").write_text("研究\n研究生\n生命\n", encoding="utf-8")
    (tmp_path / "a.txt").write_text("研究 生命 。 研究生 来 了", encoding="utf-8")
    config = SourceConfig(path=str(tmp_path / "a.txt"), lexicon=str(tmp_path / "lex.txt"), words="blanks")
    (document,) = read(config)
    assert document.text == "研究生命。研究生来了" and marked(document) == ["研究", "生命", "研究生"]


def test_a_lexicon_without_phrases(tmp_path: Path) -> None:
    (tmp_path / "lex.txt").write_text(" \n")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(UserError, match=r"lex\.txt has no phrase"):
        list(read(SourceConfig(path=str(tmp_path / "a.txt"), lexicon=str(tmp_path / "lex.txt"))))
    with pytest.raises(UserError, match=r"cannot read .*none\.txt: No such file"):
        list(read(SourceConfig(path=str(tmp_path / "a.txt"), lexicon=str(tmp_path / "none.txt"))))


# ---------------------------------------------------------------- words that the source gives


def words_of(document: Document) -> list[str]:
    assert document.words is not None
    ends = [*document.words[1:].tolist(), len(document.text)]
    return [document.text[a:b].strip(" ") for a, b in zip(document.words, ends, strict=True)]


def test_words_by_blanks() -> None:
    document = by_blanks(Document("我们  喜欢 NLP 和 deep learning 。\n他 说 ： “ 好 ” 。", ""))
    assert document.text == "我们喜欢 NLP 和 deep learning 。\n他说：“好”。"
    assert words_of(document)[:7] == ["我们", "喜欢", "NLP", "和", "deep", "learning", "。"]
    assert words_of(document)[7:] == ["\n", "他", "说", "：", "“", "好", "”", "。"]
    english = by_blanks(Document("don't  split\n\nthis, please ", ""))
    assert english.text == "don't  split\n\nthis, please "
    assert words_of(english) == ["don't", "", "split", "\n\n", "this,", "please", ""]


def test_words_by_jieba(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    jieba = pytest.importorskip("jieba")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    segment._jieba.cache_clear()
    text = "我们去北京大学唱卡拉OK, naïve approach."
    document = by_jieba(Document(text, ""))
    assert document.text == text
    assert words_of(document)[:4] == ["我们", "去", "北京大学", "唱"]
    assert words_of(document)[-4:] == [",", "naïve", "approach", "."]
    assert capfd.readouterr() == ("", "") and list(tmp_path.iterdir()) == []
    sentence = "他来到了网易杭研大厦，小明硕士毕业于中国科学院计算所。"
    assert words_of(by_jieba(Document(sentence, ""))) == list(jieba.cut(sentence))


def test_missing_jieba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment._jieba.cache_clear()
    monkeypatch.setitem(sys.modules, "jieba", None)
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(UserError, match=r"words=jieba needs the package jieba: pip install 'unmask\[zh\]'"):
        list(read(SourceConfig(path=str(tmp_path / "a.txt"), words="jieba")))
    segment._jieba.cache_clear()
