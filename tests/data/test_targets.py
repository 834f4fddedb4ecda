"""Texts with targets: from columns to shards, from shards to pairs, beside other objectives, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.batch import Batch
from unmask.config import CorpusConfig, TokenizerConfig
from unmask.data import workers
from unmask.data.loader import Loader
from unmask.data.marks import TargetText
from unmask.data.parts import prepare_part
from unmask.data.prepare import needed, prepare
from unmask.data.shards import Prepared, Shards
from unmask.data.stats import stats
from unmask.data.targets import counts_by_part, require_columns
from unmask.data.text import Text
from unmask.data.workers import encode_documents
from unmask.errors import UserError
from unmask.objectives import REGISTRY
from unmask.objectives.base import Objective
from unmask.objectives.mixture import Mixture
from unmask.objectives.supervised import Supervised
from unmask.text.document import Document
from unmask.tokens.tokenizer import Tokenizer


def quiet(_: str) -> None:
    pass


PAIRS = [("ab", "x"), ("cde", "yz"), ("f", "w"), ("gh", "xyw"), ("abc", "z"), ("held", "out")]


def byte() -> Tokenizer:
    return Tokenizer.train(TokenizerConfig(type="byte"), [])


def jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def questions(path: Path, pairs: list[tuple[str, str]] = PAIRS) -> str:
    return jsonl(path, [{"question": q, "answer": a, "other": 1} for q, a in pairs])


def asked(path: str, **more: Any) -> CorpusConfig:
    return CorpusConfig(path=path, field="question", target="answer", **more)


def load(side: Shards, objective: Objective, context: int = 16, **more: Any) -> Loader:
    given = {"rows": 4, "seed": 0, "kept": side, "sources": side.first, **more}
    return Loader(side, objective, byte().vocabulary, objective.shape(context), **given)


def told(batch: Batch, part: str = "pairs") -> dict[int, tuple[list[int], list[int]]]:
    """Sample number → source tokens and target values of each example of a part, read off a batch of two stacks."""
    samples, t = batch.samples, batch.targets[part, "lm"]
    assert samples is not None and batch.source is not None and t.index is not None
    names, out = list(dict.fromkeys(name for name, _ in batch.heads)), {}
    flat, real = batch.stream.block.reshape(-1), t.weight > 0
    row = t.index // batch.stream.block.shape[1]
    for k, index in enumerate(samples.index.tolist()):
        if names[samples.objective[k]] != part:
            continue
        r, block = samples.row[k], samples.block[k]
        mine = real & (row == r) & (flat[t.index] == block)
        source = batch.source.tokens[r][batch.source.block[r] == block]
        out[index] = source.tolist(), t.value[mine].tolist()
    return out


def decoded(pairs: dict[int, tuple[list[int], list[int]]]) -> list[tuple[str, str]]:
    tokenizer, eos = byte(), byte().vocabulary.need("eos")
    out = []
    for source, target in pairs.values():
        assert source[-1] == eos
        out.append((tokenizer.decode(source[:-1]), tokenizer.decode([t for t in target if t != eos])))
    return out


# ---------------------------------------------------------------- worked: six pairs from a file to a batch


def test_six_pairs_become_a_batch_of_exact_ids(tmp_path: Path) -> None:
    made = prepare(asked(questions(tmp_path / "qa.jsonl"), valid_fraction=0.1), None, byte(), tmp_path / "c", quiet)
    ids, eos, bos = byte().encode_batch, byte().vocabulary.need("eos"), byte().vocabulary.need("bos")
    train = made.train
    assert train.target is not None and made.valid.target is not None
    assert train.tokens.tolist() == ids(["abcdefghabc"])[0].tolist()  # targets are no text
    assert train.target.tokens.tolist() == ids(["xyzwxywz"])[0].tolist()
    assert train.target.documents.tolist() == [0, 1, 3, 4, 7, 8]
    assert train.target.counts.sum() == 8 and train.counts.sum() == 11
    assert made.train.summary()[""]["target_tokens"] == 8 and made.train.summary()[""]["bytes"] == 11
    assert [made.valid.document(0).tolist(), made.valid.target.tokens.tolist()] == [
        x.tolist() for x in ids(["held", "out"])
    ]

    loader = load(train, Supervised(max_target=8), shuffle=False, rows=9)
    batch = next(iter(loader.once()))
    expected = {k: ([*ids([q])[0].tolist(), eos], [*ids([a])[0].tolist(), eos]) for k, (q, a) in enumerate(PAIRS[:5])}
    assert told(batch) == expected
    x, y = (int(ids([c])[0][0]) for c in "xy")
    third = batch.samples.index.tolist().index(3)
    row, block = batch.samples.row[third], batch.samples.block[third]
    assert batch.stream.tokens[row][batch.stream.block[row] == block].tolist()[:3] == [
        bos,
        x,
        y,
    ]  # read to write y and w
    assert loader.notes == []


# ---------------------------------------------------------------- readers


def test_a_target_comes_from_lines_tables_and_the_library_alike(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("datasets")
    columns = {"question": [q for q, _ in PAIRS], "answer": [a for _, a in PAIRS]}
    (tmp_path / "hub").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "qa.parquet")
    questions(tmp_path / "hub" / "train.jsonl")
    paths = [questions(tmp_path / "qa.jsonl"), str(tmp_path / "qa.parquet"), f"hf:{tmp_path / 'hub'}"]
    for path in paths:
        documents = [item.document for item in Text(asked(path, valid_fraction=0), None).items()]
        assert [(d.text, d.target) for d in documents] == PAIRS, path


def test_targets_are_mended_and_empty_ones_counted(tmp_path: Path) -> None:
    rows = [("a", "x\r\ny"), ("b", None), ("c", " \n"), ("d", "\ud83d\ude00 \ud800"), (" ", "z"), ("e", "z")]
    path = jsonl(tmp_path / "qa.jsonl", [{"question": q, "answer": a} for q, a in rows])
    said: list[str] = []
    survey = Text(asked(path, valid_fraction=0.3), None).survey(said.append)
    counts = survey.counts[""]
    assert (counts.documents, counts.targets, counts.no_target, counts.empty, counts.invalid) == (3, 3, 2, 1, 1)
    assert survey.targets == counts.target_bytes == len("x\ny") + len("😀 \ufffd".encode()) + 1
    assert survey.bytes == counts.bytes == 3
    assert any(s.endswith("2 documents are left out: their target is null or white space alone") for s in said)
    texts = [(i.document.text, i.document.target) for i in Text(asked(path, valid_fraction=0), None).items()]
    assert texts == [("a", "x\ny"), ("d", "😀 \ufffd"), ("e", "z")]
    measured = stats(asked(path))
    assert measured.documents == measured.targets == 3 and measured.bytes == 3
    assert any("target is null" in w for w in measured.warnings)
    assert stats(CorpusConfig(path=path, field="question")).targets is None
    tokenizer = byte()
    assert needed(tokenizer, survey) > needed(tokenizer, replace(survey, targets=0))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "a"}, r"qa\.jsonl:2 has no key 'answer' .*set corpus\.target"),
        ({"question": "a", "answer": 3}, r"qa\.jsonl:2: the key 'answer' holds a int, not text"),
    ],
)
def test_lines_without_a_target_of_text_are_named(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "qa.jsonl", [{"question": "q", "answer": "a"}, row])
    with pytest.raises(UserError, match=message):
        list(Text(asked(path), None).items())


def test_other_sources_that_cannot_have_a_target_are_refused(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"question": ["a"], "answer": [1], "answers": ["x"]}), tmp_path / "qa.parquet")
    (tmp_path / "a.txt").write_text("a")
    for path, target, message in (
        ("qa.parquet", "answer", r"the column 'answer' holds int64, not text; columns of text: question, answers"),
        ("qa.parquet", "anwser", r"has no column 'anwser' .*set corpus\.target.*answer"),
        ("a.txt", "answer", r"is plain text, which has no key 'answer': targets are read from JSON lines and tables"),
    ):
        with pytest.raises(UserError, match=message):
            list(Text(CorpusConfig(path=str(tmp_path / path), field="question", target=target), None).items())
    with pytest.raises(ValueError, match=r"document=blank_line parts a text, but target=answer belongs to the whole"):
        CorpusConfig(path="a.jsonl", target="answer", document="blank_line")


def test_filters_splits_and_segmentation_know_that_a_target_belongs_to_its_text(tmp_path: Path) -> None:
    pairs = [("same", "1"), ("same", "2"), ("same", "1"), ("我们 喜欢", "自然 语言 x y")]
    config = asked(questions(tmp_path / "qa.jsonl", pairs), words="blanks", filter={"duplicates": "documents"})
    found = [(i.document.text, i.document.target) for i in Text(config, None).items()]
    assert found == [("same", "1"), ("same", "2"), ("我们喜欢", "自然语言 x y")]  # none is cut for the held-out side
    many = [(f"question {i % 30}", str(i)) for i in range(90)]
    sides: dict[bool, set[str]] = {True: set(), False: set()}
    for item in Text(asked(questions(tmp_path / "many.jsonl", many), valid_fraction=0.3), None).items():
        sides[item.held_out].add(item.document.text)
    assert sides[True] and sides[False] and not sides[True] & sides[False]  # no question on both sides


# ---------------------------------------------------------------- shards


def test_parts_and_processes_write_what_one_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(f"question {i} ü", f"answer {i * i} é") for i in range(60)]
    plain = jsonl(tmp_path / "plain.jsonl", [{"question": f"only text {i}"} for i in range(30)])
    path = questions(tmp_path / "qa.jsonl", pairs)
    sources = {"qa": {"path": path, "target": "answer"}, "plain": plain}
    corpus = CorpusConfig.model_validate({"sources": sources, "field": "question", "valid_fraction": 0.2})
    whole = prepare(corpus, None, byte(), tmp_path / "whole", quiet)
    for i in (2, 3, 1):
        part = prepare_part(corpus, None, byte(), tmp_path / "parts", (i, 3), quiet)
    assert part.prepared is not None and part.prepared.directory.name == whole.directory.name
    for side in ("train", "valid"):
        files = sorted(p.name for p in (whole.directory / side).iterdir())
        assert {"targets.bin", "target_documents.bin", "target_counts.npy"} < set(files)
        for name in files:
            assert (part.prepared.directory / side / name).read_bytes() == (whole.directory / side / name).read_bytes()
    documents = [Document(q, "", None, None, a if i % 3 else None) for i, (q, a) in enumerate(pairs)]
    here = encode_documents(documents, byte(), frozenset({"target"}))
    pool = workers.Workers(byte(), frozenset({"target"}), 1)
    try:
        there = pool(list(documents))
    finally:
        pool.close()
    for name, array in vars(here).items():
        other = vars(there)[name]
        assert (array is None and other is None) or np.array_equal(array, other), name
    assert here.target_length is not None and here.target_length[:2].tolist() == [0, len(pairs[1][1].encode())]


def test_the_cache_knows_targets_and_text_without_them_keeps_its_place(tmp_path: Path) -> None:
    path = questions(tmp_path / "qa.jsonl")
    plain, other = CorpusConfig(path=path, field="question"), asked(path)
    prints = [Text(c, None).fingerprint("t") for c in (plain, other, asked(path, document="line"))]
    assert len(set(prints)) == 3
    train = TokenizerConfig(type="bbpe", vocab_size=300)
    assert Text(plain, None).trained_with(train, 100) != Text(other, None).trained_with(train, 100)
    questions(tmp_path / "qa.jsonl", [*PAIRS[:5], ("held", "in")])
    assert Text(other, None).fingerprint("t") != prints[1]
    made = prepare(plain, None, byte(), tmp_path / "c", quiet)
    assert made.train.target is None and "target_tokens" not in made.train.summary()[""]
    assert not (made.directory / "train" / "targets.bin").exists()


def test_damaged_targets_are_named(tmp_path: Path) -> None:
    made = prepare(asked(questions(tmp_path / "qa.jsonl")), None, byte(), tmp_path / "c", quiet)
    ends = made.directory / "train" / "target_documents.bin"
    ends.write_bytes(ends.read_bytes()[:-8])
    with pytest.raises(UserError, match=r"the targets in .*train are damaged; delete it"):
        Prepared.load(made.directory)


def test_a_tokenizer_is_trained_on_targets_too(tmp_path: Path) -> None:
    pairs = [(f"the cat {i}", f"die Katze ß{i}") for i in range(60)]
    config = TokenizerConfig(type="char", vocab_size=400)
    made = prepare(asked(questions(tmp_path / "qa.jsonl", pairs)), None, config, tmp_path / "c", quiet)
    assert made.train.target is not None and made.tokenizer.decode(made.train.target.tokens[:9]) == "die Katze"


# ---------------------------------------------------------------- pieces and order


def sides(tmp_path: Path, **more: Any) -> Prepared:
    """Two sources: 40 pairs, some of which are long, and 30 long texts without a target."""
    pairs = [(f"q{i} " + "abc" * (i % 9), f"a{i}") for i in range(40)]
    plain = jsonl(tmp_path / "plain.jsonl", [{"question": f"t{i} " + "only text " * 4} for i in range(30)])
    sources = {"qa": {"path": questions(tmp_path / "qa.jsonl", pairs), "target": "answer", "weight": 3}, "plain": plain}
    values = {"sources": sources, "field": "question", "valid_fraction": 0.2, "mix": "weight", **more}
    corpus = CorpusConfig.model_validate(values)
    return prepare(corpus, None, byte(), tmp_path / "c", quiet)


def test_a_long_source_keeps_its_beginning_and_its_target(tmp_path: Path) -> None:
    pairs = [(f"{c}{'0123456789' * 3}", c * n) for c, n in zip("abcdef", (1, 2, 3, 9, 1, 1), strict=True)]
    pairs[1] = ("b" * 9, "bb")
    made = prepare(asked(questions(tmp_path / "qa.jsonl", pairs)), None, byte(), tmp_path / "c", quiet)
    loader = load(made.train, Supervised(max_target=4), context=16)
    assert len(loader.pieces) == 5  # one a document, whatever its length
    seen = {pair for step in range(loader.steps) for batch in loader(step) for pair in decoded(told(batch))}
    assert seen == {(q[:15], a[:4]) for q, a in pairs[:5]}
    assert loader.notes == [
        "4 of 5 texts with a target are longer than the 15 tokens that fit and end there (48.1% of their tokens are "
        "not read): raise context to read more",
        "1 of 5 targets are longer than max_target=4 tokens and end there under pairs",
    ]


@pytest.mark.parametrize("more", [{"rows": 1}, {"rows": 9}, {"micro": 3}, {"rows": 4}])
def test_every_sample_has_its_own_target_whatever_the_batch(more: dict[str, Any], tmp_path: Path) -> None:
    side = sides(tmp_path).train
    corpus = CorpusConfig.model_validate({"sources": {"qa": "-", "plain": {"path": "-", "weight": 2}}, "mix": "weight"})
    mixture = both()
    whole, other = (load(side, mixture, 24, mix=corpus, **m) for m in ({"rows": 4}, more))
    reference: dict[int, Any] = {}
    for step in range(40):
        for batch in whole(step):
            reference |= told(batch)
    assert len(reference) > 30
    for (q, a), index in zip(decoded(reference), reference, strict=True):
        assert q.split()[0][1:] == a[1:] and whole.targets is not None
        assert whole.targets.has[whole.order.piece(np.array([index]))].all()
    found: dict[int, Any] = {}
    for step in (17, 3, 4, 11, 5):  # any update is found by itself
        for batch in other(step):
            found |= told(batch)
    common = found.keys() & reference.keys()
    assert common and all(found[i] == reference[i] for i in common)


# ---------------------------------------------------------------- mixtures


def both(**more: Any) -> Mixture:
    parts = {
        "pairs": {"type": "pairs", "max_target": 4, **more},
        "spans": {"type": "span_corruption", "weight": 3},
        "prefix": {"type": "prefix_lm", "layout": "encdec"},
    }
    return Mixture.model_validate({"parts": parts})


def test_texts_with_targets_train_pairs_and_the_others_the_other_parts(tmp_path: Path) -> None:
    made = sides(tmp_path)
    side = made.train
    mix = CorpusConfig.model_validate({"sources": {"qa": {"path": "-", "weight": 3}, "plain": "-"}, "mix": "weight"})
    loader = load(side, both(), 24, mix=mix)
    part, with_target = [], []
    for step in range(600):
        for batch in loader(step):
            assert batch.samples is not None and loader.targets is not None
            part.append(batch.samples.objective)
            with_target.append(loader.targets.has[loader.order.piece(batch.samples.index)])
    which, has = np.concatenate(part), np.concatenate(with_target)
    assert ((which == 0) == has).all()
    assert has.mean() == pytest.approx(0.75, abs=0.02)  # the sources' weights say how often
    assert (which[~has] == 1).mean() == pytest.approx(0.75, abs=0.04)  # the parts', among those that read such texts
    documents = loader.pieces.document
    count = np.bincount(documents, minlength=len(side))
    assert (count[: side.sources[0].documents] == 1).all() and (count[side.sources[0].documents :] > 1).all()
    paired, plain = (source.documents for source in side.sources)
    assert loader.notes[0] == (
        f"{paired} texts with a target train pairs, {plain} without train spans, "
        "prefix; corpus.mix says how often either comes, the parts' weights share out each"
    )
    held = load(made.valid, both(), 24, shuffle=False)
    index = np.arange(len(held.pieces))
    assert held.targets is not None
    assert ((held._deal(index, None) == 0) == held.targets.has[held.order.piece(index)]).all()


def test_floors_are_of_what_each_part_asks_for(tmp_path: Path) -> None:
    side = sides(tmp_path).train
    counts = counts_by_part(both().parts, side)
    assert side.target is not None and counts["pairs"].tolist() == side.target.counts.tolist()
    assert counts["spans"].tolist() == side.counts.tolist() != counts["pairs"].tolist()


def test_targets_that_nobody_reads_are_said_and_are_no_text(tmp_path: Path) -> None:
    made = prepare(asked(questions(tmp_path / "qa.jsonl")), None, byte(), tmp_path / "c", quiet)
    loader = load(made.train, REGISTRY.make("causal"))
    assert loader.notes == ["the text has targets (corpus.target), which causal does not read: they are left out"]
    tokens = np.concatenate([b.stream.tokens.reshape(-1) for s in range(20) for b in loader(s)])
    assert not np.isin(byte().encode("xyzw"), tokens).any() and np.isin(byte().encode("ab"), tokens).all()


@pytest.mark.parametrize(
    ("objective", "sources", "message"),
    [
        ("pairs", {"a": None}, r"pairs writes a target .* the text of a names none: set corpus\.sources\.a\.target"),
        ("pairs", {"a": "t", "b": None}, r"the text of b names none: set corpus\.sources\.b\.target"),
        ("both", {"a": None}, r"pairs writes a target for each text, but no source names one: .*or leave pairs out"),
        ("both", {"a": "t"}, r"spans, prefix would get no text: .*every source names one; add a source without"),
    ],
)
def test_settings_that_leave_a_part_without_text_are_refused_before_any_is_read(
    objective: str, sources: dict[str, str | None], message: str
) -> None:
    corpus = CorpusConfig.model_validate({"sources": {k: {"path": "-", "target": t} for k, t in sources.items()}})
    chosen = both() if objective == "both" else Supervised()
    with pytest.raises(UserError, match=message) as caught:
        require_columns(chosen, corpus, None)
    assert "\n" not in str(caught.value)
    require_columns(REGISTRY.make("masked"), corpus, None)
    with pytest.raises(UserError, match=r"pairs writes .* the text names none: set valid\.target"):
        require_columns(Supervised(), CorpusConfig(path="-", target="t"), CorpusConfig(path="-"))


def test_texts_that_leave_a_part_without_any_are_refused(tmp_path: Path) -> None:
    side = sides(tmp_path).train
    silent = Mixture.model_validate(
        {"parts": {"pairs": {"type": "pairs", "max_target": 4, "from": 0.5}, "spans": {"type": "span_corruption"}}}
    )
    with pytest.raises(UserError, match=r"no part that reads texts with a target \(pairs\) has a weight at 0 of the"):
        load(side, silent, 24)
    with pytest.raises(UserError, match=r"target texts are needed, but the text has none: .*with corpus\.target"):
        load(replace(side, target=None), Supervised(max_target=4), 24)
    with pytest.raises(UserError, match=r"a source has no text with a target"):
        load(side, Supervised(max_target=4), 24)
    none = replace(side, target=TargetText(np.zeros(0, np.int32), np.zeros(len(side) + 1, np.int64), side.counts))
    with pytest.raises(UserError, match=r"no document has a target that gives a token"):
        load(none, Supervised(max_target=4), 24)
    with pytest.raises(UserError, match=r"pairs would get no text: there is no document with a target"):
        load(none, both(), 24)
    first = side.sources[0].documents
    assert side.target is not None
    target = replace(side.target, documents=side.target.documents[: first + 1])
    alone = replace(
        side, tokens=side.tokens[: side.documents[first]], documents=side.documents[: first + 1], target=target
    )
    with pytest.raises(UserError, match=r"spans, prefix would get no text: there is no document without a target"):
        load(alone, both(), 24, sources=(0,))
