from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from unmask.config import CorpusConfig
from unmask.data.corpus import Counts, Document, files, read, split, well_formed
from unmask.errors import UserError


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
    for name, content in others.items():
        path = written(tmp_path / f"{name}.txt", content)
        packed = written(tmp_path / f"{name}.txt.gz", gzip.compress(content))
        for mode in ("file", "line", "blank_line"):
            assert texts(path, document=mode) == texts(packed, document=mode) == texts(plain, document=mode)
    lines = b"\xef\xbb\xbf" + b'{"text": "a\\r\\nb"}\r\n'
    assert texts(written(tmp_path / "a.jsonl", lines)) == ["a\nb"]


# ---------------------------------------------------------------- files


def test_directories_and_globs_are_sorted(tmp_path: Path) -> None:
    for name in ("b.txt", "a.jsonl", "sub/c.txt.gz", ".hidden/d.txt", "NOTE.md", "e.MD"):
        content = b'{"text": "j"}' if "jsonl" in name else name.encode()
        written(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
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


# ---------------------------------------------------------------- bad input: one sentence that says where


def refused(path: Path | str, match: str, **settings: object) -> None:
    with pytest.raises(UserError, match=match):
        list(read(CorpusConfig(path=str(path), **settings)))


def test_d08_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = written(tmp_path / "latin.txt", b"abc\ncaf\xe9 \xff\xfe.\n")
    counts = Counts()
    assert texts(path, counts) == ["abc\ncaf\ufffd \ufffd\ufffd.\n"]
    assert counts.invalid == 3
    refused(path, r"latin\.txt is not UTF-8 at byte 7;", strict=True)


def test_refusals_name_the_file(tmp_path: Path) -> None:
    written(tmp_path / "input.txt", "a")
    refused(tmp_path / "imput.txt", "no such corpus file.*did you mean 'input.txt'")
    refused(tmp_path / "no*.txt", "no file matches")
    refused(written(tmp_path / "e.txt", " \n"), r"has no text \(1 files, 1 empty")
    refused(written(tmp_path / "b.bin", b"\x89PNG\r\n\x00\x00"), "is a binary file")
    refused(written(tmp_path / "d.pdf", b"%PDF-1.7 text"), "is a binary file")
    refused(written(tmp_path / "z.txt", gzip.compress(b"x")), "is a binary file.*gz")
    refused(written(tmp_path / "z.gz", b"not gzip"), "no whole gzip file")
    refused(written(tmp_path / "cut.txt.gz", gzip.compress(b"abc" * 999)[:-9]), "no whole gzip file")
    written(tmp_path / "md" / "a.md", "x")
    refused(tmp_path / "md", r"holds no \.txt.*glob such as")
    refused(tmp_path / "input.txt", "no regular expression", document="regex", separator="(")


def test_refusals_of_json_name_the_line(tmp_path: Path) -> None:
    good = '{"text": "a"}\n'
    refused(written(tmp_path / "a.jsonl", good + '{"txt": "a"}'), r"a\.jsonl:2 has no key 'text'.*did you mean 'txt'")
    refused(written(tmp_path / "b.jsonl", good + "{oops"), r"b\.jsonl:2 is no valid JSON")
    refused(written(tmp_path / "c.jsonl", "[1]"), r"c\.jsonl:1 holds a list")
    refused(written(tmp_path / "d.jsonl", '{"text": 3}'), r"d\.jsonl:1.*holds a int")
    assert texts(written(tmp_path / "e.jsonl", '{"body": "x"}'), field="body") == ["x"]


# ---------------------------------------------------------------- train and held-out


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
