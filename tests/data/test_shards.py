"""The files of shards: written in any batches, read by mapping, damage named."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.batch import starts
from unmask.data.marks import Bits, BitWriter
from unmask.data.shards import Encoded, Shards, Source, Writer
from unmask.errors import UserError

EVERYTHING = frozenset({"word", "sentence", "spans"})


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.booleans(), max_size=40), max_size=8))
def test_bits_are_what_was_written_in_any_lengths(parts: list[list[bool]]) -> None:
    file = io.BytesIO()
    writer = BitWriter(file)
    for part in parts:
        writer.write(np.array(part, bool))
    writer.finish()
    flags = [flag for part in parts for flag in part]
    packed = np.frombuffer(file.getvalue(), np.uint8)
    assert len(packed) == -(-len(flags) // 8)
    bits = Bits(packed, len(flags))
    assert bits[np.arange(len(flags))].tolist() == flags and len(bits) == len(flags)


class Document(NamedTuple):
    ids: np.ndarray
    bytes: int
    word: np.ndarray
    sentence: np.ndarray
    spans: np.ndarray


def documents(count: int, seed: int) -> list[Document]:
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        n = int(rng.integers(0, 12))
        ids = rng.integers(0, 50, n).astype(np.int32)
        edges = np.sort(rng.choice(n + 1, 2 * int(rng.integers(0, (n + 1) // 2 + 1)), replace=False))
        out.append(Document(ids, 3 * n, rng.random(n) < 0.5, rng.random(n) < 0.2, edges.reshape(-1, 2)))
    return out


def together(batch: list[Document], everything: bool = True) -> Encoded:
    """Documents end to end."""
    start = starts([len(d.ids) for d in batch])
    joined = (np.concatenate([getattr(d, name) for d in batch]) for name in ("ids", "word", "sentence"))
    spans = np.concatenate([d.spans + begin for d, begin in zip(batch, start, strict=False)])
    ids, *inside = (*joined, spans)
    return Encoded(np.diff(start), np.array([d.bytes for d in batch]), ids, *(inside if everything else ()))


def write(place: Path, sources: dict[str, list[Document]], batch: int) -> Shards:
    writer = Writer(place, 50, list(sources), EVERYTHING)
    for number, name in enumerate(sources):
        for a in range(0, len(sources[name]), batch):
            writer.write(number, together(sources[name][a : a + batch]))
    writer.finish()
    writer.close()
    return Shards.load(place)


def test_shards_hold_what_was_written_whatever_the_batches(tmp_path: Path) -> None:
    sources = {"a": documents(40, 0), "none": [], "b": documents(25, 1)}
    every = [d for documents in sources.values() for d in documents if len(d.ids)]  # those without a token vanish
    made = [write(tmp_path / str(batch), sources, batch) for batch in (1, 7, 100)]
    for shards in made:
        assert len(shards) == len(every) and shards.counts.sum() == len(shards.tokens)
        assert shards.tokens.tolist() == np.concatenate([d.ids for d in every]).tolist()
        assert shards.bytes.tolist() == [d.bytes for d in every]
        at = np.arange(len(shards.tokens))
        assert shards.word is not None and shards.sentence is not None and shards.spans is not None
        assert shards.word[at].tolist() == np.concatenate([d.word for d in every]).tolist()
        assert shards.sentence[at].tolist() == np.concatenate([d.sentence for d in every]).tolist()
        spans = [shards.documents[k] + d.spans for k, d in enumerate(every)]
        assert shards.spans.tolist() == np.concatenate(spans).tolist()
        kept = [sum(len(d.ids) > 0 for d in sources[name]) for name in sources]
        assert shards.sources == (
            Source("a", 0, kept[0]),
            Source("none", kept[0], 0),
            Source("b", kept[0], kept[2]),
        )
        assert shards.first == (0, kept[0], kept[0])
        for i in (0, len(every) - 1):
            assert shards.document(i).tolist() == every[i].ids.tolist()
    names = sorted(os.listdir(tmp_path / "1"))
    assert all((tmp_path / "1" / n).read_bytes() == (tmp_path / "7" / n).read_bytes() for n in names)
    assert names == sorted(
        [f"{n}.bin" for n in ("tokens", "documents", "bytes", "words", "sentences", "spans")]
        + ["counts.npy", "sources.json"]
    )


def test_shards_that_extend_each_other_are_those_written_in_one_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.data.shards._CHUNK", 13)
    a, b = documents(30, 2), documents(20, 3)
    write(tmp_path / "whole", {"a": a, "b": b}, 9)
    parts = [
        write(tmp_path / f"part{k}", part, 4)
        for k, part in enumerate([{"a": a[:17], "b": []}, {"a": a[17:], "b": b[:1]}, {"a": [], "b": b[1:]}])
    ]
    writer = Writer(tmp_path / "joined", 50, ["a", "b"], EVERYTHING)
    for part in parts:
        writer.extend(part)
    writer.finish()
    writer.close()
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "joined" / path.name).read_bytes(), path.name


def test_nothing_is_kept_that_was_not_asked_for(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "s", 50, [""], frozenset())
    writer.write(0, together(documents(10, 0), everything=False))
    writer.finish()
    writer.close()
    shards = Shards.load(tmp_path / "s")
    assert shards.word is shards.sentence is shards.spans is None
    assert not {"words.bin", "sentences.bin", "spans.bin"} & set(os.listdir(tmp_path / "s"))


def test_an_empty_side_is_read_too(tmp_path: Path) -> None:
    shards = write(tmp_path / "s", {"": []}, 1)
    assert len(shards) == 0 and len(shards.tokens) == 0 and shards.spans is not None and shards.spans.shape == (0, 2)


@pytest.mark.parametrize(
    ("name", "cut", "sentence"),
    [
        ("tokens", 2, "is damaged: 1,[0-9]{3} tokens where"),
        ("documents", 8, "is damaged"),
        ("bytes", 8, "is damaged"),
        ("words", 1, r"words\.bin is damaged"),
        ("sentences", 1, r"sentences\.bin is damaged"),
        ("spans", 8, "holds no whole shards"),
        ("tokens", 1, "holds no whole shards"),
    ],
)
def test_damage_is_named(name: str, cut: int, sentence: str, tmp_path: Path) -> None:
    write(tmp_path / "s", {"": documents(280, 0)}, 50)
    path = tmp_path / "s" / f"{name}.bin"
    os.truncate(path, path.stat().st_size - cut)
    with pytest.raises(UserError, match=sentence):
        Shards.load(tmp_path / "s")


def test_wrong_counts_of_sources_are_damage(tmp_path: Path) -> None:
    write(tmp_path / "s", {"": documents(5, 0)}, 5)
    (tmp_path / "s" / "sources.json").write_text(json.dumps([["", 77]]))
    with pytest.raises(UserError, match="of 77 documents"):
        Shards.load(tmp_path / "s")
