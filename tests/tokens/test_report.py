"""The report: numbers by hand, by brute force and by the library; the same for every reader of the same text."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from typer.testing import CliRunner

from unmask.cli import app
from unmask.config import TokenizerConfig
from unmask.errors import UserError
from unmask.text.characters import word_spans
from unmask.tokens.probes import FREQUENT, frequent, grid, misspelt, numbers, tokens_by_merges
from unmask.tokens.report import LIMIT, Report, Row, picture, report
from unmask.tokens.tokenizer import Tokenizer


def prose(characters: int = 30_000) -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(text for _, text in sorted(topics.items()))[:characters]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """English prose with what is hard: accents, ligatures, Chinese, an emoji, control strings, odd blanks."""
    path = tmp_path_factory.mktemp("report") / "prose.jsonl"
    hard = ["naïve café ﬁne", "我今天去了商店。", "a  b\t\tc 😀!!! d", "[MASK] <|endoftext|> [UNK] x_y 3.14"]
    lines = [json.dumps({"text": t}) for t in [*prose().split("\n\n"), *hard] if t.strip()]
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def trained(text: str) -> dict[str, Tokenizer]:
    sizes = {"bbpe": 800, "wordpiece": 800, "char": 500, "byte": 500, "word": 900, "bpe": 800, "unigram": 800}
    texts = documents(text)
    return {k: Tokenizer.train(TokenizerConfig(type=k, vocab_size=n), texts) for k, n in sizes.items()}  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def result(text: str, trained: dict[str, Tokenizer]) -> Report:
    return report(text, trained, context=100)


def documents(path: str) -> list[str]:
    return [json.loads(line)["text"] for line in Path(path).read_text(encoding="utf-8").splitlines()]


def write(folder: Path, *lines: str) -> str:
    path = folder / "text.jsonl"
    path.write_text("\n".join(json.dumps({"text": line}) for line in lines), encoding="utf-8")
    return str(path)


# ---------------------------------------------------------------- by hand


def test_numbers_by_hand(tmp_path: Path) -> None:
    """Two documents of 4 and 3 words. The vocabulary holds all but "hat": 6 of 7 words, 16 of 19 visible characters."""
    path = write(tmp_path, "the cat sat.", "the mad hat")
    vocab = TokenizerConfig(type="word", vocab_size=20, sentinels=0, min_frequency=1)
    tokenizer = Tokenizer.train(vocab, ["the cat sat. mad dog"])
    row = report(path, {"word": tokenizer}, context=3, hidden_size=10, num_layers=2).tokenizers[0]
    about = report(path, {"word": tokenizer}).text
    assert (about.documents, about.bytes, about.characters, about.words) == (2, 23, 23, 7)
    assert (row.tokens, row.fertility, row.bytes_per_token) == (7, 1.0, 23 / 7)
    assert row.whole_words == 6 / 7 and row.unknown_tokens == 1 / 7
    assert row.lost_characters == 3 / 19
    assert row.vocabulary_used == 5 / 6  # the, cat, sat, ., mad; not dog
    assert row.documents_fit == 0.5 and row.documents_per_context == 3 / 3.5
    size = tokenizer.vocabulary.size
    assert row.embedding_parameters == 10 * size and row.embedding_share == 10 * size / (10 * size + 12 * 2 * 100)
    assert row.exact_documents == 0.5 and row.difference == ("the mad hat", "the mad [UNK]")


def test_characters_give_the_longest_sequence_and_the_first_tokenizer_is_the_measure(tmp_path: Path) -> None:
    path = write(tmp_path, "ab ab", "ab")
    word, char = (
        Tokenizer.train(TokenizerConfig(type=k, vocab_size=120, min_frequency=1), ["ab ab"]) for k in ("word", "char")
    )
    rows = report(path, {"word": word, "char": char}).tokenizers
    assert [r.tokens for r in rows] == [3, 7]
    assert [r.length_ratio for r in rows] == [1, 7 / 3] and rows[1].attention_ratio == pytest.approx(49 / 9)
    assert rows[1].whole_words == 0 and rows[1].exact_documents == 1 and rows[1].losses  # the blank is kept
    turned = report(path, {"char": char, "word": word}).tokenizers
    assert turned[1].length_ratio == pytest.approx(3 / 7)


def test_words_of_a_text() -> None:
    def words(text: str) -> list[str]:
        return [text[a:b] for a, b in word_spans(text).tolist()]

    assert words("father-in-law don't x_1  ü\n") == ["father", "-", "in", "-", "law", "don", "'", "t", "x_1", "ü"]
    assert words("我今天 went") == ["我", "今", "天", "went"]
    assert words("हिन्दी") == ["हिन्दी"]  # vowel signs are marks, and part of the word


# ---------------------------------------------------------------- by brute force


@pytest.mark.parametrize("kind", ["bbpe", "wordpiece", "char", "byte", "word", "bpe", "unigram"])
def test_counts_equal_brute_force(kind: str, text: str, trained: dict[str, Tokenizer], result: Report) -> None:
    tokenizer, texts = trained[kind], documents(text)
    row = next(r for r in result.tokenizers if r.name == kind)
    tokens = [tokenizer.encode(t).tolist() for t in texts]
    flat = [i for ids in tokens for i in ids]
    unk = tokenizer.vocabulary.unk
    assert row.tokens == len(flat)
    assert row.fertility == len(flat) / result.text.words
    assert row.unknown_tokens == flat.count(unk) / len(flat)
    assert row.vocabulary_used == len(set(flat) & set(tokenizer.vocabulary.ordinary.tolist())) / len(
        tokenizer.vocabulary.ordinary
    )
    assert row.documents_fit == sum(len(t) <= 100 for t in tokens) / len(texts)
    exact = [tokenizer.decode(ids, skip_special=False) == t for ids, t in zip(tokens, texts, strict=True)]
    assert row.exact_documents == sum(exact) / len(texts)
    assert (row.difference is None) == all(exact)
    assert tokenizer.losses or all(exact)
    whole, visible, lost = 0, 0, 0
    for document, aligned in zip(texts, tokenizer.encode_aligned(texts), strict=True):
        spans = list(zip(aligned.ids.tolist(), aligned.begin.tolist(), aligned.end.tolist(), strict=True))
        held = Counter(c for i, a, b in spans if i != unk for c in range(a, b))
        visible += sum(not c.isspace() for c in document)
        lost += sum(not c.isspace() and k not in held for k, c in enumerate(document))
        for a, b in word_spans(document).tolist():
            inner = any(a < begin < b for _, begin, end in spans if end > begin)
            whole += not inner and all(held[c] == 1 for c in range(a, b))
    assert row.lost_characters == lost / visible
    assert row.whole_words == whole / result.text.words


def test_what_each_type_is_known_for(result: Report) -> None:
    row = {r.name: r for r in result.tokenizers}
    assert row["byte"].bytes_per_token == 1 and row["char"].characters_per_token == 1
    assert row["byte"].exact_documents == row["bbpe"].exact_documents == 1.0
    assert row["byte"].lost_characters == row["bbpe"].lost_characters == row["byte"].unknown_tokens == 0
    assert 0.99 < row["word"].fertility < 1 and row["word"].unknown_tokens > row["wordpiece"].unknown_tokens
    assert row["wordpiece"].exact_documents < 1 and "white space" in "; ".join(row["wordpiece"].losses)
    assert row["byte"].tokens > row["char"].tokens > row["bbpe"].tokens > row["word"].tokens
    for r in row.values():
        assert 0 < r.whole_words < 1 and 0 < r.vocabulary_used <= 1 and r.megabytes_per_second > 0


def test_d22_start_and_end_tokens_of_the_file_change_no_number(
    tmp_path: Path, text: str, trained: dict[str, Tokenizer]
) -> None:
    for kind, around in (("bbpe", ("bos", "eos")), ("wordpiece", ("cls", "sep")), ("unigram", (None, "eos"))):
        tokenizer = trained[kind]
        tokenizer.save(tmp_path / kind / "plain.json")
        tokenizer.save_hf(tmp_path / kind / "added", around)  # type: ignore[arg-type]
        added = tokenizers.Tokenizer.from_file(str(tmp_path / kind / "added" / "tokenizer.json"))
        assert len(added.encode("word").ids) > len(added.encode("word", add_special_tokens=False).ids)
        rows = report(text, [str(tmp_path / kind / "plain.json"), str(tmp_path / kind / "added")]).tokenizers
        assert [r.name for r in rows] == ["plain", "added"]
        plain, with_tokens = (dataclasses.replace(r, name="", megabytes_per_second=0) for r in rows)
        assert plain == with_tokens and plain.fertility > 1


def test_the_same_whatever_the_size_of_the_groups(
    text: str, trained: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {k: trained[k] for k in ("bbpe", "wordpiece")}
    whole = report(text, some).tokenizers
    monkeypatch.setattr("unmask.tokens.report.GROUP", 500)
    for a, b in zip(whole, report(text, some).tokenizers, strict=True):
        assert dataclasses.replace(a, megabytes_per_second=0) == dataclasses.replace(b, megabytes_per_second=0)


# ---------------------------------------------------------------- probes


def known_numbers() -> Tokenizer:
    """Bytes with three merges: 1|0, 4|5 and 10|7."""
    spec = Tokenizer.train(TokenizerConfig(type="bbpe", vocab_size=363), [""" x y """]).spec
    assert not spec["model"]["merges"]
    vocab = spec["model"]["vocab"]
    merges = [["1", "0"], ["4", "5"], ["10", "7"]]
    more = {a + b: max(vocab.values()) + 1000 + k for k, (a, b) in enumerate(merges)}
    return Tokenizer(json.dumps({**spec, "model": {**spec["model"], "vocab": {**vocab, **more}, "merges": merges}}))


def test_numbers_are_cut_as_counted_by_hand() -> None:
    found = numbers(known_numbers())
    assert found.examples["107"] == ["107"] and found.examples["45"] == ["45"] and found.examples["137"] == list("137")
    one = 10 + 2 + 1  # the digits; 10 and 45; 107
    ten = 10 - 1 + 9  # 10x but 107; x10 but 110 cuts as 1|10, the leftmost pair being 11
    forty_five = 9  # x45 (45x are 10 more)
    two = 88 + ten + forty_five + 10
    assert found.tokens == {1: one, 2: two, 3: 1000 - one - two}
    assert found.cuts == {
        "1": 10,
        "2": 2,
        "3": 1,
        "1+1": 88,
        "1+2": 18,
        "2+1": 19,
        "1+1+1": 1000 - 10 - 2 - 1 - 88 - 37,
    }
    assert found.aligned == (88 + found.cuts["1+1+1"]) / 990 and found.unknown == 0


def test_digits_split_are_aligned_and_lost_digits_are_unknown(trained: dict[str, Tokenizer]) -> None:
    split = Tokenizer.train(TokenizerConfig(type="bbpe", vocab_size=500, digits="split"), ["107 107 137 137 45 45"] * 9)
    found = numbers(split)
    assert found.tokens == {1: 10, 2: 90, 3: 900} and found.aligned == 1.0
    none = Tokenizer.train(TokenizerConfig(type="word", vocab_size=200, min_frequency=1), ["a b 7"])
    found = numbers(none)
    assert found.tokens == {1: 1} and found.unknown == 999 and found.examples["45"] == ["?"]
    for name, tokenizer in trained.items():
        found = numbers(tokenizer)
        assert sum(found.tokens.values()) + found.unknown == 1000, name
        assert sum(found.cuts.values()) == sum(found.tokens.values())


def test_a_misspelling_swaps_two_inner_letters_the_same_way_every_time() -> None:
    words = [w for w in set(prose().split()) if w.isalpha() and len(w) >= 5]
    for word in words:
        wrong = misspelt(word)
        assert wrong == misspelt(word)
        if wrong is not None:
            changed = [i for i, (a, b) in enumerate(zip(word, wrong, strict=True)) if a != b]
            assert len(changed) == 2 and changed[1] == changed[0] + 1
            assert changed[0] > 0 and changed[1] < len(word) - 1 and sorted(word) == sorted(wrong)
    places = Counter(
        next(i for i, (a, b) in enumerate(zip(w, misspelt(w) or w, strict=True)) if a != b)
        for w in words
        if len(set(w)) == len(w) == 7
    )
    assert set(places) == {1, 2, 3, 4}  # any inner pair is swapped


def test_misspellings_by_type(result: Report, text: str, trained: dict[str, Tokenizer]) -> None:
    row = {r.name: r.misspellings for r in result.tokenizers}
    for found in row.values():
        assert found is not None and found.words <= FREQUENT and found.words > 100
        assert found.tokens_after >= found.tokens_before
    assert row["char"].shared == row["byte"].shared == 1.0 and row["char"].unknown == 0  # type: ignore[union-attr]
    assert row["word"].unknown > 0.9 and row["word"].tokens_after == 1  # type: ignore[union-attr]
    bbpe = row["bbpe"]
    assert bbpe is not None and bbpe.shared < 0.7 and bbpe.tokens_after > 1.3 * bbpe.tokens_before
    words = Counter(document[a:b] for document in documents(text) for a, b in word_spans(document).tolist())
    assert [e.right for e in bbpe.examples] == frequent(words)[:3]
    for example in bbpe.examples:
        for word, pieces in ((example.right, example.right_tokens), (example.wrong, example.wrong_tokens)):
            assert "".join(pieces) == f" {word}"
            assert pieces == [trained["bbpe"].token(i) for i in trained["bbpe"].encode(f"a {word}")[1:]]


def merged(word: list[str], merges: list[tuple[str, str]]) -> list[str]:
    """BPE by its definition: the merges one after the other, each from left to right."""
    for pair in merges:
        i = 0
        while i < len(word) - 1:
            if (word[i], word[i + 1]) == pair:
                word[i : i + 2] = ["".join(pair)]
            i += 1
    return word


@pytest.mark.parametrize("kind", ["bbpe", "bpe"])
def test_length_against_merges_equals_merging_by_hand(kind: str, text: str, trained: dict[str, Tokenizer]) -> None:
    tokenizer, texts = trained[kind], documents(text)[:12]
    found = tokens_by_merges(tokenizer, texts)
    assert found is not None
    merges = [(a, b) for a, b in tokenizer.spec["model"]["merges"]]
    assert [k for k, _ in found] == list(grid(len(merges)))
    assert found[-1][1] == sum(map(len, tokenizer.encode_batch(texts)))
    reference = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.spec))
    normal, before = reference.normalizer, reference.pre_tokenizer
    pieces = [
        list(piece)
        for t in texts
        for piece, _ in before.pre_tokenize_str(t if normal is None else normal.normalize_str(t))
    ]
    for k, tokens in found[:8]:
        assert tokens == sum(len(merged(list(p), merges[:k])) for p in pieces)


def test_merges_are_not_defined_where_there_are_none(result: Report) -> None:
    row = {r.name: r.tokens_by_merges for r in result.tokenizers}
    assert all(row[k] is None for k in ("wordpiece", "unigram", "char", "byte", "word"))
    counts = [tokens for _, tokens in row["bbpe"] or []]
    assert counts == sorted(counts, reverse=True) and counts[0] > 2 * counts[-1]


# ---------------------------------------------------------------- text and names


def test_only_the_beginning_is_read_and_the_report_says_so(tmp_path: Path) -> None:
    path = write(tmp_path, "aa bb", "cc dd", "ee ff")
    tokenizer = Tokenizer.train(TokenizerConfig(type="byte", vocab_size=400), [])
    for limit, size, whole in ((15, 15, True), (14, 10, False), (5, 5, False), (4, 2, False), (1, 1, False)):
        about = report(path, {"byte": tokenizer}, limit=limit).text
        assert (about.bytes, about.whole) == (size, whole)
    with pytest.raises(UserError, match="limit=0"):
        report(path, {"byte": tokenizer}, limit=0)


def test_what_was_no_text_is_said(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes("caf\xe9 x".encode("latin-1"))
    told: list[str] = []
    report(str(path), ["byte:400"], say=told.append)
    assert any("1 invalid byte" in sentence for sentence in told)
    done = run("train", str(path), "--out", str(tmp_path / "t.json"), "--vocab-size", "500")
    assert "1 invalid byte" in done.stderr and "invalid" not in done.stdout


def test_a_long_first_document_is_cut_between_characters(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(type="byte", vocab_size=400), [])
    about = report(write(tmp_path, "文" * 10), {"byte": tokenizer}, limit=10).text
    assert (about.bytes, about.characters, about.documents) == (9, 3, 1)


def test_tokenizers_are_files_directories_or_types_and_keep_their_names_apart(
    tmp_path: Path, text: str, trained: dict[str, Tokenizer]
) -> None:
    for place in ("a/tokenizer.json", "b/one.json", "c/one.json"):
        trained["bbpe"].save(tmp_path / place)
    given = [*(str(tmp_path / p) for p in ("a", "a/tokenizer.json", "b/one.json", "c/one.json")), "bbpe:700"]
    told: list[str] = []
    rows = report(text, given, limit=3000, say=told.append).tokenizers
    assert [r.name for r in rows] == ["a", given[1], "one", given[3], "bbpe:700"]
    assert rows[-1].vocab_size <= 700 and rows[0].vocab_size == trained["bbpe"].vocabulary.size
    assert told[0] == "training bbpe:700" and told[-1] == "measuring bbpe:700"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["gone.json"], "gone.json is neither a file"),
        (["bbqe:100"], "did you mean 'bbpe'"),
        (["bbpe:many"], "bbpe:many"),
        (["bbpe:10"], "too small"),
        ([], "at least one tokenizer"),
    ],
)
def test_bad_tokenizers_are_one_sentence(given: list[str], says: str, text: str) -> None:
    with pytest.raises(UserError, match=says):
        report(text, given)


# ---------------------------------------------------------------- the verbs and the picture


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["tokenizer", *words], catch_exceptions=True)


def test_the_verb_prints_a_table_json_and_a_picture(tmp_path: Path, text: str, trained: dict[str, Tokenizer]) -> None:
    paths = []
    for kind in ("bbpe", "word"):
        trained[kind].save(tmp_path / f"{kind}.json")
        paths.append(str(tmp_path / f"{kind}.json"))
    drawn = tmp_path / "pictures" / "report.svg"
    table = run("report", text, *paths, "--context", "64", "--picture", str(drawn))
    assert table.exit_code == 0, table.output
    result = report(text, paths, context=64)
    for row in result.tokenizers:
        for value in (row.name, f"{row.tokens:,}", f"{row.fertility:.2f}", f"{row.whole_words:.1%}"):
            assert value in table.stdout, value
    assert "documents within 64 tokens" in table.stdout and "gives up: nothing" in table.stdout
    shown = {e.text for e in ET.parse(drawn).getroot().iter("{http://www.w3.org/2000/svg}text")}
    assert {"bbpe", "word", f"{result.tokenizers[0].bytes_per_token:.4g}", "first merges that are made"} <= shown
    printed = run("report", text, *paths, "--context", "64", "--json")
    value = json.loads(printed.stdout)
    row = value["tokenizers"][0]
    assert set(row) == {f.name for f in dataclasses.fields(Row)}
    assert row["tokens"] == result.tokenizers[0].tokens and row["numbers"]["tokens"].keys() <= {"1", "2", "3"}
    assert value["text"]["whole"] is True and value["context"] == 64 and "words" in value["definitions"]


def test_options_mean_what_the_function_means() -> None:
    told = run("report", "--help").stdout
    assert f"{LIMIT}" in told and "--field" in told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "{text}", "--out", "{out}", "--type", "bppe"], "--type bppe: .*did you mean 'bpe'|'bbpe'"),
        (["train", "{text}", "--out", "{out}", "--split", "gpt3"], "--split gpt3: .*did you mean 'gpt2'"),
        (["train", "{text}", "--out", "{out}", "--vocab-size", "1"], "--vocab-size 1"),
        (["train", "{text}", "--out", "{out}", "--document", "regex"], "separator"),
        (["train", "gone.txt", "--out", "{out}"], "gone.txt"),
        (["train", "gone.txt", "--out", "{out}", "--type", "byte"], "gone.txt"),
        (["report", "{text}", "gone.json"], "gone.json"),
        (["report", "{text}", "bbpe", "--document", "words"], "--document words"),
    ],
)
def test_bad_options_are_one_sentence(words: list[str], says: str, text: str, tmp_path: Path) -> None:
    done = run(*(w.format(text=text, out=tmp_path / "t.json") for w in words))
    assert isinstance(done.exception, UserError)
    with pytest.raises(UserError, match=says):
        raise done.exception
    assert not (tmp_path / "t.json").exists()


def test_train_takes_every_setting_and_says_what_came_of_it(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes("café 107\ncafé 137\n\ncafé 107\n".encode("cp1252"))
    out = str(tmp_path / "t.json")
    options = ["--type", "word", "--vocab-size", "30", "--sentinels", "2", "--min-frequency", "2", "--lowercase"]
    done = run("train", str(path), "--out", out, *options, "--encoding", "cp1252", "--document", "line", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    tokenizer = Tokenizer.load(out)
    assert told["out"] == out and told["type"] == "word" and told["vocab_size"] == tokenizer.vocabulary.size
    assert told["lost"] == tokenizer.losses and told["fingerprint"] == tokenizer.fingerprint
    assert told["seconds"] > 0 and told["peak_memory_bytes"] > 10_000_000
    names = {tokenizer.token(i) for i in range(tokenizer.vocabulary.size)}
    assert {"café", "107", "<extra_id_1>"} <= names and not names & {"137", "<extra_id_2>"}
    line = run("train", str(path), "--out", out, *options).stdout
    assert line.startswith(f"{out}: word, ") and "entries; lost: case is folded" in line and "MB peak memory" in line


def test_neither_verb_imports_torch(tmp_path: Path, text: str) -> None:
    code = (
        "import sys; from unmask.cli import app\n"
        f"for words in (['train', {text!r}, '--out', 't.json', '--vocab-size', '500'],\n"
        f"              ['report', {text!r}, 't.json', '--limit', '9000', '--picture', 'r.svg']):\n"
        "    app(['tokenizer', *words], standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'datasets', 'pyarrow', 'jieba'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "t.json").exists() and (tmp_path / "r.svg").exists()


def test_a_picture_holds_every_tokenizer(result: Report) -> None:
    root = ET.fromstring(picture(result))
    shown = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    for row in result.tokenizers:
        assert row.name in shown and f"{row.fertility:.4g}" in shown
    lines = [e for e in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert len(lines) == sum(len(r.tokens_by_merges or []) - bool(r.tokens_by_merges) for r in result.tokenizers)


# ---------------------------------------------------------------- real vocabularies


@pytest.mark.shared
def test_gpt2_equals_the_library(shared_data: Path) -> None:
    """Counts of GPT-2's own file: every number from 0 to 999 in running text, and the tokens of Wikipedia text."""
    folder = shared_data / "tokenizers" / "gpt2"
    row = report(str(shared_data / "enwiki2015" / "dev.jsonl.gz"), [str(folder)], limit=100_000).tokenizers[0]
    vocab = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    lines = (folder / "vocab.bpe").read_text(encoding="utf-8").splitlines()[1:]
    reference = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [tuple(x.split()) for x in lines if x]))
    reference.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    lengths = Counter(len(reference.encode(f"a {n}").ids) - 1 for n in range(1000))
    assert row.numbers.tokens == dict(sorted(lengths.items()))
    assert (row.name, row.type, row.vocab_size) == ("gpt2", "bbpe", 50_257)
    assert row.exact_documents == 1.0 and row.unknown_tokens == row.lost_characters == 0
    assert row.embedding_share == pytest.approx(50_257 * 768 / (50_257 * 768 + 12 * 12 * 768**2))
    assert row.tokens_by_merges is not None and row.tokens_by_merges[-1][0] == 50_000
    assert 1 < row.fertility < 1.3 and 4 < row.bytes_per_token < 5


def test_arrays_stay_small(text: str, trained: dict[str, Tokenizer]) -> None:
    """Nothing in a report is an array: it is JSON as it stands."""
    for value in json.loads(json.dumps(dataclasses.asdict(report(text, trained, limit=2000))))["tokenizers"]:
        assert not any(isinstance(v, np.ndarray) for v in value.values())
