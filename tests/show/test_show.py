"""`unmask show`: records as the design has them, and pictures that agree with the rule."""

from __future__ import annotations

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
from unmask.objectives import REGISTRY
from unmask.show import first_line, layouts, listing, named, show
from unmask.show.draw import cells_wide, columns, grid
from unmask.show.reading import Words
from unmask.show.table import lines
from unmask.tokens.asked import spelt_controls
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
        assert set(record) == {"stream", "source", "targets", "pieces"}
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
    assert max(map(cells_wide, lines)) <= 90
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
    asked = spelt_controls(REGISTRY.make("ul2"))
    assert len(asked) == 3
    seen = {piece for record in records("ul2", "--count", "20") for piece in record["source"]["pieces"][:1]}
    assert seen == set(asked)


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
    lines = grid(stack, {1}, width=200)
    if seen.all():
        assert lines == [f"who sees whom: every position sees every other ({seen.size} pairs)"]
        return
    drawn = np.array([[c == "■" for c in line[6:].split(" ")] for line in lines[2:]])
    assert (drawn == seen).all() and lines[3].startswith("  1*") and f"{seen.sum()} of {seen.size} pairs" in lines[0]


def test_wide_characters_line_up() -> None:
    lines = show("causal", "北京 is big 上海").lines(100)
    place, pieces = next((lines[i - 1], line) for i, line in enumerate(lines) if line.strip().startswith("input"))
    column = cells_wide(pieces[: pieces.index("is")])
    assert place[column - 1 : column + 3].strip() == "3"


TEXTS = {
    "prose": TEXT,
    "one token": "cat",
    "Chinese": "北京是中国的首都。上海很大！我喜欢茶。",
    "long": " ".join(f"word{i} and so on." for i in range(45)),
    "odd": "e\u0301tude \U0001f600\U0001f600 na\u00efve \u05e9\u05dc\u05d5\u05dd 3.14 --- x_1",
}
ALL = [*EVERY, *((name, None) for name in REGISTRY.own_presets)]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("width", [80, 120])
def test_every_objective_and_preset_draws_every_text(text: str, width: int) -> None:
    for name, kind in ALL:
        for seed in (0, 1):
            found = show(named(name, kind), TEXTS[text], seed=seed, count=2)
            lines = found.lines(width)
            assert max(map(cells_wide, lines)) <= width, (name, max(lines, key=cells_wide))
            for record in found.records:
                assert_drawn(found, record, lines)


def assert_drawn(found: Any, record: dict[str, Any], lines: list[str]) -> None:
    """Every cell of every target stands in the drawing, as often as it must."""
    drawn = "\n".join(lines).split()
    for head in found.objective.heads():
        t = record["targets"].get(head.name)
        if t is None or head.over != "vocabulary" or head.pool != "at":
            continue
        for value in set(t["value"]):
            assert found.reading.spell(value) in drawn, (head.name, found.reading.spell(value))


@pytest.mark.parametrize("layout", ["encdec", "prefix", "causal"])
def test_chinese_without_a_tokenizer_is_characters(layout: str) -> None:
    (record,) = show("t5", "北京is大的。", layout=layout, settings={"noise_density": 0.4}).records
    pieces = [p for p in (record["source"] or {"pieces": []})["pieces"] + record["pieces"] if p[0] not in "<["]
    assert sorted(set(pieces)) == sorted(["北", "京", "is", "大", "的", "。"])


def test_what_a_terminal_would_obey_and_blanks_are_drawn() -> None:
    lines = columns({"input": [" a", "b\n", "\t", "\x1b[31m", "c\u200f"]}, 60)
    assert lines == [" input  ▁a b⏎ ⇥ \\x1b[31m c\\x200f"]


# ---------------------------------------------------------------- two networks


@pytest.mark.parametrize("preset", ["electra", "deberta_v3", "electra_15", "replace_mlm", "all_tokens_mlm"])
@pytest.mark.parametrize("seed", range(4))
def test_both_inputs_and_targets_of_replaced_tokens_are_shown(preset: str, seed: int) -> None:
    found = show(preset, TEXT, seed=seed, count=3, settings={"mask_rate": 0.3})
    own = found.reading.rows.tokens[: found.reading.rows.lengths[0]].tolist()
    text = [found.reading.vocabulary.need("cls"), *own, found.reading.vocabulary.need("sep")]
    for record in found.records:
        lm, corrupt = record["targets"]["lm"], record["stream"]["corrupt"]
        assert [text[i] for i in lm["index"]] == lm["value"]
        kept = [i for i in range(len(text)) if i not in lm["index"]]
        assert [corrupt[i] for i in kept] == [text[i] for i in kept] == [record["stream"]["tokens"][i] for i in kept]
        for at, draw in zip(lm["index"], lm["draw"], strict=True):
            assert corrupt[at] == sorted(own)[int(draw * len(own))]
        replaced = [int(a != b) for a, b in zip(corrupt, text, strict=True)]
        if (rtd := record["targets"].get("rtd")) is not None:
            assert rtd["value"] == [replaced[i] for i in rtd["index"]] and rtd["names"] == ["original", "replaced"]
        if (copy := record["targets"].get("copy")) is not None:
            assert copy["value"] == [1 - replaced[i] for i in copy["index"]] and copy["names"] == ["write", "copy"]
        if (recovery := record["targets"].get("recovery")) is not None:
            assert recovery["value"] == [text[i] for i in recovery["index"]]
    assert any(r["stream"]["corrupt"] != text for r in found.records)


