from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from unmask.config import SourceConfig
from unmask.errors import UserError
from unmask.text.corpus import Counts, content, read
from unmask.text.document import Document
from unmask.text.tables import HubName

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def documents(path: Path | str, counts: Counts | None = None, **settings: Any) -> list[Document]:
    return list(read(SourceConfig(path=str(path), **settings), counts))


def texts(path: Path | str, counts: Counts | None = None, **settings: Any) -> list[str]:
    return [d.text for d in documents(path, counts, **settings)]


def table(path: Path, columns: dict[str, Any], **settings: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **settings)
    return path


def refused(path: Path | str, match: str, **settings: Any) -> None:
    with pytest.raises(UserError, match=match) as caught:
        documents(path, **settings)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- parquet


def test_rows_are_documents(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", {"id": [1, 2, 3, 4], "text": ["a\r\nb", None, " ", "é"]})
    counts = Counts()
    found = documents(path, counts)
    assert [(d.text, d.where) for d in found] == [("a\nb", f"{path}:1"), ("é", f"{path}:4")]
    assert counts == Counts(files=1, documents=2, bytes=5, empty=2)
    assert counts.consumed == path.stat().st_size
    assert texts(tmp_path, document="line") == ["a\nb", "é"]


def test_modes_inside_rows_and_row_groups(tmp_path: Path) -> None:
    many = [f"{i}\n\n{i}b" for i in range(10_000)]
    path = table(tmp_path / "a.parquet", {"body": many}, row_group_size=777)
    assert texts(path, field="body") == many
    assert texts(path, field="body", document="blank_line") == [t for i in range(10_000) for t in (f"{i}", f"{i}b")]


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_every_type_of_text(kind: str, tmp_path: Path) -> None:
    types = {"dictionary": pa.dictionary(pa.int32(), pa.string())}
    column = pa.array(["a", None, "b", "a"]).cast(types.get(kind) or getattr(pa, kind)())
    assert texts(table(tmp_path / "a.parquet", {"text": column})) == ["a", "b", "a"]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    raw = pa.array([b"ok", b"caf\xe9", b"\xff\xfe"])
    column = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2])
    path = table(tmp_path / "a.parquet", {"text": column})
    counts = Counts()
    assert texts(path, counts) == ["ok", "caf\ufffd", "\ufffd\ufffd"]
    assert (counts.invalid, counts.first_invalid) == (3, f"{path}:2")
    refused(path, r"a\.parquet:2 is not UTF-8", strict=True)


