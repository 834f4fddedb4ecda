"""Laboratory `ladders`: a tiny pair of studies end to end, what is joined, and the committed results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from unmask.compare.results import Entry, Level, Measure, Results
from unmask.compare.settings import frozen
from unmask.errors import UserError
from unmask.evaluation.abilities import abilities
from unmask.labs.base import Asked
from unmask.labs.ladders.lab import LAB
from unmask.labs.ladders.statements import STATEMENTS, Papers, judged
from unmask.labs.ladders.study import EVERY, LIMITS, OWN, SETTINGS, STUDIES, _both, joined, little, study
from unmask.labs.ladders.tables import PUBLISHED
from unmask.labs.real_text.lab import READS
from unmask.objectives.masked import Masked
from unmask.recipe import Recipe

from .committed import FOLDER, committed
from .wiki import FEW, TINY, write_data

RESULTS = FOLDER / "ladders.json"
KEPT = 300_000
"""Bytes of the committed results."""
FAR = 50.0
"""Farther than any noise."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, data: Path) -> tuple[Asked, Results]:
    asked = Asked(tmp_path_factory.mktemp("ladders"), (0,), "auto", lambda _: None, data)
    settings = {**TINY, "milestones": 1, "model.num_layers": 2}
    return asked, study(asked, settings, {k: FEW[k] for k in LIMITS}, ("masking", "little-static"))


def texts(data: Path) -> dict[str, str]:
    return {"corpus": str(data / READS[0]), "valid": str(data / READS[1])}


def recipes(data: Path, name: str) -> dict[str, Recipe]:
    """The resolved recipes of one of the studies."""
    given = {**texts(data), **SETTINGS, **OWN[name], "seeds": 2}
    made = frozen([f"{k}=decoder-small:{own}" for k, own in STUDIES[name].items()], given, "test")
    return {entry: made.recipe(entry) for entry in made.entries}


# ---------------------------------------------------------------- a tiny study


def test_tiny_studies_make_one_record(tiny: tuple[Asked, Results]) -> None:
    asked, found = tiny
    assert [e.name for e in found.entries] == ["masking", "little-static"] and found.title == LAB.title
    assert [c.statement for c in found.claims] == [s.text for s in STATEMENTS]
    assert all(c.holds is None for c in found.claims) and found.comparisons == []
    assert {m.name for m in found.measures} == {"cloze_candidates"}  # what both answer
    values = [e.runs[0].points[-1].values for e in found.entries]
    assert all(v.keys() == {"cloze_candidates"} and None not in v.values() for v in values)
    assert [t.title for t in found.tables] == list(PUBLISHED)
    text = json.dumps(found.model_dump(mode="json"))
    assert str(asked.out) not in text and str(asked.data) not in text and '"outcomes"' not in text
    paths = [e.settings["corpus"]["path"] for e in found.entries]
    assert paths == ["$UNMASK_DATA/enwiki2015/train-00.jsonl.gz", "OUT/little.jsonl"]
    assert {e.settings["tokenizer"]["file"] for e in found.entries} == {"OUT/tokenizer.json"}
    assert found.budget == {"flops": TINY["budget.flops"]}  # which the trial gives both studies


def with_budget(found: Results, name: str, flops: float) -> Results:
    """The study of one entry, as if run for so many FLOPs."""
    budget = {"flops": flops}
    (entry,) = (e for e in found.entries if e.name == name)
    entry = entry.model_copy(update={"settings": {**entry.settings, "budget": budget}})
    return found.model_copy(update={"entries": [entry], "budget": budget})


def test_studies_of_different_budgets_are_joined_and_each_table_says_its_own(tiny: tuple[Asked, Results]) -> None:
    _, found = tiny
    dear, cheap = with_budget(found, "masking", 3e12), with_budget(found, "little-static", 1e12)
    assert joined([dear, with_budget(found, "little-static", 3e12)]).budget == {"flops": 3e12}
    both = judged(joined([dear, cheap]))
    assert both.budget == {} and [e.settings["budget"] for e in both.entries] == [{"flops": 3e12}, {"flops": 1e12}]
    notes = {t.title.split(" (")[0]: t.note for t in both.tables}
    assert notes["BART, noises"].startswith("Each run: 3·10¹² FLOPs, contexts of 128. ")
    assert notes["RoBERTa, masks"].startswith("Each run: 1·10¹² FLOPs, contexts of 128. ")
    assert not notes["T5, stacks"].startswith("Each run")  # none was run


