from __future__ import annotations

import codecs
import gzip
from pathlib import Path

import pytest

from unmask.errors import UserError
from unmask.text import textfile
from unmask.text.document import Counts
from unmask.text.encodings import guess
from unmask.text.textfile import lines, whole_text


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def got(path: Path, encoding: str = "utf-8", strict: bool = False, counts: Counts | None = None) -> list[str]:
    numbered = list(lines(path, encoding, strict, counts or Counts()))
    assert [n for n, _ in numbered] == list(range(1, len(numbered) + 1))
    return [line for _, line in numbered]


TEXT = "naïve “quotes”\n\ncafé 😀 日本\n \nlast"


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "gb18030", "utf-7"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_lines_are_those_of_the_whole_text_whatever_the_chunk(
    chunk: int, encoding: str, ends: str, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(textfile, "CHUNK", chunk)
    content = TEXT.replace("\n", ends).encode(encoding)
    path = written(tmp_path / ("a.txt.gz" if packed else "a.txt"), gzip.compress(content) if packed else content)
    assert got(path, encoding) == TEXT.split("\n")
    assert whole_text(path, encoding, True, Counts()) == TEXT


@pytest.mark.parametrize("mark", [codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE])
def test_d09_a_mark_decides_whatever_the_setting(mark: bytes, tmp_path: Path) -> None:
    name = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}.get(mark)
    path = written(tmp_path / "a.txt", mark + TEXT.encode(name or "utf-32-le"))
    counts = Counts()
    assert got(path, "cp1252", counts=counts) == TEXT.split("\n")
    assert counts.encodings == {name or "utf-32-le": 1}


def test_d09_wide_files_without_a_mark(tmp_path: Path) -> None:
    for name in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
        path = written(tmp_path / f"{name}.txt", TEXT.encode(name))
        with pytest.raises(UserError, match=f"looks like {name} without a byte-order mark: pass encoding={name}"):
            got(path)
        assert got(path, "detect") == got(path, name) == got(path, name[:6]) == TEXT.split("\n")
        chinese = written(tmp_path / "c.txt", "一一一，第一。\n".encode(name))  # 一 is U+4E00: a zero in the other half
        assert got(chinese, "detect") == ["一一一，第一。"]


