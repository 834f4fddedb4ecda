"""What a study is asked for, how it is frozen, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unmask.compare.disk import grown, keep, read
from unmask.compare.results import Results
from unmask.compare.settings import Study, frozen, sort_out
from unmask.errors import UserError
from unmask.recipe import shipped


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("some words, and more of them.\n" * 40)
    return file


def study(text: Path, *words: str) -> Study:
    entries, settings = sort_out([*words, f"corpus={text}"])
    return frozen(entries, settings, " ".join(words))


def test_an_entry_has_a_name_and_overrides_of_its_own(text: Path) -> None:
    found = study(
        text,
        "encoder-small",
        "bert=encoder-small:objective.preset=bert,model.num_layers=2,tokenizer.extra=[a,b],train.batch_size=4",
        "train.batch_size=2",
        "budget.flops=1e9",
        "seeds=3",
        "tune=lr:4",
    )
    assert list(found.entries) == ["encoder-small", "bert"]
    plain, bert = (found.recipe(name) for name in found.entries)
    assert (plain.train.batch_size, bert.train.batch_size) == (2, 4)
    assert bert.model.num_layers == 2 and plain.model.num_layers == 4
    assert bert.tokenizer.extra == ("a", "b") and bert.objective.model_dump()["mask_rate"] == 0.15
    assert plain.budget == bert.budget and plain.budget.flops == 1e9
    assert found.budget == {"flops": 1e9} and found.seeds == [0, 1, 2] and found.milestones == 8
    assert found.tune is not None and (found.tune.count, found.tune.share, found.tune.seed) == (4, 0.25, 1000)
    assert plain.corpus.path == str(text)


def test_the_held_out_seed_is_none_of_the_runs(text: Path) -> None:
    found = study(text, "encoder-small", "budget.steps=9", "seeds=1000,1001", "tune=lr:3:0.5")
    assert found.tune is not None and found.tune.seed == 1002 and found.tune.share == 0.5


def test_a_file_lists_entries_and_settings_and_words_come_after(text: Path, tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        "entries:\n"
        "  bert: {recipe: encoder-small, objective.preset: bert, train: {batch_size: 4}}\n"
        "  gpt: decoder-small\n"
        "budget: {flops: 1e9}\n"
        "seeds: 2\n"
        "model: {num_layers: 1}\n"
        "suites: {cloze: null}\n"
    )
    found = study(text, str(file), "budget.steps=7", "model.num_layers=2", "prefix-small")
    assert list(found.entries) == ["bert", "gpt", "prefix-small"]
    assert (
        found.budget == {"steps": 7.0}
        and found.seeds == [0, 1]
        and list(found.suites) == ["cloze"]
        and found.suites["cloze"].path is None
    )
    assert {found.recipe(n).model.num_layers for n in found.entries} == {2}
    assert found.recipe("bert").train.batch_size == 4


def test_a_frozen_study_is_read_again_and_no_other_resumes_it(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = study(text, "encoder-small", "encdec-small", "budget.steps=9")
    assert keep(asked, out, "never") == asked == read(out / "study.yaml")
    with pytest.raises(UserError, match="already holds a study: give another out=, or resume=auto"):
        keep(asked, out, "never")
    assert keep(asked.model_copy(update={"command": "otherwise said"}), out, "must") == asked
    other = study(text, "encoder-small", "encdec-small", "budget.steps=9", "train.weight_decay=0.5")
    with pytest.raises(
        UserError, match=r"was started with entries.encdec-small.train.weight_decay=0.01, not 0.5: resume"
    ):
        keep(other, out, "auto")
    with pytest.raises(UserError, match="holds no study to resume"):
        keep(asked, tmp_path / "none", "must")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(UserError, match="holds something else than a study"):
        keep(asked, tmp_path / "full", "auto")


def test_seeds_may_be_added_to_a_frozen_study_and_nothing_else(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def asked(*more: str) -> Study:
        return study(text, "encoder-small", "budget.steps=9", "tune=lr:3", *more)

    three, five = asked("seeds=3"), asked("seeds=5")
    keep(three, out, "never")
    assert keep(five, out, "auto") == five and read(out / "study.yaml") == three, "not before its directory is held"
    with pytest.raises(UserError, match=r"was started with milestones=8, not 4"):
        keep(asked("seeds=5", "milestones=4"), out, "auto")
    with pytest.raises(UserError, match=r"seed 1000 chose the learning rates, so no run can have it: leave it out"):
        keep(asked("seeds=0,1,2,1000"), out, "auto")
    assert grown(five, out) == five == read(out / "study.yaml") and five.tune == three.tune
    assert "seeds=5" in read(out / "study.yaml").command
    for fewer, said in (("seeds=3", "0,1,2"), ("seeds=1,0,2,3,4", "1,0,2,3,4"), ("seeds=1,2,3,4,5,6", "1,2,3,4,5,6")):
        with pytest.raises(UserError, match=rf"started with seeds=0,1,2,3,4, not {said}: seeds may be added"):
            keep(asked(fewer), out, "auto")
        with pytest.raises(UserError, match=r"seeds may be added"):
            grown(asked(fewer), out)
    assert read(out / "study.yaml") == five and not five.seen, "no results were there to be seen"
    Results(title="", command="", seeds=five.seeds).write(out)
    six = grown(asked("seeds=6"), out)
    assert six.seen == [5] and six == keep(asked("seeds=6"), out, "auto") == read(out / "study.yaml")
    assert keep(asked("seeds=7"), out, "auto").seen == [5] == grown(asked("seeds=7"), out).seen, "the same results"
    with pytest.raises(UserError, match="already holds a study"):
        keep(asked("seeds=7"), out, "never")


def test_a_study_without_a_text_says_so_and_what_else_it_lacks(text: Path, tmp_path: Path) -> None:
    for given, says in (
        ({}, r"no corpus: give corpus=PATH.*, and a budget, such as budget.flops=1e13$"),
        ({"budget.steps": 9, "valid": "x"}, r"no corpus: give corpus=PATH.* or a glob\)$"),
    ):
        with pytest.raises(UserError, match=says):
            frozen(["encoder-small", "decoder-small"], given, "")
    own = tmp_path / "own.yaml"
    own.write_text(f"{shipped()['decoder-small'].read_text()}\ncorpus: {text}\n")
    assert frozen([str(own)], {"budget.steps": 9}, "").recipe("own").corpus.path == str(text)


def test_each_suite_has_a_limit(text: Path) -> None:
    found = study(text, "encoder-small", "budget.steps=9", "limit=7", f"suites=bpb@64,cloze,choice@3:{text}").suites
    assert {name: asked.limit for name, asked in found.items()} == {"bpb": 64, "cloze": 7, "choice": 3}
    assert found["choice"].path == str(text)


def test_what_a_recipe_leaves_to_tokenizer_and_objective_stays_open(text: Path) -> None:
    found = study(text, "encoder-small", "budget.steps=9").entries["encoder-small"]
    assert "visibility" not in found["model"] and found["model"]["vocab_size"] == 0
    assert found["train"]["beta1"] == 0.9  # written out: a later version's default changes nothing


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "nothing to compare"),
        (["encoder-smal"], r"no recipe 'encoder-smal' .*; did you mean 'encoder-small'\?"),
        (["encoder-small", "seds=3"], r"'seds=3' is neither a setting .*; did you mean 'seeds'\?"),
        (["encoder-small", "foo=3"], r"neither a setting that compare knows nor an entry NAME=RECIPE, .* recipe '3'"),
        (["a=encoder-smal"], r"no recipe 'encoder-smal' .*; did you mean 'encoder-small'\?"),
        (["encoder-small", "encoder-small"], "two entries are called encoder-small"),
        (["a b=encoder-small"], "'a b' cannot name an entry"),
        (
            ["encoder-small", "budget.steps=3", "budget.flops=1"],
            r"exactly one budget .* \(given: budget.steps, budget.fl",
        ),
        (
            ["encoder-small", "budget.flops=0"],
            r"budget.flops=0.0 in entry encoder-small: input should be greater than 0",
        ),
        (["encoder-small", "budget.steps="], "exactly one budget for all"),
        (["encoder-small", "budget.flops=nan"], "budget.flops=nan is no number"),
        (["encoder-small", "budget.flops=inf"], "budget.flops=inf is no number"),
        (["encoder-small", "budget.steps=many"], "budget.steps=many is no number"),
        (
            ["encoder-small", "budget.flops=-3"],
            r"budget.flops=-3.0 in entry encoder-small: input should be greater than 0",
        ),
        (["encoder-small", "budget.steps=2.5"], r"budget.steps=2.5 in entry encoder-small"),
        (["encoder-small", "seed=3"], "seed is decided by the study: give seeds="),
        (
            ["encoder-small:budget.steps=3", "budget.steps=9"],
            "budget.steps of encoder-small is decided by the study: it is one for all",
        ),
        (["a=encoder-small:corpus=other.txt"], "corpus of a: a study has one text for all"),
        (
            ["a=encoder-small:model.num_layer=3"],
            r"entry a: unknown key 'model.num_layer'.*did you mean 'num_layers'",
        ),
        (["encoder-small", "seeds=0"], "seeds=0 must be at least 1"),
        (["encoder-small", "seeds=1,1"], "a seed stands twice"),
        (["encoder-small", "tune=lr"], "tune=lr is not known: write tune=lr:4"),
        (["encoder-small", "tune=lr:2"], r"tune=lr:2 tries 2: .* the best always lies at the edge .* at least lr:3$"),
        (["encoder-small", "tune=lr:1:0.5"], "tune=lr:1:0.5 tries 1: of fewer than 3 learning rates"),
        (["encoder-small", "tune=lr:x"], "tune=lr:x: write a whole number of learning rates"),
        (["encoder-small", "tune=lr:4:2"], "a share of the budget above 0"),
        (["encoder-small", "milestones=x"], "milestones=x is no whole number"),
        (["encoder-small", "suites=clozes"], r"no suite 'clozes' .*; did you mean 'cloze'\?"),
        (["encoder-small", "suites=blimp"], r"no suite 'blimp' .*; BLiMP's pairs .* write minimal-pairs:PATH"),
        (["encoder-small", "suites=bpb,BLiMP@50:../blimp"], r"no suite 'BLiMP' .* write minimal-pairs:PATH"),
        (["encoder-small", "suites=blimp:data"], r"suites=blimp:data is neither .* write minimal-pairs:PATH"),
        (["encoder-small", "suites=bpb,bpb@3"], "suite bpb stands twice"),
        (["encoder-small", "suites=nowhere.measures:count"], "neither a suite .* nor a function .*nowhere"),
        (["encoder-small", "suites=json:nothing"], "json has no function nothing"),
        (["encoder-small", "milestones=0"], "milestones=0 must be at least 1"),
        (["encoder-small", "suites=choice"], "suite choice needs items: write suites=choice:PATH"),
        (["encoder-small", "suites=choice:nowhere.jsonl"], "nowhere.jsonl does not exist"),
        (["encoder-small", "suites=bpb@x"], "suites=bpb@=x is no whole number"),
        (["encoder-small", "suites=bpb:x.txt"], "bpb reads the study's held-out text"),
    ],
)
def test_refusals(text: Path, words: list[str], says: str) -> None:
    more: list[Any] = [] if any("budget" in w for w in words) else ["budget.steps=9"]
    with pytest.raises(UserError, match=says):
        study(text, *words, *more)
