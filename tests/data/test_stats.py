from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.cli import app
from unmask.config import SourceConfig, TokenizerConfig
from unmask.data import stats as module
from unmask.data.overlap import Overlap, words_of
from unmask.data.stats import Stats, stats
from unmask.data.tally import Tally
from unmask.errors import UserError
from unmask.tokens.tokenizer import Tokenizer


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def measured(path: Path, **settings: Any) -> Stats:
    return stats(SourceConfig(path=str(path), **settings))


# ---------------------------------------------------------------- the figures


def test_counts(tmp_path: Path) -> None:
    texts = ["One two. Three?\n\nFour", "北京 is big。真的！", "é" * 300]
    path = written(tmp_path / "a.jsonl", "".join(json.dumps({"text": t}) + "\n" for t in [*texts, "", " "]))
    report = measured(path)
    assert json.loads(json.dumps(asdict(report)))["documents"] == report.documents == 3
    assert (report.files, report.empty, report.encodings) == (1, 2, {"utf-8": 1})
    assert report.sentences == 3 + 2 + 1 and report.sentences_per_document == 2
    assert report.lines == 2 + 1 + 1
    assert report.words == (4 + 2) + (4 + 2 + 2) + 1
    assert report.characters == sum(map(len, texts)) and report.bytes == sum(len(t.encode()) for t in texts)
    assert report.tokens is None and report.overlap is None
    assert report.scripts == {"latin": pytest.approx(320 / 324), "han": pytest.approx(4 / 324)}
    assert report.length == {
        "p5": 13,
        "p25": 13,
        "p50": 21,
        "p75": 300,
        "p95": 300,
        "p99": 300,
        "max": 300,
        "mean": 111,
    }


def test_d05_documents_sentences_and_blank_lines(tmp_path: Path) -> None:
    shapes = [
        "A b.\nC d.\n\nE f.\n",
        "A b.\nC d.\n   \nE f.\n",
        "A b.\nC d.\n\n\t\n\nE f.\n",
        "\n\nA b.\nC d.\n\nE f.\n\n\n",
    ]
    reports = [measured(written(tmp_path / f"{i}.txt", s), document="blank_line") for i, s in enumerate(shapes)]
    assert {(r.documents, r.sentences, r.lines, r.words) for r in reports} == {(2, 3, 3, 9)}
    assert [r.empty for r in reports] == [0, 0, 2, 3]


def test_d04_documents_of_one_sentence_are_a_loud_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "a.txt", "".join(f"This is sentence number {i}.\n\n" for i in range(50)))
    report = measured(path, document="blank_line")
    assert report.sentences_per_document == 1
    (warning,) = report.warnings
    assert warning.startswith("mean sentences per document = 1.00") and "document=file" in warning
    assert app(["data", "stats", str(path), "--document", "blank_line"], standalone_mode=False) in (None, 0)
    assert "warning: mean sentences per document = 1.00" in capsys.readouterr().err
    fine = measured(written(tmp_path / "b.txt", "One. Two.\n\nThree. Four.\n"), document="blank_line")
    assert fine.warnings == []


def test_d08_invalid_bytes_are_placed(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "abc\nder Bär und die Tür sind schön.\n".encode("cp1252"))
    report = measured(path)
    assert (report.invalid, report.first_invalid) == (3, f"{path} line 2, byte offset 9")
    assert report.looks_like == "cp1252" and "corpus.encoding=cp1252" in report.warnings[0]
    assert measured(path, encoding="cp1252").invalid == 0


def test_d23_half_of_the_lines_are_duplicates(tmp_path: Path) -> None:
    lines = [f"line number {i} of a scraped page" for i in range(400)] + ["Accept all cookies"] * 300 + ["Log in"] * 102
    random.Random(1).shuffle(lines)
    path = written(tmp_path / "a.txt", "\n".join(lines))
    report = measured(path)
    repeats = report.duplicate_lines
    assert (repeats.share, repeats.total, repeats.estimated) == (pytest.approx(400 / 802), 802, False)
    assert repeats.top == [{"count": 300, "text": "Accept all cookies"}, {"count": 102, "text": "Log in"}]
    assert any("49.9% of the lines repeat an earlier one: filter.duplicates=lines" in w for w in report.warnings)
    cleaned = measured(path, filter={"duplicates": "lines"})
    assert cleaned.filtered == {"duplicate lines": 400} and cleaned.duplicate_lines.share == 0 and cleaned.lines == 402