def test_the_stub_generator_is_sampled_as_a_trained_one_is() -> None:
    """By the inverse distribution of its softmax, at the targets' own uniforms."""
    torch = pytest.importorskip("torch")
    from unmask.vocabulary import inverse

    record = show("electra", TEXT, settings={"mask_rate": 0.5}).records[0]
    found = show("electra", TEXT, settings={"mask_rate": 0.5})
    often = torch.bincount(torch.tensor(found.reading.rows.tokens.tolist())).double()
    lm = record["targets"]["lm"]
    drawn = inverse(
        (often / often.sum()).float().expand(len(lm["draw"]), -1), torch.tensor(lm["draw"], dtype=torch.float64)
    )
    assert drawn.tolist() == [record["stream"]["corrupt"][i] for i in lm["index"]]


def test_the_drawing_of_replaced_tokens_has_a_stretch_for_each_network() -> None:
    drawn = "\n".join(show("electra", "the chef cooked the meal", seed=3, settings={"mask_rate": 0.4}).lines(100))
    generator, discriminator = (re.search(rf"^ *{n}  (.*)", drawn, re.M) for n in ("generator", "discriminator"))
    assert generator is not None and "[MASK]" in generator[1]
    assert discriminator is not None and "[MASK]" not in discriminator[1]
    assert drawn.index("lm  ") < drawn.index("discriminator  ") < drawn.index("rtd  ")
    assert "original" in drawn and "none is trained here" in drawn
    assert "generator" not in "\n".join(show("bert", TEXT).lines(100))


# ---------------------------------------------------------------- pairs


def test_a_target_is_given_or_stood_in_for() -> None:
    (record,) = [
        json.loads(x) for x in printed("pairs", "--text", "thank you", "--target", "danke", "--json").splitlines()
    ]
    assert record["pieces"] == ["[BOS]", "danke"] and record["source"]["pieces"] == ["thank", "you", "[EOS]"]
    drawn = printed("pairs", "--text", "thank you", "--target", "danke")
    assert re.search(r"^target  danke$", drawn, re.M) and "turned round" not in drawn
    stood = printed("pairs", "--text", "thank you")
    assert re.search(r"^target  you thank$", stood, re.M) and "--target TEXT takes yours" in " ".join(stood.split())
    assert re.search(r"^partner  b a$", printed("next_sentence", "--text", "a b"), re.M)


# ---------------------------------------------------------------- the command


def test_list_names_every_objective_in_one_line_or_one_array() -> None:
    rows = json.loads(printed("--list", "--json"))
    assert [row["name"] for row in rows] == REGISTRY.names and all(row["about"] for row in rows)
    presets = {p["name"]: p["about"] for row in rows for p in row["presets"]}
    assert set(presets) == set(REGISTRY.own_presets) and all(presets.values())
    lines = printed("--list").splitlines()
    assert len(lines) == len(rows) + len(presets)
    assert listing()[1] == []


def test_every_preset_has_a_line_of_its_own() -> None:
    assert [name for name, make in REGISTRY.own_presets.items() if not first_line(make)] == []
    assert [name for name, cls in REGISTRY.own_types.items() if not first_line(cls)] == []


REFUSED = {
    "target of others": (["masked", "--text", "a b", "--target", "c"], "masked makes its targets from the text itself"),
    "empty target": (["pairs", "--text", "a b", "--target", ""], "the target holds no tokens"),
    "count of a table": (["--table", "gone.txt", "--count", "2"], "--target, --count and --progress go with --text"),
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


def test_show_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UserError, match="no objective"):
        show("nothing", TEXT)


# ---------------------------------------------------------------- along the run, and one objective's list


def test_what_changes_along_the_run_is_shown_at_its_point_and_said() -> None:
    """ERNIE hides tokens, then phrases, then entities, which the beginning of a run alone does not show."""
    text = ["ernie", "--text", "The cat sat on the mat and saw the dog."]
    early, late = printed(*text), printed(*text, "--progress", "1")
    assert early != late and "(at 0 of the run, along which this objective changes" in early
    assert "(at 1 of the run" in late and late == printed(*text, "--progress", "1")
    assert "along which" not in printed("bert", *text[1:])
    assert "along which" in printed("masked", *text[1:], "--set", "mask_rate=0.5", "--set", "final_rate=0.1")
    assert "along which" in printed("antlm", *text[1:])


def test_the_list_of_one_objective_or_preset() -> None:
    every, one = listing()[0], listing("masked")[0]
    assert one == listing("bert")[0] == [row for row in every if row["name"] == "masked"]
    assert [line.split()[0] for line in printed("bert", "--list").splitlines()][:2] == ["masked", "bert"]
    with pytest.raises(UserError, match=r"'brt' is no objective .*did you mean 'bert'"):
        listing("brt")


def test_a_hyphen_at_the_end_of_a_line_joins_its_word() -> None:
    about = [preset["about"] for row in listing()[0] for preset in row["presets"]]
    assert any("gradient-disentangled" in told for told in about)
    assert not [told for told in about if re.search(r"[a-z]- [a-z]", told)]


def test_the_notes_of_a_table_say_whose_figures_they_quote_and_nothing_twice(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(f"{TEXT}\n\n" * 20)
    out = printed("causal", "--table", str(tmp_path / "text.txt"), "--context", "32")
    assert "The CS324 lecture notes on architectures and objectives counted" in " ".join(out.split())
    row = {"objective": "mine", "layout": "in place", "unknown": "what it asks for"}
    told = " ".join("\n".join(lines([row])).split())
    assert "mine has no formula: the lengths do not tell what it asks for." in told and told.count("formula:") == 1