def test_d09_marks_inside_joined_files(tmp_path: Path) -> None:
    """`cat a.txt b.txt` of files with marks."""
    path = written(tmp_path / "a.txt", b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\nth\xef\xbb\xbfree\n")
    assert got(path) == ["one", "two", "th\ufeffree"]
    wide = "\ufeffone\n".encode("utf-16-le") + "\ufefftwo\n".encode("utf-16-le")
    assert got(written(tmp_path / "b.txt", wide)) == ["one", "two"]


def test_lone_carriage_returns(tmp_path: Path) -> None:
    assert got(written(tmp_path / "mac.txt", b"one\rtwo\r\rthree")) == ["one", "two", "", "three"]
    assert whole_text(tmp_path / "mac.txt", "utf-8", False, Counts()) == "one\ntwo\n\nthree"
    assert got(written(tmp_path / "bar.txt", b"10%\r20%\ndone\r\n")) == ["10%\r20%", "done"]
    assert got(written(tmp_path / "twice.txt", b"a\r\r\nb")) == ["a\r", "b"]


def test_final_line_ends(tmp_path: Path) -> None:
    for content, expected in ((b"", []), (b"\n", [""]), (b"a", ["a"]), (b"a\n", ["a"]), (b"a\n\n", ["a", ""])):
        assert got(written(tmp_path / "a.txt", content)) == expected
        assert whole_text(tmp_path / "a.txt", "utf-8", False, Counts()) == content.decode()


@pytest.mark.parametrize("chunk", [5, 1 << 20])
def test_d08_invalid_bytes_are_counted_and_the_first_is_placed(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(textfile, "CHUNK", chunk)
    raw = b"ok\nok\r\n" + "é".encode() + b"\xe9\xe9 x\n\xed\xa0\x80\n"
    path = written(tmp_path / "a.txt", raw)
    counts = Counts()
    assert got(path, counts=counts) == ["ok", "ok", "é\ufffd\ufffd x", "\ufffd\ufffd\ufffd"]
    assert counts.invalid == 5 and counts.first_invalid == f"{path} line 3, byte offset {raw.index(0xE9)}"
    with pytest.raises(UserError, match=rf"a\.txt line 3, byte offset {raw.index(0xE9)} is not UTF-8: pass encoding="):
        got(path, strict=True)


def test_invalid_bytes_of_other_encodings(tmp_path: Path) -> None:
    cases = {
        "cp1252": (b"a\x81b\n\x8d", ["a\ufffdb", "\ufffd"], 2, 1, 1),
        "gb18030": ("中文\n".encode("gb18030") + b"\xff\n", ["中文", "\ufffd"], 1, 2, 5),
        "utf-16-le": ("a\n".encode("utf-16-le") + b"\x00\xd8b\x00", ["a", "\ufffdb"], 1, 2, 4),
    }
    for encoding, (raw, expected, invalid, line, offset) in cases.items():
        path = written(tmp_path / f"{encoding}.txt", raw)
        counts = Counts()
        assert got(path, encoding, counts=counts) == expected
        assert (counts.invalid, counts.first_invalid) == (invalid, f"{path} line {line}, byte offset {offset}")
        with pytest.raises(UserError, match=f"line {line}, byte offset {offset} is not {encoding.upper()}"):
            got(path, encoding, strict=True)
    odd = written(tmp_path / "odd.txt", "ab".encode("utf-16-le") + b"x")  # half a character at the end
    counts = Counts()
    assert got(odd, "utf-16-le", counts=counts) == ["ab\ufffd"] and counts.invalid == 1


def test_offsets_are_of_the_unpacked_text(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt.gz", gzip.compress(b"\xef\xbb\xbfabc\n\xff"))
    with pytest.raises(UserError, match="line 2, byte offset 7 is not UTF-8"):
        got(path, strict=True)


def test_encodings_are_detected_from_the_beginning(tmp_path: Path) -> None:
    russian = "Привет, как дела? Сегодня хорошая погода, и мы пойдём гулять в парк вместе с друзьями.\n"
    polish = "Zażółć gęślą jaźń. Dzień dobry, jak się masz? Święta są już blisko, więc kupujemy prezenty.\n"
    japanese = "今日はとても良い天気ですね。私たちは公園に行って遊びました。東京は日本の首都です。\n" * 3
    chinese = "今天天气很好，我们一起去公园玩吧。中国的首都是北京，人口很多，历史悠久。\n"
    french = "Le café est fermé. Où êtes-vous allés hier soir, mes élèves préférés ? Ça va très bien.\n"
    texts = {
        "cp1251": russian,
        "koi8_r": russian,
        "cp1250": polish,
        "cp932": japanese,
        "euc_jp": japanese,
        "gb18030": chinese,
        "big5": "今天天氣很好，我們一起去公園玩吧。\n" * 3,
        "cp1252": french,
        "utf-8": russian,
        "utf-16-le": french,
    }
    for encoding, text in texts.items():
        counts = Counts()
        assert got(written(tmp_path / "a.txt", text.encode(encoding)), "detect", counts=counts) == text.split("\n")[:-1]
        assert counts.encodings == {encoding: 1}
    assert guess(b"nothing but ASCII") == ""
    counts = Counts()
    got(written(tmp_path / "b.txt", french.encode()), "detect", counts=counts)
    got(written(tmp_path / "c.txt", french.encode("cp1252")), "detect", counts=counts)
    assert counts.notes() == ["encodings of the files: cp1252 (1 file), utf-8 (1 file)"]


def test_binary_files_are_refused(tmp_path: Path) -> None:
    for content, match in (
        (b"\x89PNG\r\n\x00\x00", "a NUL byte in line 2"),
        (b"%PDF-1.7 text", "take the text out"),
        (gzip.compress(b"x"), "name it .gz"),
        (b"PAR1 x", "name it .parquet"),
    ):
        with pytest.raises(UserError, match=f"is a binary file.*{match}"):
            got(written(tmp_path / "a.txt", content))
