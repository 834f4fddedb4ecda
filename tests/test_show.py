"""`unmask show`: records as the design has them, pictures that agree with the rule, and densities by formula."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from unmask.batch import INFINITY, visible
from unmask.cli import app, main
from unmask.errors import UserError
from unmask.objectives import OWN, REGISTRY, Causal, Masked, PrefixLM, SpanCorruption
from unmask.objectives.base import Objective, outline
from unmask.show import layouts, listing, named, show
from unmask.show.density import deviations
from unmask.show.draw import cells_wide, grid
from unmask.show.expected import RULES, expected
from unmask.show.reading import Words, controls_of
from unmask.tokens.special import ROLES
from unmask.tokens.tokenizer import Tokenizer

TEXT = "Thank you for inviting me to your party last week. It was fun, and the food was good! We danced. See you soon."
EVERY = [(name, kind) for name, cls in REGISTRY.own_types.items() for kind in layouts(cls) or [None]]
CHANNELS = {"tokens", "positions", "block", "reveal", "horizon"}


def printed(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["show", *words], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout


def records(*words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed(*words, "--text", TEXT, "--json").splitlines()]


# ---------------------------------------------------------------- records


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_records_of_every_objective_hold_what_the_objective_made(name: str, kind: str | None) -> None:
    objective = named(name, kind)
    found = show(objective, TEXT, count=3)
    made = objective(found.reading.rows, found.reading.vocabulary)
    heads = {h.name: h for h in objective.heads()}
    assert len(found.records) == 3
    total = dict.fromkeys(made.targets, 0)
    for r, record in enumerate(found.records):
        json.dumps(record, allow_nan=False)
        assert set(record) >= {"stream", "source", "targets", "pieces"}
        for key, stream in (("stream", made.stream), ("source", made.source)):
            assert (record[key] is None) == (stream is None)
            if stream is not None:
                part = slice(*stream.start[r : r + 2])
                assert set(record[key]) >= CHANNELS and record[key]["tokens"] == stream.tokens[part].tolist()
                assert record[key]["reveal"] == stream.reveal[part].tolist()
        assert len(record["pieces"]) == len(record["stream"]["tokens"])
        for head, t in record["targets"].items():
            stack = record[heads[head].stack]
            total[head] += len(t["value"])
            assert len(t["value"]) == len(t["weight"]) == len(t["index"] or t["value"])
            for at in t["index"] or []:
                inside = at if isinstance(at, list) else [at]
                assert len(inside) == heads[head].arity and all(0 <= i < len(stack["tokens"]) for i in inside)
    assert total == {head: len(t.value) for head, t in made.targets.items()}


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_drawings_of_every_objective_fit_and_show_every_target(name: str, kind: str | None) -> None:
    found = show(named(name, kind), TEXT, count=2)
    lines = found.lines(90)
    drawn = "\n".join(lines)
    assert max(cells_wide(line) for line in lines[2:] if "who sees" not in line and "■" not in line) <= 90
    assert drawn.count("example ") == 2
    for record in found.records:
        for head, t in record["targets"].items():
            assert head in drawn or not t["value"]


def test_json_is_one_object_an_example_and_text_to_text_has_a_source() -> None:
    one, two = records("span_corruption", "--count", "2")
    assert one["stream"]["tokens"] != two["stream"]["tokens"] and one["source"]["tokens"][-1] == 6
    assert one["pieces"][:2] == ["[BOS]", "<extra_id_0>"]
    (prefix,) = records("t5", "--layout", "prefix")
    assert prefix["source"] is None and prefix["stream"]["reveal"].count(0) > 5
    index = prefix["targets"]["lm"]["index"]
    assert index == list(range(index[0], len(prefix["stream"]["tokens"])))


def test_noise_is_the_seed_s_and_the_first_example_is_the_same_alone() -> None:
    assert records("masked", "--seed", "3") == records("masked", "--seed", "3") != records("masked", "--seed", "4")
    assert records("masked", "--count", "3")[:1] == records("masked")


def test_infinity_prints_as_the_largest_int32() -> None:
    (record,) = records("permutation")
    assert INFINITY == 2147483647
    assert max(record["stream"]["reveal"]) == 2147483647 and "(query)" in record["pieces"]


def test_two_positions_are_lists() -> None:
    (record,) = records("spanbert")
    found = [t for t in record["targets"].values() if t["index"] and isinstance(t["index"][0], list)]
    assert found and all(len(at) == 2 for at in found[0]["index"]) and "extra" in found[0]


# ---------------------------------------------------------------- reading


def test_without_a_tokenizer_words_and_punctuation_are_the_vocabulary() -> None:
    stub = Words.of("The [MASK]'s end.")
    names = [name for name in stub.table if not name.startswith("<extra")]
    assert names == [*ROLES.values(), "The", "[", "MASK", "]", "'", "s", "end", "."]
    assert stub.vocabulary.mask not in stub.ids("The [MASK]'s end.")
    assert len(stub.vocabulary.sentinels) == 100
    (record,) = records("causal")
    assert record["pieces"][:4] == ["[BOS]", "Thank", "you", "for"]


def test_the_stub_has_the_mode_tokens_that_an_objective_asks_for() -> None:
    asked = controls_of(REGISTRY.make("ul2"))
    assert len(asked) == 3
    seen = {piece for record in records("ul2", "--count", "20") for piece in record["source_pieces"][:1]}
    assert seen == asked


def test_with_a_tokenizer_ids_are_its_own(tmp_path: Path) -> None:
    from unmask.config import TokenizerConfig

    tokenizer = Tokenizer.train(TokenizerConfig(vocab_size=400), [TEXT] * 3)
    tokenizer.save(tmp_path / "t.json")
    (record,) = records("causal", "--tokenizer", str(tmp_path / "t.json"))
    assert record["targets"]["lm"]["value"][:-1] == tokenizer.encode(TEXT).tolist()
    drawn = printed("causal", "--tokenizer", str(tmp_path / "t.json"), "--text", "the food")
    assert "▁" in drawn and "vocabulary:" not in drawn


# ---------------------------------------------------------------- drawings


def test_targets_stand_under_their_positions() -> None:
    shown = show("masked", TEXT, settings={"mask_rate": 0.3})
    targets = shown.records[0]["targets"]["lm"]
    asked = dict(zip(targets["index"], targets["value"], strict=True))
    lines, seen = shown.lines(100), 0
    for at, line in enumerate(lines):
        if line.strip().startswith("input"):
            spots = {int(m[0]): (m.start(), m.end()) for m in re.finditer(r"\d+", lines[at - 1])}
            for position, (begin, end) in spots.items():
                under = [m[0] for m in re.finditer(r"\S+", lines[at + 1][8:]) if m.start() + 8 < end + 9]
                cell = _cell(lines[at + 1], (begin + end) // 2)
                seen += position in asked
                assert cell == (shown.reading.spell(asked[position]) if position in asked else ""), (position, under)
    assert seen == len(asked) >= 5


def _cell(line: str, column: int) -> str:
    """The word that stands at, or right beside, a column behind the label."""
    return next((m[0] for m in re.finditer(r"\S+", line) if m.start() - 1 <= column <= m.end() and m.start() > 7), "")


@pytest.mark.parametrize("name", ["causal", "prefix_lm", "masked", "permutation"])
def test_the_grid_is_the_rule_of_visible(name: str) -> None:
    record = show(name, "the cat sat on the mat", seed=1).records[0]
    stack = record["stream"]
    block, reveal, horizon = (np.array(stack[k]) for k in ("block", "reveal", "horizon"))
    seen = visible(block, horizon, block, reveal)
    lines = grid(stack, {1})
    if seen.all():
        assert lines == [f"who sees whom: every position sees every other ({seen.size} pairs)"]
        return
    drawn = np.array([[c == "■" for c in line[6:].split(" ")] for line in lines[2:]])
    assert (drawn == seen).all() and lines[3].startswith("  1*") and f"{seen.sum()} of {seen.size} pairs" in lines[0]


def test_wide_characters_line_up() -> None:
    lines = show("causal", "北京 is big 上海").lines(100)
    place, pieces = next((lines[i - 1], line) for i, line in enumerate(lines) if line.strip().startswith("input"))
    column = cells_wide(pieces[: pieces.index("is")])
    assert place[column - 1 : column + 3].strip() == "2"


# ---------------------------------------------------------------- the command


def test_list_names_every_objective_in_one_line_or_one_array() -> None:
    rows = json.loads(printed("--list", "--json"))
    assert [row["name"] for row in rows] == REGISTRY.names and all(row["about"] for row in rows)
    presets = {p["name"]: p["about"] for row in rows for p in row["presets"]}
    assert set(presets) == set(REGISTRY.own_presets) and all(presets.values())
    lines = printed("--list").splitlines()
    assert len(lines) == len(rows) + len(presets)
    assert listing()[1] == []


REFUSED = {
    "nothing": ([], "say what to show"),
    "text alone": (["--text", "a b"], "name an objective"),
    "unknown": (["maskd", "--text", "a b"], "did you mean 'masked'?"),
    "empty text": (["masked", "--text", " "], "the text holds no tokens"),
    "layout of none": (["masked", "--text", "a b", "--layout", "prefix"], "masked has no layout 'prefix'"),
    "unknown layout": (["t5", "--text", "a b", "--layout", "encoder"], "it has: encdec, prefix, causal"),
    "unknown setting": (["masked", "--text", "a", "--set", "mask_rat=1"], "did you mean 'mask_rate'?"),
    "bad setting": (["masked", "--text", "a", "--set", "mask_rate=2"], "less than or equal to 1"),
    "no pair": (["masked", "--text", "a", "--set", "mask_rate"], "is not an override"),
    "no corpus": (["--table", "gone.txt"], "no such corpus file: gone.txt"),
    "set without name": (["--table", "gone.txt", "--set", "a=1"], "--set goes with the name"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_sentence_and_exit_code_2(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, expected_text = REFUSED[case]
    monkeypatch.setattr("sys.argv", ["unmask", "show", *words])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capsys.readouterr()
    assert left.value.code == 2 and out == "" and err.startswith("error: ") and expected_text in err
    assert len(err.strip().splitlines()) == 1


def test_settings_nest_and_layout_goes_with_them() -> None:
    (record,) = records("t5", "--set", "layout.kind=causal", "--set", "noise_density=0.5")
    assert record["source"] is None and record["stream"]["reveal"] == list(range(len(record["pieces"])))
    (front,) = records("prefix_lm", "--layout", "prefix", "--set", "layout.bos=boundary")
    assert front["pieces"][0] != "[BOS]"


# ---------------------------------------------------------------- densities


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pydoc_data.topics import topics

    path = tmp_path_factory.mktemp("show") / "text.txt"
    path.write_text("\n\n".join(t for _, t in sorted(topics.items()))[:160_000], encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def table(corpus: Path) -> list[dict[str, Any]]:
    lines = printed("--table", str(corpus), "--context", "256", "--limit", "30000", "--json").splitlines()
    return [json.loads(line) for line in lines]


def test_the_table_has_every_objective_and_layout(table: list[dict[str, Any]]) -> None:
    assert [(row["objective"], row["layout"]) for row in table] == [(n, k or "in place") for n, k in EVERY]
    assert [row for row in table if "refused" in row] == []
    for row in table:
        assert row["targets"] > 0 and row["content"] + row["marks"] <= row["targets"] + 1e-9
        assert (row["source"] is not None) == (row["layout"] == "encdec") and row["tokens/s"] > 0
        assert 0 <= row["corruption"] <= 1


def test_counts_are_within_three_deviations_of_the_formulas(table: list[dict[str, Any]]) -> None:
    told = [row for row in table if row["expected"] is not None]
    assert {REGISTRY.named(row["objective"]) for row in told} == set(RULES) & set(OWN)
    for row in told:
        assert abs(row["off"]) <= 3 and abs(row["off marks"]) <= 3, row


def test_fixed_counts_and_corruption(table: list[dict[str, Any]]) -> None:
    by_name = {(row["objective"], row["layout"]): row for row in table}
    assert by_name["causal", "in place"]["targets"] == 1000 and by_name["causal", "in place"]["corruption"] < 0.01
    assert abs(by_name["masked", "in place"]["corruption"] - 0.15 * 0.9) < 0.006  # one in ten is kept
    spans = [by_name["span_corruption", kind] for kind in ("encdec", "prefix", "causal")]
    assert all(abs(row["corruption"] - 0.15) < 0.004 for row in spans)
    assert by_name["span_corruption", "encdec"]["off"] == 0


def test_the_notes_figures_are_quoted_beside_and_not_matched(corpus: Path) -> None:
    out = printed("causal", "--table", str(corpus), "--limit", "2000")
    assert all(figure in out for figure in ("1,000 causal", "533 prefix LM", "137 masked", "187 T5", "103 sentinels"))
    assert "135 (61 sentinels)" in out and "not matched" in out


def test_a_wrong_formula_would_be_seen() -> None:
    assert deviations(100, 100, 0) == 0 and deviations(101, 100, 0) == float("inf")
    assert deviations(130, 100, 100) == 3


ODD = {
    "masked independent": Masked(selection="independent", mask_rate=0.3),
    "masked 40 %": Masked(mask_rate=0.4),
    "spans mean 1": SpanCorruption(mean_span=1),
    "spans official": SpanCorruption(edges="official", final_sentinel=False, noise_density=0.4),
    **{name: REGISTRY.make(name) for name, cls in REGISTRY.own_types.items() if cls in RULES},
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("lengths", [[40] * 400, [1, 2, 3, 7, 30, 64] * 60])
def test_formulas_hold_on_odd_settings_and_lengths(name: str, lengths: list[int]) -> None:
    objective: Objective = ODD[name]
    rows = show_rows(objective, lengths)
    stub = Words.of(" ".join(f"w{i}" for i in range(200)), sorted(controls_of(objective))).vocabulary
    made = objective(rows, stub)
    of = outline(rows)
    formula = expected(objective, of.lengths, of.ends)
    assert formula is not None
    weighted = [(t.value[t.weight != 0], h) for h in objective.heads() if (t := made.targets.get(h.name)) is not None]
    targets = sum(len(value) for value, _ in weighted)
    marks = sum(int(np.isin(value, stub.sentinels).sum()) for value, h in weighted if h.over == "vocabulary")
    assert abs(deviations(targets, formula.targets, formula.targets_variance)) <= 3.3, (targets, formula)
    assert abs(deviations(marks, formula.marks, formula.marks_variance)) <= 3.3, (marks, formula)


def show_rows(objective: Objective, lengths: list[int]) -> Any:
    """Texts of these lengths with every field that may be needed, half of which end their document."""
    from dataclasses import replace

    from unmask import keyed
    from unmask.batch import Rows

    rng = np.random.default_rng(1)
    keys = keyed.row_keys(5, 0, np.arange(len(lengths)))
    rows = Rows.of([rng.integers(107, 200, n) for n in lengths], keys, ends=np.arange(len(lengths)) % 2 == 0)
    first = np.isin(np.arange(len(rows.tokens)), rows.start)
    word, sentence = (first | (rng.random(len(first)) < p) for p in (0.7, 0.1))
    rows = replace(rows, word=word, sentence=sentence, spans=np.zeros((0, 2), np.int64))
    return replace(rows, partner=replace(rows, key=keys + np.uint64(1))) if "partner" in objective.needs else rows


def test_the_prefix_formula_is_the_mean_over_every_split() -> None:
    for n, ends in itertools.product((1, 2, 5, 9), (True, False)):
        counts = [n - split + ends for split in range(n)]
        found = expected(PrefixLM(), np.array([n]), np.array([ends]))
        assert found is not None
        assert abs(found.targets - np.mean(counts)) < 1e-9 and abs(found.targets_variance - np.var(counts)) < 1e-9
    assert expected(Causal(), np.array([3, 4]), np.array([True, False])).targets == 8  # type: ignore[union-attr]


def test_show_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UserError, match="no objective"):
        show("nothing", TEXT)
