"""Batches of a stream: chapter by chapter, every text once an epoch, whatever was read when."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import Server
from unmask.batch import Batch
from unmask.config import CorpusConfig, TokenizerConfig
from unmask.data import stream
from unmask.data.chapters import TABLE, Chapter, read_table
from unmask.data.loader import Loader, Stretch
from unmask.data.parts import prepare_part
from unmask.data.prepare import prepare
from unmask.data.reader import Reader
from unmask.data.shards import Prepared
from unmask.data.stream import FOLDER, Chapters
from unmask.errors import Unread, UserError
from unmask.objectives.base import Objective
from unmask.objectives.masked import Masked
from unmask.objectives.sentence import NextSentence
from unmask.text.holdout import share
from unmask.text.position import Position

SEED = 5
TEXTS = [f"{i:04}" + " word" * (i % 5) for i in range(240)]
FRACTION = 0.1


def write(place: Path, files: int = 4) -> Path:
    place.mkdir(exist_ok=True)
    each = len(TEXTS) // files
    for k in range(files):
        lines = [json.dumps({"text": t}) + "\n" for t in TEXTS[k * each : (k + 1) * each]]
        (place / f"{k}.jsonl").write_text("".join(lines))
    return place


class Run:
    """A stream's batches, as a run in `out` has them."""

    def __init__(
        self,
        place: Path,
        source: Path | str,
        objective: Objective | None = None,
        valid: CorpusConfig | None = None,
        **settings: Any,
    ) -> None:
        self.out, self.said = place / "out", list[str]()
        self.out.mkdir(parents=True, exist_ok=True)
        values = {"path": str(source), "stream": True, "chapter": 800, "valid_fraction": FRACTION, **settings}
        self.corpus = CorpusConfig.model_validate(values)
        self.objective, self.fraction = objective or Masked(), FRACTION if valid is None else 0.0
        self.text = prepare(self.corpus, valid, TokenizerConfig(type="byte"), place / "cache", self.said.append)

    def loader(self, text: Prepared, stretch: Stretch | None) -> Loader:
        shape, words = self.objective.shape(32, None), text.tokenizer.vocabulary
        return Loader(text.train, self.objective, words, shape, rows=4, seed=SEED, kept=text.train, stretch=stretch)

    def chapters(self, begin: bool = True, writes: bool = True) -> Chapters:
        one = Chapters(self.out, self.corpus, self.fraction, self.text, self.loader, writes, self.said.append)
        if begin:
            one.begin()
        return one


def same(a: list[Batch], b: list[Batch]) -> bool:
    """Whether two updates hold the same, to the last bit."""
    if len(a) != len(b):
        return False
    return all(
        np.array_equal(x.stream.tokens, y.stream.tokens)
        and np.array_equal(x.stream.block, y.stream.block)
        and x.targets.keys() == y.targets.keys()
        and all(np.array_equal(x.targets[k].value, y.targets[k].value) for k in x.targets)
        for x, y in zip(a, b, strict=True)
    )


def until(chapters: Chapters, done: Callable[[list[Chapter]], bool]) -> int:
    """Ask for updates until the table is long enough; how many there were."""
    step = 0
    while not done(chapters.table):
        chapters(step)
        step += 1
    return step - 1  # the last one belongs to the chapter that was added


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "text")


def test_every_text_is_read_once_an_epoch(tmp_path: Path, source: Path) -> None:
    run = Run(tmp_path, source)
    chapters, decode = run.chapters(), run.text.tokenizer.decode
    steps = until(chapters, lambda table: table[-1].epoch == 2)
    table = chapters.table
    per_epoch = next(k for k, line in enumerate(table) if line.epoch == 1)
    assert per_epoch >= 4 and [c.number for c in table] == [*range(per_epoch), *range(per_epoch), 0]
    held_out = {t for t in TEXTS if share(t) < FRACTION}
    orders = []
    for epoch in range(2):
        mine = [c for c in table if c.epoch == epoch]
        last = mine[-1].first + mine[-1].updates
        read = [decode(tokens.tolist()) for s in range(mine[0].first, last) for _, tokens in chapters.texts(s)]
        assert max(Counter(read).values()) == 1 and not held_out & set(read)
        left = sum(c.left_over for c in mine)
        assert len(read) == len(TEXTS) - len(held_out) - left and left < sum(c.per_step for c in mine)
        assert sum(c.documents + c.held_out for c in mine) == len(TEXTS)
        assert sum(c.held_out for c in mine) == len(held_out)
        orders.append(read)
    assert steps == table[-1].first and orders[0] != orders[1]
    inside = [json.loads(json.dumps(line.begin)) for line in table[:per_epoch]]
    assert inside == [line.begin for line in table[per_epoch : 2 * per_epoch]] and inside[0] == {}
    chapters.close()