def test_the_levels_of_a_joined_measure_are_those_of_the_whole_text() -> None:
    chance, few = Level(label="chance", value=25.0), Level(label="token frequencies", value=2.5)
    one = Measure(name="m", label="M", protocol="", better="lower", levels=[chance, few])
    other = one.model_copy(update={"levels": [chance, few.model_copy(update={"value": 2.6})]})
    told = [(level.label, level.value) for level in _both(one, other).levels]
    assert told == [("chance", 25.0), ("token frequencies (all of it)", 2.5)]


def test_little_is_the_beginning_of_the_text(tiny: tuple[Asked, Results]) -> None:
    import gzip

    asked, _ = tiny
    assert asked.data is not None
    with gzip.open(asked.data / "enwiki2015" / "train-00.jsonl.gz", "rt", encoding="utf-8") as file:
        whole = [json.loads(line)["text"] for line in file]
    kept = [json.loads(line)["text"] for line in little(asked).read_text(encoding="utf-8").splitlines()]
    assert kept == whole[: len(kept)] and kept


# ---------------------------------------------------------------- the entries are what they are called


def test_every_entry_is_asked_and_published(data: Path) -> None:
    """Each can be scored, so each shares gaps with all others; each stands in a paper's table, of one budget."""
    named = {name for rows in PUBLISHED.values() for name in rows}
    assert named == set(EVERY) and len(set(EVERY)) == len(EVERY)
    had: dict[str, tuple[float | None, int, int]] = {}
    for name in STUDIES:
        for entry, recipe in recipes(data, name).items():
            assert abilities(recipe.objective).plans, entry
            had[entry] = recipe.budget.flops, recipe.context, recipe.context * recipe.train.batch_size
    had["batch-x4"] = had["full-sentences"]  # whose batch is what it is about
    assert all(len({had[name] for name in rows}) == 1 for rows in PUBLISHED.values())
    assert had["iid-15"] == (4.5e12, 64, 1024) and had["masking"] == had["little-static"] == (1.2e12, 128, 1024)


def test_papers_share_their_noise_where_they_share_a_budget(tiny: tuple[Asked, Results]) -> None:
    """No spread is taken over runs of two budgets, or of one and two stacks."""
    _, found = tiny
    groups = Papers(found).groups
    assert set(groups) == set(EVERY)
    assert groups["iid-15"].names == () and groups["infilling"].names == ("masking",)
    assert groups["batch-x4"].names == groups["little-static"].names == ("little-static",)


def test_entries_differ_by_what_they_are_about_alone(data: Path) -> None:
    found = recipes(data, "t5")
    pairs = [(entry, recipe, found["iid-15"]) for entry, recipe in found.items()]
    noises = recipes(data, "bart")
    pairs += [(entry, recipe, noises["masking"]) for entry, recipe in noises.items()]
    for entry, recipe, base in pairs:
        assert recipe.train == base.train and recipe.tokenizer == base.tokenizer and recipe.context == base.context
        differing = {
            k for k, v in recipe.model.model_dump().items() if v != getattr(base.model, k) and k != "visibility"
        }
        expected = {
            "shared": {"share_stacks"},
            "one-stack": {"num_source_layers"},
        }.get(entry, set())
        assert differing == expected, entry
    rates = {e: getattr(r.objective, "noise_density", None) for e, r in found.items() if e.startswith("iid")}
    assert rates == {"iid-15": 0.15, "iid-25": 0.25, "iid-50": 0.5}
    encoder = recipes(data, "encoder")
    large, plain = encoder["batch-x4"], encoder["full-sentences"]
    assert large.train.batch_size == 4 * plain.train.batch_size
    assert large.train.learning_rate == pytest.approx(2 * plain.train.learning_rate)
    static = recipes(data, "little")["little-static"].objective
    assert isinstance(masking := getattr(static, "masking", None), Masked) and masking.duplicates == 1


