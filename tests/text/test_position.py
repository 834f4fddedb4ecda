"""A reader that begins at a record's position reads what a reader from the beginning reads from there on."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from serving import Server
from unmask.config import SourceConfig
from unmask.errors import UserError
from unmask.text import corpus as corpora
from unmask.text import textfile
from unmask.text.document import Counts
from unmask.text.files import files, is_url
from unmask.text.position import Cursor, Position

TEXTS = [f"text {i}: é" + " and more" * (i % 7) for i in range(60)]
LINES = [json.dumps({"text": t, "answer": t[:4]}) + "\n" * (1 + (i % 5 == 0)) for i, t in enumerate(TEXTS)]


def _lines(place: Path, packed: bool) -> None:
    for k in range(3):
        data = "".join(LINES[20 * k : 20 * (k + 1)]).encode()
        name = f"{k}.jsonl.gz" if packed else f"{k}.jsonl"
        (place / name).write_bytes(gzip.compress(data) if packed else data)


def _plain(place: Path, encoding: str = "utf-8", end: str = "\n", between: str = "\n\n") -> None:
    for k in range(3):
        text = between.join(TEXTS[20 * k : 20 * (k + 1)]).replace("\n", end)
        (place / f"{k}.txt").write_bytes(text.encode(encoding))


def _table(place: Path) -> None:
    for k in range(3):
        table = pa.table({"n": list(range(20)), "text": TEXTS[20 * k : 20 * (k + 1)]})
        pq.write_table(table, place / f"{k}.parquet", row_group_size=7)


START = Position()
MAKERS: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "json lines": (lambda p: _lines(p, packed=False), {}),
    "targets": (lambda p: _lines(p, packed=False), {"target": "answer"}),
    "packed json lines": (lambda p: _lines(p, packed=True), {}),
    "documents inside json lines": (lambda p: _lines(p, packed=False), {"document": "regex", "separator": " and "}),
    "files": (_plain, {}),
    "lines": (_plain, {"document": "line"}),
    "lines of UTF-16": (lambda p: _plain(p, "utf-16"), {"document": "line"}),
    "lines of Mac OS 9": (lambda p: _plain(p, end="\r"), {"document": "line"}),
    "paragraphs": (_plain, {"document": "blank_line"}),
    "patterns": (_plain, {"document": "regex", "separator": "\n\n"}),
    "tables": (_table, {}),
    "paragraphs inside tables": (_table, {"document": "blank_line"}),
}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textfile, "CHUNK", 100)


def passed(source: SourceConfig, begin: Position = START) -> list[tuple[tuple[str, str | None], Position]]:
    """Each document from a position on, and where its record begins."""
    cursor = Cursor(begin)
    return [((d.text, d.target), cursor.at) for d in corpora.records(source, Counts(), cursor)]


def check(source: SourceConfig) -> list[Position]:
    """Read from every position; returns them."""
    every = passed(source)
    assert [d for d, _ in every] == [(d.text, d.target) for d in corpora.records(source, Counts())]
    found: list[Position] = []
    for k, (_, at) in enumerate(every):
        if found and at == found[-1]:
            continue  # the same record
        found.append(Position.of(json.loads(json.dumps(at.dump()))))
        assert [d for d, _ in passed(source, found[-1])] == [d for d, _ in every[k:]]
    return found


@pytest.mark.parametrize("kind", MAKERS)
def test_reading_goes_on_from_every_record(kind: str, tmp_path: Path) -> None:
    make, settings = MAKERS[kind]
    make(tmp_path)
    found = check(SourceConfig(path=str(tmp_path), **settings))
    blank_lines_too = kind.startswith("lines")
    assert len(found) == (3 if kind in ("files", "patterns") else 117 if blank_lines_too else 60)


def test_stretches_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "LARGE", 100)
    monkeypatch.setattr(corpora, "STRETCH", 300)
    _plain(tmp_path)
    source = SourceConfig(path=str(tmp_path))
    every = passed(source)
    assert len({at for _, at in every}) == len(every) > 6
    for k, (_, at) in enumerate(every):  # where later stretches end is up to where reading began; all text is there
        assert "".join(d[0] for d, _ in passed(source, at)) == "".join(d[0] for d, _ in every[k:])


def test_a_stream_of_the_datasets_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    monkeypatch.setattr("unmask.text.tables.HUB_ROWS", 8)
    (tmp_path / "data").mkdir()
    _table(tmp_path / "data")
    assert len(check(SourceConfig(path=f"hf:{tmp_path / 'data'}", stream=True))) == 60


# ---------------------------------------------------------------- URLs


@pytest.fixture(params=[True, False], ids=["ranges", "whole"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    (tmp_path / "web").mkdir()
    one = Server(tmp_path / "web", request.param)
    thread = threading.Thread(target=one.serve_forever, daemon=True)
    thread.start()
    yield one
    one.shutdown()
    one.server_close()
    thread.join()


@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.gz", "all.txt"])
def test_files_behind_a_server(server: Server, name: str) -> None:
    data = "".join(LINES).encode() if "json" in name else "\n\n".join(TEXTS).encode()
    (server.folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    settings: dict[str, Any] = {} if "json" in name else {"document": "line"}
    here, there = (SourceConfig(path=path, **settings) for path in (str(server.folder / name), f"{server.url}/{name}"))
    assert [d for d, _ in passed(there)] == [d for d, _ in passed(here)]
    every = passed(there)
    for k in (0, 25, 59):
        assert [d for d, _ in passed(there, every[k][1])] == [d for d, _ in every[k:]]


def test_tables_behind_a_server_that_knows_ranges(tmp_path: Path) -> None:
    _table(tmp_path)
    one = Server(tmp_path, ranges=True)
    threading.Thread(target=one.serve_forever, daemon=True).start()
    check(SourceConfig(path=f"{one.url}/1.parquet"))
    one.shutdown()
    one.server_close()


def test_globs_and_directories_behind_urls(tmp_path: Path) -> None:
    _lines(tmp_path, packed=True)
    (tmp_path / "notes.md").write_text("no text of the corpus")
    (tmp_path / ".hidden.jsonl").write_text(LINES[0])
    here = passed(SourceConfig(path=str(tmp_path)))
    for path in (f"file://{tmp_path}", f"file://{tmp_path}/*.jsonl.gz"):
        source = SourceConfig(path=path)
        assert [f.name for f in files(source)] == ["0.jsonl.gz", "1.jsonl.gz", "2.jsonl.gz"]
        assert passed(source) == here
        check(source)
    assert corpora.content(SourceConfig(path=f"file://{tmp_path}")) == corpora.content(
        SourceConfig(path=f"file://{tmp_path}")
    )


def test_what_is_wrong_with_a_url_is_one_sentence(tmp_path: Path, server: Server) -> None:
    def said(path: str) -> str:
        with pytest.raises(UserError) as error:
            list(corpora.read(SourceConfig(path=path)))
        return str(error.value)

    assert "needs the fsspec driver of s3://: pip install s3fs" in said("s3://bucket/a/*.jsonl")
    assert "needs the fsspec driver of gs://: pip install gcsfs" in said("gs://bucket/a.jsonl")
    assert "fsspec knows no ftpx://" in said("ftpx://x/y.jsonl")
    assert "no file can be reached at" in said(f"file://{tmp_path}/none.jsonl")
    assert "no file can be reached at" in said(f"file://{tmp_path}/*.jsonl")
    assert f"{server.url}/none.jsonl" in said(f"{server.url}/none.jsonl")
    assert "no file can be reached" in said("http://127.0.0.1:9/a.jsonl")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.md").write_text("x")
    assert "holds no .txt" in said(f"file://{tmp_path}/folder")


def test_what_is_a_url() -> None:
    assert is_url("hf://datasets/org/name/a.jsonl") and not is_url("hf:org/name")
    assert files(SourceConfig(path="hf:org/name")) == []