def test_noise_and_order_differ_by_chapter_and_epoch(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    same_again = "".join(json.dumps({"text": t}) + "\n" for t in TEXTS[:60])
    for k in range(2):
        (tmp_path / "text" / f"{k}.jsonl").write_text(same_again)
    run = Run(tmp_path, tmp_path / "text", chapter=sum(len(t) for t in TEXTS[:60]))
    chapters = run.chapters()
    until(chapters, lambda table: len(table) == 4)
    a, b, c = ([chapters(line.first) for line in chapters.table][k] for k in (0, 1, 2))
    assert chapters.table[0].prepared != "" and chapters.table[2].epoch == 1
    assert not same(a, b) and not same(a, c) and not same(b, c)
    chapters.close()


def test_one_chapter_has_the_batches_of_the_corpus(tmp_path: Path, source: Path) -> None:
    run = Run(tmp_path, source, chapter=10**9)
    chapters, whole = run.chapters(), run.loader(run.text, None)
    (line,) = chapters.table
    assert line.end is None and line.documents == sum(share(t) >= FRACTION for t in TEXTS)
    full = line.updates - line.updates % whole.steps
    for step in range(full):
        assert same(chapters(step, step / 100), whole(step, step / 100))
    chapters.close()


def test_what_is_read_when_changes_nothing(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, source)
    ahead = run.chapters()
    steps = until(ahead, lambda table: table[-1].epoch == 1)
    batches, lines = [ahead(s, s / steps) for s in range(steps)], (run.out / TABLE).read_text()
    ahead.close()
    shutil.rmtree(run.out)
    run.out.mkdir()
    monkeypatch.setattr(Chapters, "_read_ahead", lambda self, number: None)
    late = run.chapters()
    for step in (0, steps - 1, *range(steps)):  # far ahead, back, and on
        assert same(late(step, step / steps), batches[step])
    assert lines.startswith((run.out / TABLE).read_text()) and len(late.table) == len(ahead.table) - 1
    late.close()


def test_a_stream_behind_a_server_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "web", files=1)
    server = Server(tmp_path / "web", ranges=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    run = Run(tmp_path, f"{server.url}/0.jsonl")
    first = run.chapters()
    steps = until(first, lambda table: table[-1].epoch == 1)
    wanted = first(steps - 1)
    first.close()
    shutil.rmtree(run.out / FOLDER)
    again = run.chapters(begin=False)
    assert same(again(steps - 1), wanted)
    again.close()
    server.shutdown()
    server.server_close()
    shutil.rmtree(run.out / FOLDER)
    monkeypatch.setattr(stream, "PAUSES", (0.0, 0.0))
    run.said.clear()
    gone = run.chapters(begin=False)
    with pytest.raises(UserError, match="no file can be reached at"):
        gone(steps - 1)
    assert len(run.said) == 2 and all("it is read again" in sentence for sentence in run.said)
    gone.close()


def test_going_on_opens_no_earlier_file(tmp_path: Path, source: Path) -> None:
    run = Run(tmp_path, source)
    first = run.chapters()
    steps = until(first, lambda table: table[-1].epoch == 1)
    wanted, line = first(steps - 1), first.table[-2]
    first.close()
    shutil.rmtree(run.out / FOLDER)
    assert line.begin["file"] >= 2
    for k in range(line.begin["file"]):  # as large as they were, and no JSON any more
        place = source / f"{k}.jsonl"
        place.write_text("x" * place.stat().st_size)
    again = run.chapters(begin=False)
    assert same(again(steps - 1), wanted)
    with pytest.raises(UserError, match=r"\d.jsonl:\d+ is no valid JSON"):
        again(first.table[1].first)
    again.close()


def test_a_stream_that_has_changed_is_refused(tmp_path: Path, source: Path) -> None:
    def refused(match: str) -> None:
        shutil.rmtree(run.out / FOLDER, ignore_errors=True)
        again = run.chapters(begin=False)
        with pytest.raises(UserError, match=match) as error:
            again(line.first)
        assert "\n" not in str(error.value)
        again.close()

    run = Run(tmp_path, source)
    first = run.chapters()
    until(first, lambda table: len(table) == 3)
    first.close()
    line, place = first.table[1], source / "1.jsonl"
    text = place.read_text()
    place.write_text(text.replace(TEXTS[100][:4], "9999"))
    refused("chapter 2 of .* holds another text than when this run read it: restore")
    place.write_text(text + "\n")
    refused(r"1.jsonl has [\d,]+ bytes, not [\d,]+: the stream .* has changed since the run was started")
    place.unlink()
    refused("1.jsonl is gone: the stream")
    place.write_text(text)
    (source / "0.a.jsonl").write_text("{}")  # what came later is no part of it
    again = run.chapters(begin=False)
    again(line.first)
    again.close()


def test_shards_of_old_chapters_go(tmp_path: Path, source: Path) -> None:
    run = Run(tmp_path, source, chapter=500)
    chapters = run.chapters()
    until(chapters, lambda table: len(table) == 5)
    chapters(chapters.table[-1].first)
    assert chapters.table[-1].epoch == 0
    kept = {p.name for p in (run.out / FOLDER).iterdir() if not p.name.startswith(".")}
    assert chapters.table[1].prepared not in kept and {line.prepared for line in chapters.table[2:5]} <= kept
    chapters.close()
    chapters.clear()
    assert not (run.out / FOLDER).exists()


def test_other_ranks_read_what_the_first_one_wrote(tmp_path: Path, source: Path) -> None:
    run = Run(tmp_path, source)
    first, other = run.chapters(), run.chapters(begin=False, writes=False)
    seen: list[list[Batch]] = []
    thread = threading.Thread(target=lambda: [seen.append(other(s)) for s in range(60)])
    thread.start()
    wanted: list[list[Batch]] = []
    for step in range(60):
        while len(seen) < step and thread.is_alive():  # no rank is an update ahead of another
            thread.join(0.01)
        wanted.append(first(step))
    thread.join(60)
    assert len(first.table) > 2 and len(seen) == 60 and all(map(same, seen, wanted))
    assert other.table == first.table and other.reader is None
    first.close()


def test_a_chapter_of_one_document_is_read(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for k in range(4):
        (tmp_path / "text" / f"{k}.txt").write_text("\n".join(TEXTS[60 * k : 60 * k + 60]))
    (tmp_path / "held.txt").write_text("held out")
    held = CorpusConfig(path=str(tmp_path / "held.txt"))
    run = Run(tmp_path, tmp_path / "text", valid=held, chapter=1, document="file")
    chapters = run.chapters()
    until(chapters, lambda table: len(table) == 5)
    assert all(line.documents == 1 and line.updates > 2 for line in chapters.table)
    assert [line.epoch for line in chapters.table] == [0, 0, 0, 0, 1]
    chapters.close()


def test_what_a_chapter_without_partners_holds_is_said(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for k in range(3):  # the second file is one line, and so is its chapter
        texts = [" ".join(TEXTS[80 * k : 80 * k + 80])] if k == 1 else TEXTS[80 * k : 80 * k + 80]
        (tmp_path / "text" / f"{k}.txt").write_text("\n".join(texts))
    size = len("".join(TEXTS[:80]))
    (tmp_path / "held.txt").write_text("held out\nto compare with")
    held = CorpusConfig(path=str(tmp_path / "held.txt"))
    run = Run(tmp_path, tmp_path / "text", NextSentence(), held, chapter=size, document="line", sentences=True)
    chapters = run.chapters()
    until(chapters, lambda table: len(table) == 3)
    _, single, after = chapters.table
    assert (single.documents, single.updates, single.per_step) == (1, 0, 0) and single.samples > 20
    assert after.first == single.first and after.updates
    assert any(f"{single.samples} samples are not read: its one document" in sentence for sentence in run.said)
    assert f"{single.samples} samples are not read" in chapters.coverage(after.first + 1)
    chapters.close()


def test_a_full_disk_is_text_that_cannot_be_read(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = Run(tmp_path, source)
    chapters = run.chapters()
    before = (run.out / TABLE).read_text()
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(Unread, match=r"no room to write .*stream.jsonl"):
            until(chapters, lambda table: len(table) == 2)
    assert len(chapters.table) == 1 and (run.out / TABLE).read_text() == before
    until(chapters, lambda table: len(table) == 2)
    line = chapters.table[1]
    chapters.loaders.clear()
    monkeypatch.setattr(Prepared, "load", lambda place: full(place, place))
    with pytest.raises(Unread, match=r"cannot be had .*No space left"):
        chapters(line.first)
    chapters.close()


def test_a_rank_waits_where_the_table_cannot_be_read_for_a_moment(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, source)
    first, other = run.chapters(), run.chapters(begin=False, writes=False)
    other(0)
    until(first, lambda table: len(table) == 2)
    first.close()
    read, fails = Path.read_text, [1, 1]

    def failing(self: Path, *args: Any, **more: Any) -> str:
        if self.name == TABLE and fails:
            fails.pop()
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(self, *args, **more)

    monkeypatch.setattr(Path, "read_text", failing)
    other(first.table[1].first)
    assert not fails and other.table == first.table


def test_a_reader_that_is_killed_is_named(tmp_path: Path, source: Path) -> None:
    run = Run(tmp_path, source)
    reader = Reader(run.corpus, run.text.tokenizer, run.out / FOLDER, run.text.span.files)  # type: ignore[union-attr]
    reader.process.kill()
    reader.process.wait()
    reader.ask(1, Position())
    with pytest.raises(UserError, match=r"the process that reads chapter 2 of .* was ended by something else"):
        reader.result()
    reader.close()


def test_a_reader_that_is_killed_is_replaced_once(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, kills = Reader.ask, [1]

    def killed(self: Reader, chapter: int, begin: Position) -> None:
        ask(self, chapter, begin)
        if kills:
            kills.pop()
            self.process.kill()
            self.process.wait()

    run = Run(tmp_path, source)
    monkeypatch.setattr(Reader, "ask", killed)
    chapters = run.chapters()
    until(chapters, lambda table: len(table) == 2)
    assert sum("first, another process reads it" in sentence for sentence in run.said) == 1
    chapters.close()
    kills += [1, 1]
    again = run.chapters()
    with pytest.raises(UserError, match="was ended by something else"):
        until(again, lambda table: len(table) == 4)
    again.close()


def test_the_first_chapter_is_found_again(tmp_path: Path, source: Path) -> None:
    one = Run(tmp_path, source)
    other = Run(tmp_path, source)
    assert other.said == [f"re-using the stream's first chapter in {one.text.directory}"]
    assert other.text.span == one.text.span and other.text.directory == one.text.directory
    assert not list((tmp_path / "cache").glob(".reading*"))
    left = tmp_path / "cache" / f".reading.{socket.gethostname()}.999999999-0.jsonl"
    left.write_text("by a process that was killed")
    text = (source / "0.jsonl").read_text()
    (source / "0.jsonl").write_text(text.replace("0001", "1111"))
    assert Run(tmp_path, source).text.directory != one.text.directory and not left.exists()


def test_an_edited_lexicon_is_noticed(tmp_path: Path, source: Path) -> None:
    lexicon = tmp_path / "words.txt"
    lexicon.write_text("word\n")
    one = Run(tmp_path, source, lexicon=str(lexicon))
    first = one.chapters()
    until(first, lambda table: len(table) == 2)
    first.close()
    shutil.rmtree(one.out / FOLDER)
    lexicon.write_text("0011\n")
    assert Run(tmp_path, source, lexicon=str(lexicon)).text.directory != one.text.directory
    again = one.chapters(begin=False)
    with pytest.raises(UserError, match=r"the lexicon is another version: the stream"):
        again(first.table[1].first)
    again.close()


def test_a_file_that_is_as_large_as_before_is_noticed(tmp_path: Path, source: Path) -> None:
    server = Server(source, ranges=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = source / "0.jsonl"
    whole = place.read_text()
    for where in (f"{server.url}/0.jsonl", str(place)):
        run = Run(tmp_path / where[:4].strip("/"), where, chapter=300)
        first = run.chapters()
        first.close()
        place.write_text(whole.replace(TEXTS[59], "9999" + TEXTS[59][4:]))
        os.utime(place, ns=(1, 1))
        again = run.chapters(begin=False)
        if where.startswith("http"):
            with pytest.raises(UserError, match=r"0.jsonl is another version: the stream .* has changed"):
                again(first.table[0].updates)
        else:
            run.said.clear()
            until(again, lambda table: len(table) == 3)
            assert sum("another date than when the run was started (1, first" in s for s in run.said) == 1
        again.close()
        place.write_text(whole)
    server.shutdown()
    server.server_close()


def test_a_corpus_behind_a_url_is_prepared_like_one_on_disk(tmp_path: Path, source: Path) -> None:
    here, there = (
        prepare(CorpusConfig(path=path), None, TokenizerConfig(type="byte"), tmp_path / "cache", lambda _: None)
        for path in (str(source), f"file://{source}/*.jsonl")
    )
    assert np.array_equal(here.train.tokens, there.train.tokens) and len(there.valid) == len(here.valid)


def test_what_a_study_looks_for_it_looks_for_in_the_first_chapter(tmp_path: Path, source: Path) -> None:
    from unmask.compare.contamination import contamination
    from unmask.recipe import load_recipe

    lines = [json.dumps({"text": " ".join(f"{i}-{k}" for k in range(15))}) + "\n" for i in range(90)]
    (source / "0.jsonl").write_text("".join(lines))  # twenty words are enough to be looked for
    settings = {"corpus": str(source / "0.jsonl"), "corpus.stream": True, "corpus.chapter": 3000, "budget.steps": 1}
    said: list[str] = []
    told = contamination(load_recipe("encoder-small", settings), {}, said.append)
    held_out = sum(share(json.loads(line)["text"]) < 0.05 for line in lines[:50])
    assert said[0].startswith("found in the stream's first chapter: held-out text: 0 of ") and told
    assert int(said[0].split(" of ")[1].split()[0]) <= held_out + 3


def test_what_a_stream_cannot_have_is_refused(tmp_path: Path, source: Path) -> None:
    with pytest.raises(UserError, match=r"the held-out part of .*text \(chapter 1\) is empty"):
        Run(tmp_path, source, chapter=1)
    with pytest.raises(UserError, match=r"a chapter of .* holds \d+ samples and an update takes \d+: raise corpus"):
        Run(tmp_path, source, chapter=150, valid_fraction=0.4, path=str(source)).chapters()
    with pytest.raises(ValueError, match="the source 'a' of a mixture has stream=true"):
        CorpusConfig.model_validate({"sources": {"a": str(source)}, "stream": True})
    corpus = CorpusConfig.model_validate({"path": str(source), "stream": True})
    with pytest.raises(UserError, match="of a stream one chapter is prepared"):
        prepare_part(corpus, None, TokenizerConfig(type="byte"), tmp_path / "cache", (1, 2), lambda _: None)


def test_a_table_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not say what was read of the stream"):
        read_table(tmp_path)
    (tmp_path / TABLE).write_text('{"format": 99, "files": []}\n')
    with pytest.raises(UserError, match="another format"):
        read_table(tmp_path)