def test_lengths_are_quantiles_and_powers_of_two(tmp_path: Path) -> None:
    rng = random.Random(3)
    lengths = [rng.choice([rng.randint(1, 100), rng.randint(100, 100_000)]) for _ in range(300)]
    path = written(tmp_path / "a.jsonl", "".join(json.dumps({"text": "x" * n}) + "\n" for n in lengths))
    report = measured(path)
    for q in (5, 25, 50, 75, 95, 99):
        exact = int(np.percentile(lengths, q, method="inverted_cdf"))
        assert exact * 63 / 64 < report.length[f"p{q}"] <= exact
    bins = Counter(n.bit_length() for n in lengths)
    assert report.histogram == [{"low": 1 << (k - 1), "high": (1 << k) - 1, "documents": bins[k]} for k in sorted(bins)]
    assert report.length["mean"] == round(sum(lengths) / 300)


def test_scripts_and_languages(tmp_path: Path) -> None:
    texts = [
        "plain English",
        "这是中文 OK",
        "これは日本語です",
        "한국어 문장",
        "Русский текст",
        "12345",
        "ภาษาไทย",
        "עברית",
    ]
    path = written(tmp_path / "a.jsonl", "".join(json.dumps({"text": t}) + "\n" for t in texts))
    report = measured(path)
    each = {"latin": 14, "han": 4 + 3, "hiragana": 5, "hangul": 5, "cyrillic": 12, "thai": 7, "hebrew": 5}
    each["thai"] = sum(c.isalpha() for c in texts[6])
    total = sum(each.values())
    assert report.scripts == {k: pytest.approx(v / total) for k, v in each.items()}
    names = ["English or", "Chinese", "Japanese", "Korean", "Russian or", "no letters", "Thai", "Hebrew"]
    assert all(any(k.startswith(name) and v == 1 / 8 for k, v in report.languages.items()) for name in names)


def test_strings(tmp_path: Path) -> None:
    mails = "ann@example.org, b.c+d@mail.example.co.uk; not@this @nor.that a@b"
    phones = "(713) 853-1234, 713-853-1234, +49 30 1234567, 030 1234 5678, 13912345678, 1-800-991-9019"
    neither = "2015-01-02, 1990-1995, 3.14159265, 12,345,678, 10.1000/182-33, ISBN 0-306-40615-2, 20150102 03:00:00"
    controls = "[MASK] <extra_id_0> <extra_id_0> </s> <|endoftext|> [mask] <b> [SEP]x"
    path = written(tmp_path / "a.txt", "\n".join([mails, phones, neither, controls]))
    report = measured(path)
    assert (report.mails, report.phones) == (2, 6)
    assert report.controls == {"<extra_id_0>": 2, "[MASK]": 1, "</s>": 1, "<|endoftext|>": 1, "[SEP]": 1}
    assert any("spelled like control tokens" in w and "<extra_id_0> (2)" in w for w in report.warnings)


def test_tokens(tmp_path: Path) -> None:
    texts = ["one two three", "two [MASK] <extra_id_1>"]
    tokenizer = Tokenizer.train(TokenizerConfig(type="bbpe", vocab_size=400, sentinels=3), iter(texts * 4))
    path = written(tmp_path / "a.txt", "\n".join(texts))
    report = stats(SourceConfig(path=str(path), document="line"), tokenizer)
    assert report.tokens == sum(len(tokenizer.encode(t)) for t in texts)
    assert report.controls == {"[MASK]": 1, "<extra_id_1>": 1}


def test_a_long_document_is_measured_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"Line {i} is by ann@example.org. 今天{i}。\n\n" for i in range(500))
    path = written(tmp_path / "a.jsonl", json.dumps({"text": text}) + "\n" + json.dumps({"text": "short"}) + "\n")
    whole = measured(path)
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 700)
    assert measured(path) == whole
    assert (whole.sentences, whole.mails, whole.lines) == (1001, 500, 501)


# ---------------------------------------------------------------- overlap


def test_overlap_by_brute_force(tmp_path: Path) -> None:
    rng = random.Random(7)
    words = [f"w{i}" for i in range(40)]

    def draw(n: int) -> list[str]:
        return [rng.choice(words[: rng.choice([3, 40])]) for _ in range(n)]

    corpus = [draw(rng.randint(1, 400)) for _ in range(30)]
    evaluation = [draw(rng.randint(9, 60)) for _ in range(40)]
    for text in evaluation[:15]:  # whole or in part in the corpus, with other case and punctuation
        at = rng.randint(0, 5)
        corpus[rng.randrange(30)] += [w.upper() + rng.choice(["", ",", " -"]) for w in text[at:]]
    overlap = Overlap(map(" ".join, evaluation))
    lengths = [len(text) for text in evaluation]
    n = overlap.n
    assert n == int(np.clip(np.percentile(lengths, 5), 8, 13))

    def grams(words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}

    texts = [" ".join(text) for text in corpus]
    held = set().union(*(grams(words_of(text)) for text in texts))
    for at in range(0, 30, 7):
        overlap.add(texts[at : at + 7])
    result = overlap.result()
    judged = [text for text in evaluation if len(text) >= n]
    every = set().union(*map(grams, judged))
    assert (result.documents, result.short) == (len(judged), len(evaluation) - len(judged))
    assert result.documents_found == sum(bool(grams(text) & held) for text in judged) >= 10
    assert (result.ngrams, result.ngrams_found) == (len(every), len(every & held))
    assert 0 < result.ngrams_found < result.ngrams