def test_refusals_of_tables(tmp_path: Path) -> None:
    path = table(
        tmp_path / "a.parquet", {"txt": ["a"], "n": [1], "raw": [b"a"], "parts": [["a"]], "meta": [{"t": "a"}]}
    )
    refused(
        path, r"has no column 'text' \(its columns: txt, n, raw, parts, meta\): set corpus.field; did you mean 'txt'"
    )
    refused(path, "the column 'n' holds int64, not text; columns of text: txt", field="n")
    refused(path, "the column 'raw' holds binary, not text", field="raw")
    refused(path, "the column 'parts' holds list<.*>, not text", field="parts")
    refused(path, "the column 'meta' holds struct<.*>, not text", field="meta")
    refused(path, "has no column 'spam'.*set corpus.spans", field="txt", spans="spam")
    refused(table(tmp_path / "b.parquet", {"text": pa.array([None], pa.null())}), "has no text")
    whole = table(tmp_path / "c.parquet", {"text": [f"some text {i}" for i in range(5000)]}).read_bytes()
    for name, damaged in (
        ("short", whole[: len(whole) // 2]),
        ("pages", whole[:100] + b"\xff" * 4000 + whole[4100:]),
        ("text", b"some text"),
        ("nothing", b""),
    ):
        (tmp_path / f"{name}.parquet").write_bytes(damaged)
        refused(tmp_path / f"{name}.parquet", rf"{name}\.parquet.*copy it again")


def test_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path / "a.parquet", {"text": ["a"]})
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    refused(path, "needs the package pyarrow: pip install pyarrow")
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused("hf:some/name", "hf:some/name needs the package datasets: pip install datasets")


def test_annotated_spans_in_tables(tmp_path: Path) -> None:
    spans = [[[0, 3]], None, [[4, 5], [1, 2]]]
    path = table(tmp_path / "a.parquet", {"text": ["the cat", "none", "a\r\nb c"], "ents": spans})
    assert [d.spans.tolist() for d in documents(path, spans="ents") if d.spans is not None] == [
        [[0, 3]],
        [],
        [[3, 4]],
    ]


# ---------------------------------------------------------------- the `datasets` library


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path


def folder(place: Path) -> Path:
    place.mkdir()
    table(place / "train.parquet", {"text": ["a\r\nb", None, "c"], "n": [1, 2, 3], "ents": [[[0, 1]], [], None]})
    table(place / "test.parquet", {"text": ["t"], "n": [1], "ents": [[[0, 1]]]})
    return place


@pytest.mark.parametrize("stream", [False, True])
def test_local_directories_load(stream: bool, cache: Path) -> None:
    path = f"hf:{folder(cache / 'data')}"
    counts = Counts()
    found = documents(path, counts, stream=stream, spans="ents")
    assert [(d.text, d.where) for d in found] == [("a\nb", f"{path}:1"), ("c", f"{path}:3")]
    assert [d.spans.tolist() for d in found if d.spans is not None] == [[[0, 1]], []]
    assert (counts.documents, counts.empty) == (2, 1)
    assert texts(path, split="test", stream=stream) == ["t"]
    assert texts(path, split="train+test", stream=False) == ["a\nb", "c", "t"]
    refused(path, 'cannot load hf:.*split=dev.*Unknown split "dev"' if not stream else "cannot load", split="dev")
    refused(path, "no column 'body'.*its columns: text, n, ents", field="body", stream=stream)
    refused(path, "the column 'n' holds int64, not text", field="n", stream=stream)
    refused(f"{path}:fr", "cannot load hf:.*'fr' not found", stream=stream)


@pytest.mark.parametrize("stream", [False, True])
def test_a_directory_of_json_lines_loads(stream: bool, cache: Path) -> None:
    (cache / "data").mkdir()
    rows = "".join(json.dumps({"body": f"text {i}", "n": i}) + "\n" for i in range(3000))
    (cache / "data" / "a.jsonl").write_text(rows)
    assert texts(f"hf:{cache / 'data'}", field="body", stream=stream) == [f"text {i}" for i in range(3000)]


def test_content_of_a_directory_is_its_bytes(cache: Path) -> None:
    first, second = folder(cache / "one"), folder(cache / "two")
    same = content(SourceConfig(path=f"hf:{first}"))
    assert same == content(SourceConfig(path=f"hf:{second}")) == json.loads(json.dumps(same))
    table(second / "train.parquet", {"text": ["other"]})
    assert content(SourceConfig(path=f"hf:{second}")) != same


def test_names_that_cannot_be_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach 'some/name' on the Hub\n(long tail)")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    monkeypatch.setattr(datasets, "load_dataset_builder", unreachable)
    refused(
        "hf:some/name", r"cannot load hf:some/name \(split=train\): Couldn't reach 'some/name' on the Hub; check the"
    )
    with pytest.raises(UserError, match="cannot load hf:some/name"):
        content(SourceConfig(path="hf:some/name"))
    refused("hf:", "names nothing")


def test_an_empty_directory(cache: Path) -> None:
    (cache / "empty").mkdir()
    refused(f"hf:{cache / 'empty'}", "cannot load hf:.*doesn't contain any data files")


def test_names_and_configurations(tmp_path: Path) -> None:
    assert HubName.of("hf:org/name") == HubName("org/name", None)
    assert HubName.of("hf:org/name:20231101.en") == HubName("org/name", "20231101.en")
    odd = tmp_path / "a:b"
    odd.mkdir()
    assert HubName.of(f"hf:{odd}") == HubName(str(odd), None)
