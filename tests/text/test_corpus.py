from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from unmask.config import CorpusConfig, SourceConfig, TokenizerConfig
from unmask.data.prepare import prepare
from unmask.errors import UserError
from unmask.text.corpus import Counts, content, files, read, well_formed
from unmask.tokens.tokenizer import Tokenizer


def texts(path: Path, counts: Counts | None = None, **settings: object) -> list[str]:
    return [d.text for d in read(CorpusConfig(path=str(path), **settings), counts)]


def written(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# ---------------------------------------------------------------- what a document is


def test_document_modes(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "one\ntwo\n\n= x =\nthree\n")
    assert texts(path) == texts(path, document="file") == ["one\ntwo\n\n= x =\nthree\n"]
    assert texts(path, document="line") == ["one", "two", "= x =", "three"]
    assert texts(path, document="blank_line") == ["one\ntwo", "= x =\nthree"]
    assert texts(path, document="regex", separator=r"^= (\w) =\n") == ["one\ntwo\n\n", "three\n"]
    config = CorpusConfig(path=str(path), document="blank_line")
    assert [d.where for d in read(config)] == [f"{path}:1", f"{path}:4"]
    config = CorpusConfig(path=str(path), document="regex", separator="^= x =$")
    assert [d.where for d in read(config)] == [f"{path}:1", f"{path}:4"]


def test_json_lines(tmp_path: Path) -> None:
    rows = [{"text": "a\n\nb", "id": 1}, {"text": "c", "body": "d"}]
    path = written(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    assert texts(path) == texts(path, document="line") == texts(path, document="file") == ["a\n\nb", "c"]
    assert texts(path, document="blank_line") == ["a", "b", "c"]
    assert [d.where for d in read(CorpusConfig(path=str(path)))] == [f"{path}:1", f"{path}:2"]


def test_gzip_reads_the_same(tmp_path: Path) -> None:
    written(tmp_path / "a.txt.gz", gzip.compress(b"one\n\ntwo"))
    written(tmp_path / "a.jsonl.gz", gzip.compress(b'{"text": "x"}\n'))
    assert texts(tmp_path / "a.txt.gz", document="blank_line") == ["one", "two"]
    assert texts(tmp_path / "a.jsonl.gz") == ["x"]


def test_d05_blank_lines_in_every_shape_part_the_same_documents(tmp_path: Path) -> None:
    shapes = ["a b\n\nc\nd\n", "a b\n   \nc\nd\n", "a b\n\n \n\t\n\nc\nd\n", "\n\n \na b\n\nc\nd\n\n\n", "a b\n\nc\nd"]
    for i, shape in enumerate(shapes):
        counts = Counts()
        path = written(tmp_path / f"{i}.txt", shape)
        assert texts(path, counts, document="blank_line") == ["a b", "c\nd"]
        assert counts.documents == 2 and counts.empty == [0, 0, 3, 4, 0][i]
        assert texts(path, document="line") == ["a b", "c", "d"]


def test_d09_byte_order_marks_and_windows_lines(tmp_path: Path) -> None:
    text = "naïve\n\ncafé 😀\nx\n"
    plain = written(tmp_path / "a.txt", text)
    windows = text.replace("\n", "\r\n")
    others = {
        "bom": b"\xef\xbb\xbf" + windows.encode(),
        "utf16": windows.encode("utf-16"),
        "utf16be": b"\xfe\xff" + text.encode("utf-16-be"),
        "utf32": text.encode("utf-32"),
    }
    for name, raw in others.items():
        path = written(tmp_path / f"{name}.txt", raw)
        packed = written(tmp_path / f"{name}.txt.gz", gzip.compress(raw))
        for mode in ("file", "line", "blank_line"):
            assert texts(path, document=mode) == texts(packed, document=mode) == texts(plain, document=mode)
    lines = b"\xef\xbb\xbf" + b'{"text": "a\\r\\nb"}\r\n'
    assert texts(written(tmp_path / "a.jsonl", lines)) == ["a\nb"]


# ---------------------------------------------------------------- files


def test_directories_and_globs_are_sorted(tmp_path: Path) -> None:
    for name in ("b.txt", "a.jsonl", "sub/c.txt.gz", ".hidden/d.txt", "NOTE.md", "e.MD"):
        raw = b'{"text": "j"}' if "jsonl" in name else name.encode()
        written(tmp_path / name, gzip.compress(raw) if name.endswith("gz") else raw)
    counts = Counts()
    assert texts(tmp_path, counts) == ["j", "b.txt", "sub/c.txt.gz"]
    assert (counts.files, counts.documents, counts.bytes) == (3, 3, 18)
    assert texts(tmp_path / "*.[mM][dD]") == ["NOTE.md", "e.MD"]
    assert texts(tmp_path / "NOTE.md") == ["NOTE.md"]
    assert [p.name for p in files(CorpusConfig(path=str(tmp_path / "**/*.gz")))] == ["c.txt.gz"]


def test_counts(tmp_path: Path) -> None:
    rows = [{"text": "é"}, {"text": "  "}, {"text": ""}, {"text": "b\ud800"}]
    counts = Counts()
    path = written(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert texts(path, counts) == ["é", "b\ufffd"]
    assert counts == Counts(files=1, documents=2, bytes=2 + 4, empty=2, invalid=1)
    assert well_formed("\ud83d\ude00") == "😀"


def test_a_document_that_is_held_whole_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.txt", "é" * 30 + "\n\n" + "a" * 41)
    monkeypatch.setattr("unmask.text.document.LONG", 60)
    whole, parted = Counts(), Counts()
    texts(path, whole)
    texts(path, parted, document="blank_line")
    assert (whole.longest, parted.longest) == (103, 60) and parted.notes() == []
    assert "the longest document has 103 bytes and is held in memory whole" in whole.notes()[0]


# ---------------------------------------------------------------- bad input: one sentence that says where


def refused(path: Path | str, match: str, **settings: object) -> None:
    with pytest.raises(UserError, match=match):
        list(read(CorpusConfig(path=str(path), **settings)))


def test_d08_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = written(tmp_path / "latin.txt", b"abc\ncaf\xe9 \xff\xfe.\n")
    counts = Counts()
    assert texts(path, counts) == ["abc\ncaf\ufffd \ufffd\ufffd.\n"]
    assert counts.invalid == 3 and counts.first_invalid == f"{path} line 2, byte offset 7"
    refused(path, r"latin\.txt line 2, byte offset 7 is not UTF-8: pass encoding=cp1252", strict=True)


def test_d08_a_cp1252_file_passes_every_reader_with_its_encoding(tmp_path: Path) -> None:
    text = "".join(f"Le café n° {i} est fermé, dit “René”.\n\n" for i in range(40))
    path = written(tmp_path / "a.txt", text.encode("cp1252"))
    plain = written(tmp_path / "b.txt", text)
    counts = Counts()
    assert all("\ufffd" in t for t in texts(path, counts, document="blank_line"))
    assert counts.looks_like == "cp1252" and counts.first_invalid.endswith("line 1, byte offset 6")
    (note,) = counts.notes()
    assert "240 invalid bytes became U+FFFD" in note and "corpus.encoding=cp1252" in note
    for encoding in ("cp1252", "windows-1252", "detect"):
        assert texts(path, document="blank_line", encoding=encoding) == texts(plain, document="blank_line")
    trained = [
        Tokenizer.train(TokenizerConfig(type="char", vocab_size=64, sentinels=0), iter(texts(p, encoding=e)))
        for p, e in ((path, "cp1252"), (plain, "utf-8"))
    ]
    assert trained[0].fingerprint == trained[1].fingerprint and len(trained[0].encode("é“")) == 2
    corpora = [
        CorpusConfig(path=str(p), encoding=e, document="blank_line") for p, e in ((path, "cp1252"), (plain, "utf-8"))
    ]
    one, other = (prepare(c, None, trained[0], tmp_path / "cache", lambda _: None) for c in corpora)
    assert np.array_equal(one.train.tokens, other.train.tokens) and len(one.train) == len(other.train) > 20


def test_records_with_an_encoding(tmp_path: Path) -> None:
    line = json.dumps({"text": "Überraschung für größere Häuser"}, ensure_ascii=False)
    path = written(tmp_path / "a.jsonl", f"{line}\n".encode("latin-1"))
    assert texts(path, encoding="latin-1") == ["Überraschung für größere Häuser"]
    refused(path, "encoding=utf8x is no text encoding.*did you mean 'utf8'", encoding="utf8x")
    refused(path, "encoding=rot13 is no text encoding", encoding="rot13")


def test_refusals_name_the_file(tmp_path: Path) -> None:
    written(tmp_path / "input.txt", "a")
    refused(tmp_path / "imput.txt", "no such corpus file.*did you mean 'input.txt'")
    refused(tmp_path / "Input.txt.gz", "did you mean 'input.txt'")
    (tmp_path / "o").mkdir()
    for far in ("o.txt", "my.txt", "out.txt", "text.txt"):  # the ending is all that they share
        refused(tmp_path / far, f"no such corpus file: .*{far}$")
    refused(tmp_path / "none" / "input.txt", r"none/input\.txt$")
    refused(tmp_path / "no*.txt", "no file matches")
    refused(written(tmp_path / "e.txt", " \n"), r"has no text \(1 files, 1 empty")
    refused(written(tmp_path / "b.bin", b"\x89PNG\r\n\x00\x00"), "is a binary file")
    refused(written(tmp_path / "d.pdf", b"%PDF-1.7 text"), "is a binary file")
    refused(written(tmp_path / "z.txt", gzip.compress(b"x")), "is a binary file.*gz")
    refused(written(tmp_path / "z.gz", b"not gzip"), "no whole gzip file")
    refused(written(tmp_path / "cut.txt.gz", gzip.compress(b"abc" * 999)[:-9]), "no whole gzip file")
    written(tmp_path / "md" / "a.md", "x")
    refused(tmp_path / "md", r"holds no \.txt.*glob such as")
    (tmp_path / "nothing").mkdir()
    refused(tmp_path / "nothing", r"holds no \.txt.*\.parquet file$")
    refused("wikimedia/wikipedia", "no such corpus file: wikimedia/wikipedia; a name on the hub is given as hf:wiki")
    refused(tmp_path / "input.txt", "plain text, which has no key 'ents'", spans="ents")
    refused(written(tmp_path / "a.json", "[]"), "a .json file is not read as text")
    with pytest.raises(UserError, match="the corpus has no path"):
        list(read(SourceConfig()))
    refused(tmp_path / "input.txt", "no regular expression", document="regex", separator="(")


def test_refusals_of_json_name_the_line(tmp_path: Path) -> None:
    good = '{"text": "a"}\n'
    refused(written(tmp_path / "a.jsonl", good + '{"txt": "a"}'), r"a\.jsonl:2 has no key 'text'.*did you mean 'txt'")
    refused(written(tmp_path / "b.jsonl", good + "{oops"), r"b\.jsonl:2 is no valid JSON")
    refused(written(tmp_path / "c.jsonl", "[1]"), r"c\.jsonl:1 holds a list")
    refused(written(tmp_path / "d.jsonl", '{"text": 3}'), r"d\.jsonl:1.*holds a int")
    assert texts(written(tmp_path / "e.jsonl", '{"body": "x"}'), field="body") == ["x"]
    counts = Counts()
    assert texts(written(tmp_path / "f.jsonl", good + '{"text": null}'), counts) == ["a"] and counts.empty == 1
    refused(written(tmp_path / "g.jsonl", "[" * 100_000), r"g\.jsonl:1 is no valid JSON")
    refused(written(tmp_path / "h.jsonl", '{"text": "\\ud800"}'), r"h\.jsonl:1 holds half a surrogate", strict=True)


# ---------------------------------------------------------------- what a source depends on


def test_content_is_of_bytes_not_of_names(tmp_path: Path) -> None:
    config = SourceConfig(path=str(written(tmp_path / "a.txt", "one")))
    before = content(config)
    assert json.loads(json.dumps(before)) == before
    assert content(SourceConfig(path=str(written(tmp_path / "b.txt", "one")))) == before
    assert content(SourceConfig(path=str(written(tmp_path / "c.txt", "two")))) != before
    phrases = [written(tmp_path / f"{name}.lex", name) for name in "xy"]
    with_lexicon = [content(config.model_copy(update={"lexicon": str(p)})) for p in phrases]
    assert len({json.dumps(c) for c in [before, *with_lexicon]}) == 3
    assert content(config.model_copy(update={"words": "jieba"})) != before


# ---------------------------------------------------------------- memory of the real process


def peak(path: Path) -> float:
    """MiB that reading takes beyond what the process had before (VmHWM: ru_maxrss survives exec)."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom unmask.config import SourceConfig\n"
        "from unmask.text.corpus import read\n"
        "at = lambda: int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]) / 1024\n"
        "before = at()\n"
        "print(sum(len(d.text) for d in read(SourceConfig(path=sys.argv[1], document='line'))), at() - before)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    characters, grown = result.stdout.split()
    assert int(characters) >= 32 << 20
    return float(grown)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_long_line_takes_a_few_times_its_length(name: str, tmp_path: Path) -> None:
    line = "never a line end " * (2 << 20)  # 34 MB
    path = written(tmp_path / name, json.dumps({"text": line}) if name.endswith("jsonl") else line)
    grown = peak(path)
    assert len(line) / 2**20 < grown < 4 * len(line) / 2**20
    assert texts(path) == texts(path, document="line") == [line]


def test_a_large_plain_file_is_parted_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.text.corpus.LARGE", 100_000)
    monkeypatch.setattr("unmask.text.corpus.STRETCH", 2_000_000)
    text = "".join(f"line {i} é\n" for i in range(400_000))
    (tmp_path / "large.txt").write_text(text, encoding="utf-8")
    counts = Counts()
    documents = list(read(CorpusConfig(path=str(tmp_path / "large.txt")), counts))
    assert "".join(d.text for d in documents) == text and 2 <= len(documents) <= 3
    assert all(d.text.startswith(text.split("\n")[int(d.where.rsplit(":")[-1]) - 1]) for d in documents)
    assert counts.parted == 1 and "1 plain text file is beyond 64 MB" in " ".join(counts.notes())
    (whole,) = read(CorpusConfig(path=str(tmp_path / "large.txt"), document="file"))
    assert whole.text == text