def test_overlap_with_a_file(tmp_path: Path) -> None:
    sentence = "the quick brown fox jumps over the lazy dog again and again until noon"
    path = written(tmp_path / "a.txt", f"Something else entirely.\n{sentence.upper()}!\n")
    held = written(
        tmp_path / "eval.txt", f"{sentence}\n\nnothing of this stands in that text at all, as far as I know it\n"
    )
    report = stats(SourceConfig(path=str(path)), against=SourceConfig(path=str(held)))
    assert report.overlap is not None
    assert (report.overlap.n, report.overlap.documents, report.overlap.documents_found) == (13, 2, 1)
    assert any("1 of 2 evaluation documents share 13 words" in w for w in report.warnings)
    with pytest.raises(UserError, match="has no words"):
        stats(SourceConfig(path=str(path)), against=SourceConfig(path=str(written(tmp_path / "no.txt", "?!"))))


# ---------------------------------------------------------------- bounded counting


def test_tally_is_exact_while_it_fits() -> None:
    rng = random.Random(2)
    texts = [f"text {int(rng.paretovariate(0.5)) % 5000}" for _ in range(20_000)]
    tally, reference = Tally(), Counter(texts)
    for at in range(0, len(texts), 333):
        tally.add(texts[at : at + 333])
    assert tally.share == pytest.approx(1 - len(reference) / len(texts)) and not tally.estimated
    assert [count for count, _ in tally.most_repeated()] == [count for _, count in reference.most_common(10)]
    assert all(reference[text] == count for count, text in tally.most_repeated())


def test_tally_samples_beyond_its_limit() -> None:
    """100,000 distinct texts, 30,000 of them twice, and three frequent ones, in room for 4,000."""
    rng = random.Random(3)
    texts = [str(i) for i in range(100_000)] + [str(i) for i in range(30_000)]
    texts += ["cookies"] * 3000 + ["menu"] * 2000 + ["login"] * 1000
    rng.shuffle(texts)
    tally = Tally(limit=4000)
    for at in range(0, len(texts), 1000):
        tally.add(texts[at : at + 1000])
        assert len(tally.numbers) <= 4000
    assert tally.estimated and tally.total == len(texts)
    assert [text for _, text in tally.most_repeated()[:3]] == ["cookies", "menu", "login"]
    assert [count for count, _ in tally.most_repeated()[:3]] == [3000, 2000, 1000]
    assert tally.share == pytest.approx(1 - 100_003 / len(texts), abs=0.05)


# ---------------------------------------------------------------- the verb


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "a.jsonl", '{"body": "One. Two."}\n{"body": "x"}\n{"body": "One. Two."}\n')
    plain = written(tmp_path / "b.txt", "Three.")
    app(["data", "stats", str(path), "--field", "body", "--json"], standalone_mode=False)
    result = json.loads(capsys.readouterr().out)
    assert result["documents"] == 3 and result["duplicate_documents"]["share"] == pytest.approx(1 / 3)
    app(
        ["data", "stats", str(path), str(plain), "field=body", "filter.duplicates=documents", "--json"],
        standalone_mode=False,
    )
    result = json.loads(capsys.readouterr().out)
    assert (result["files"], result["documents"], result["filtered"]) == (2, 3, {"duplicate documents": 1})
    app(["data", "stats", str(plain)], standalone_mode=False)
    out = capsys.readouterr()
    assert "documents  1" in out.out and "held-out text will be its end" in out.err
    for arguments, match in (
        (["field=text"], "no text: give files"),
        ([str(path), "filters.duplicates=lines"], "unknown key 'corpus.filters'.*did you mean 'filter'"),
        ([str(path), "--document", "lines"], "corpus.document='lines'"),
        ([str(tmp_path / "c.txt")], "no such corpus file"),
    ):
        with pytest.raises(UserError, match=match):
            app(["data", "stats", *arguments], standalone_mode=False)


def test_the_verb_loads_no_torch(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "One. Two.\n")
    code = (
        "import sys\nfrom unmask.cli import app\n"
        f"app(['data', 'stats', {str(path)!r}], standalone_mode=False)\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'pyarrow', 'datasets', 'transformers', 'jieba')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