def test_permutation_alone_can_be_asked_nothing() -> None:
    """Why rotation, permutation and deletion stand beside masking."""
    from unmask.objectives.bart import Bart

    for alone in (Bart.sentence_permutation(), Bart.document_rotation(), Bart.token_deletion()):
        assert not abilities(alone).plans and "nothing can be asked" in abilities(alone).score


def test_unknown_settings_are_refused(data: Path) -> None:
    with pytest.raises(UserError, match="unknown key"):
        frozen(["a=decoder-small:objective.kind=iid"], {**texts(data), **SETTINGS, "budget.flops": 1e12}, "test")


# ---------------------------------------------------------------- the results that were committed


def test_the_committed_claims_follow_from_the_committed_numbers() -> None:
    held = committed("ladders")
    assert [e.name for e in held.entries] == list(EVERY) and len(held.seeds) >= 2
    again = judged(held)
    assert again.claims == held.claims and again.tables == held.tables
    for entry in held.entries:
        (study,) = (name for name, entries in STUDIES.items() if entry.name in entries)
        amount = OWN[study]["budget.flops"]
        assert {k: v for k, v in entry.settings["budget"].items() if v is not None} == {"flops": amount}
        for run in entry.runs:
            assert run.points[-1].flops == pytest.approx(amount, rel=0.02)
    text = RESULTS.read_text(encoding="utf-8")
    assert len(text) < KEPT and not re.search(r"[\"= ]/\w", text)


def moved(found: Results, name: str, by: float) -> Results:
    """The record with all values of an entry made better (by > 0) or worse, far beyond the noise."""
    better = {m.name: 1 if m.better == "higher" else -1 for m in found.measures}

    def one(entry: Entry) -> Entry:
        runs = [
            r.model_copy(
                update={
                    "points": [
                        p.model_copy(update={"values": {k: v and v + by * better[k] for k, v in p.values.items()}})
                        for p in r.points
                    ]
                }
            )
            for r in entry.runs
        ]
        return entry.model_copy(update={"runs": runs})

    return found.model_copy(update={"entries": [one(e) if e.name == name else e for e in found.entries]})


ORDERS = [
    ("In T5, denoising (BERT-style)", "bert-style", True),
    ("In T5, writing the spans alone", "iid-15", None),
    ("In T5, 15 and 25", "iid-25", None),
    ("In T5, 15 % of noise are ahead", "iid-15", True),
    ("In T5, spans of 3 cannot", "span-3", None),
    ("In T5, spans of 3 are", "span-3", True),
    ("In T5, two stacks that share", "shared", None),
    ("In T5, two stacks are ahead of one", "iid-15", True),
    ("In BART, infilling is ahead", "infilling", True),
    ("In BART, sentence permutation", "masking+permutation", None),
    ("In BART, rotation beside", "masking", True),
    ("In RoBERTa, static and dynamic", "little-static", None),
    ("In RoBERTa, single sentences", "full-sentences", True),
    ("In RoBERTa, full sentences without", "full-sentences", True),
    ("In RoBERTa, a larger batch", "batch-x4", True),
    ("In RoBERTa, more text", "full-sentences", True),
]
"""How a statement begins, an entry that is moved far down and far up, and what the latter makes of it (None: false)."""


@pytest.mark.parametrize(("begins", "name", "wins"), ORDERS, ids=lambda v: str(v))
def test_a_claim_turns_with_the_numbers(begins: str, name: str, wins: bool | None) -> None:
    held = committed("ladders")

    def holds(by: float) -> bool | None:
        (claim,) = (c for c in judged(moved(held, name, by)).claims if c.statement.startswith(begins))
        return claim.holds

    assert holds(-FAR) is False
    if begins != "In RoBERTa, single sentences":  # which says something of two more
        assert holds(FAR) is (wins is not None)
