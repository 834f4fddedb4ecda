"""`unmask show --table`: counts beside formulas on prose, effective corruption by brute force, and what is printed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from unmask.batch import Batch, visible
from unmask.cli import app
from unmask.config import TokenizerConfig
from unmask.data.loader import Loader
from unmask.errors import UserError
from unmask.objectives import REGISTRY
from unmask.objectives.base import Objective
from unmask.objectives.denoise import TextToText
from unmask.show import layouts, named
from unmask.show.corruption import corruption, unseen
from unmask.show.density import Side, densities, deviations, texts_of
from unmask.show.expected import expected
from unmask.show.reading import Splitter
from unmask.show.table import lines
from unmask.tokens.tokenizer import Tokenizer

EVERY = [(name, kind) for name in REGISTRY.complete() for kind in layouts(REGISTRY.named(name)) or [None]]
PRESETS = list(REGISTRY.own_presets)


def printed(*words: str) -> str:
    done = CliRunner().invoke(app, ["show", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pydoc_data.topics import topics

    path = tmp_path_factory.mktemp("show") / "text.txt"
    path.write_text("\n\n".join(t for _, t in sorted(topics.items()))[:160_000], encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def table(corpus: Path) -> list[dict[str, Any]]:
    out = printed("--table", str(corpus), "--context", "256", "--limit", "30000", "--json").splitlines()
    return [json.loads(line) for line in out]


# ---------------------------------------------------------------- counts


def test_the_table_has_every_objective_and_layout(table: list[dict[str, Any]]) -> None:
    assert [(row["objective"], row["layout"]) for row in table] == [(n, k or "in place") for n, k in EVERY]
    assert {name for name, _ in EVERY} == {*REGISTRY.own_types, "apart"}  # a plug-in of ours; `opposed` needs settings
    assert [row for row in table if "refused" in row] == []
    for row in table:
        assert row["targets"] > 0 and row["content"] + row["marks"] <= row["targets"] + 1e-9
        assert (row["source"] is not None) == (row["layout"] == "encdec") and row["tokens/s"] > 0
        assert 0 <= row["corruption"] <= 1


def within(rows: list[dict[str, Any]]) -> None:
    for row in (r for r in rows if r["objective"] != "apart"):  # no formula is known for a plug-in
        assert "unknown" not in row and "refused" not in row, row
        assert abs(row["off"]) <= 3 and abs(row["off marks"]) <= 3, row


def test_counts_of_every_objective_are_within_three_deviations_of_its_formula(table: list[dict[str, Any]]) -> None:
    within(table)


@pytest.mark.parametrize("preset", [p for p in PRESETS if p not in ("glm_sentence", "spanbert")])
def test_so_are_those_of_every_preset(preset: str, corpus: Path) -> None:
    within(densities(str(corpus), preset, context=256, limit=8000, seed=3))


@pytest.mark.shared
@pytest.mark.parametrize(("folder", "context"), [("enwiki2015", 128), ("zhwiki", 96)])
def test_counts_on_wikipedia_in_subwords_are_within_three_deviations(
    folder: str, context: int, shared_data: Path, tmp_path: Path
) -> None:
    with gzip.open(shared_data / folder / "dev.jsonl.gz", "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line, _ in zip(file, range(60), strict=False)]
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts), encoding="utf-8")
    modes = [f"[{m}]" for m in ("NLU", "S2S", "NLG")]
    tokenizer = Tokenizer.train(TokenizerConfig(vocab_size=1500, extra=modes), texts[:20])
    within(densities(str(path), None, tokenizer, context=max(context, 160), limit=4 * context * 100))
    for words in ("whole_word", "albert", "albert_sop"):  # words of several tokens decide
        within(densities(str(path), words, tokenizer, context=context, limit=4 * context * 100))


def test_a_seed_is_other_noise_and_a_layout_is_one_row(corpus: Path) -> None:
    one, two = (densities(str(corpus), "prefix_lm", limit=3000, layout="prefix", seed=seed) for seed in (0, 1))
    assert [row["layout"] for row in one + two] == ["prefix", "prefix"] and one[0]["targets"] != two[0]["targets"]
    only = densities(str(corpus), None, limit=300, layout="causal", context=256)
    assert {row["layout"] for row in only} == {"causal"} and len(only) == sum(kind == "causal" for _, kind in EVERY)
    with pytest.raises(UserError, match="masked has no layout 'prefix'"):
        densities(str(corpus), "masked", layout="prefix")
    with pytest.raises(UserError, match="no objective has a layout 'side'"):
        densities(str(corpus), layout="side")


def test_texts_of_a_loader_are_those_it_batches(corpus: Path) -> None:
    objective = REGISTRY.make("next_sentence")
    side, split = read(corpus, objective)
    loader = Loader(side, objective, split.vocabulary, objective.shape(64), rows=8, seed=2, shuffle=False, kept=side)
    rows = texts_of(loader)
    assert rows.partner is not None and (rows.lengths == loader.pieces.length).all()
    made = objective(rows, split.vocabulary)
    batches = list(loader.once())
    assert sum(int((b.stream.block != 0).sum()) for b in batches) == len(made.stream.tokens)
    asked = sum(int((t.weight != 0).sum()) for b in batches for t in b.targets.values())
    assert asked == sum(len(t.value) for t in made.targets.values())
    told = expected(objective, rows)
    assert not isinstance(told, str) and abs(deviations(asked, told.targets, told.targets_variance)) <= 3


# ---------------------------------------------------------------- corruption


def read(corpus: Path, objective: Objective, tokens: int = 500) -> tuple[Side, Splitter]:
    text = corpus.read_text(encoding="utf-8")[: 5 * tokens]
    half = text.index(" ", len(text) // 2)
    split = Splitter.of(None, text, [objective])
    return Side.of(split([text[:half], text[half:]])), split


def by_hand(batch: Batch, first: int) -> tuple[int, int]:
    """Text by text and prediction by prediction, from the matrix of who sees whom."""
    samples = batch.samples
    assert samples is not None
    hidden = total = 0
    order = sorted(zip(samples.row.tolist(), samples.block.tolist(), strict=True))
    for number, (row, block) in enumerate(order):
        after = order[number + 1] if number + 1 < len(order) else (row, 10**9)
        mine = range(block, after[1] if after[0] == row else 10**9)
        held: set[int] = set()
        seen: list[set[int]] = []
        for name, stack in (("stream", batch.stream), ("source", batch.source)):
            if stack is None:
                continue
            tokens, blocks, width = stack.tokens[row], stack.block[row], stack.tokens.shape[1]
            sees = visible(blocks, stack.horizon[row], blocks, stack.reveal[row])
            held |= {int(t) for t, b in zip(tokens, blocks, strict=True) if t >= first and int(b) in mine}
            for key, t in batch.targets.items():
                if batch.heads[key].stack != name:
                    continue
                index = np.arange(stack.tokens.size) if t.index is None else t.index.reshape(len(t.index), -1)
                for at, value, weight in zip(index.reshape(len(t.value), -1), t.value, t.weight, strict=True):
                    r, place = divmod(int(at[0]), width)
                    if not weight or r != row or int(blocks[place]) not in mine:
                        continue
                    if batch.heads[key].over == "vocabulary" and value >= first:
                        held.add(int(value))
                    view = {int(tokens[k]) for p in at for k in np.flatnonzero(sees[int(p) % width])}
                    if name == "stream" and batch.source is not None:
                        there = batch.source.block[row] == blocks[place]
                        view |= {int(x) for x in batch.source.tokens[row][there]}
                    seen.append(view)
        total += len(held)
        hidden += sum(any(x not in view for view in seen) for x in held)
    return hidden, total


@pytest.mark.parametrize(
    "objective",
    [pytest.param(named(n, k), id=f"{n}-{k}") for n, k in EVERY]
    + [pytest.param(REGISTRY.make(p), id=p) for p in PRESETS],
)
def test_corruption_is_what_the_predictions_of_each_text_do_not_see(objective: Objective, corpus: Path) -> None:
    side, split = read(corpus, objective)
    side, first = side.numbered(split.vocabulary.size), split.vocabulary.size
    shape = objective.shape(160 if objective.type == "pairs" else 64)
    loader = Loader(side, objective, split.vocabulary, shape, rows=4, seed=1, shuffle=False, kept=side)
    batches = list(loader.once())
    assert [unseen(b, first) for b in batches] == [by_hand(b, first) for b in batches]
    assert corruption(loader) == pytest.approx(sum(unseen(b, first)[0] for b in batches) / count(batches, first))


def count(batches: list[Batch], first: int) -> int:
    return sum(unseen(b, first)[1] for b in batches)


def test_corruption_is_the_nominal_rate_of_every_noise(table: list[dict[str, Any]]) -> None:
    found = {(row["objective"], row["layout"]): row["corruption"] for row in table}
    for kind in ("encdec", "prefix", "causal"):
        assert abs(found["span_corruption", kind] - 0.15) < 0.005 and abs(found["dropped_tokens", kind] - 0.15) < 0.005
        assert abs(found["bart", kind] - 0.3) < 0.005 and abs(found["restoration", kind] - 0.15) < 0.005
        assert abs(found["mass", kind] - 0.5 * 0.9) < 0.01  # one in ten of the fragment is kept
    assert abs(found["masked", "in place"] - 0.15 * 0.9) < 0.006
    assert abs(found["glm", "in place"] - 0.15) < 0.005 and abs(found["permutation", "in place"] - 1 / 6) < 0.005
    assert abs(found["replaced", "in place"] - 0.15 * 0.85) < 0.006 and abs(found["diffusion", "in place"] - 0.5) < 0.06
    assert all(found[n, "in place"] == 1 for n in ("causal", "multi_token", "fill_in_the_middle", "dials"))
    # all of them see the source of a pair, and not every one a token of its target
    assert 0.3 < found["pairs", "prefix"] < 0.6 and 0.4 < found["prefix_lm", "prefix"] < 0.6


# ---------------------------------------------------------------- what is printed


def test_the_notes_figures_are_quoted_beside_and_not_matched(corpus: Path) -> None:
    out = " ".join(printed("causal", "--table", str(corpus), "--limit", "2000").split())
    assert all(figure in out for figure in ("1,000 causal", "533 prefix LM", "137 masked", "187 T5", "103 sentinels"))
    assert "135 (61 sentinels)" in out and "not matched" in out


def test_the_table_fits_a_wide_terminal_and_keeps_its_columns(table: list[dict[str, Any]]) -> None:
    out = lines(table)
    assert max(map(len, out)) <= 120
    head, first = out[0], out[1]
    assert head.split() == [
        *("objective", "layout", "targets", "content", "marks", "expected", "off", "of", "marks", "off"),
        *("stream", "source", "corruption", "M/s"),
    ]
    assert first.split()[:3] == ["causal", "in", "place"] and "-0.00" not in "\n".join(out)
    for name in ("targets", "content", "stream", "corruption"):  # numbers end where their names do
        at = head.index(name) + len(name)
        assert all(line[at - 1] != " " and line[at] == " " for line in out[1 : 1 + len(table)])


def test_what_has_no_formula_or_no_room_is_said_below(corpus: Path) -> None:
    out = printed("glm_sentence", "--table", str(corpus), "--limit", "3000")
    assert "glm_sentence has no formula: the lengths do not tell which sentences come first" in " ".join(out.split())
    out = printed("pairs", "--table", str(corpus), "--limit", "3000", "--context", "128")
    assert out.startswith("\npairs (encdec) is left out: context=128 leaves no room")
    out = printed("salient_spans", "--table", str(corpus), "--limit", "3000")
    assert "salient_spans: the second and third word of every five stand in" in out


def test_text_to_text_is_counted_in_each_layout() -> None:
    assert {name for name, kind in EVERY if kind} == {
        name for name, cls in REGISTRY.own_types.items() if issubclass(cls, TextToText)
    }
