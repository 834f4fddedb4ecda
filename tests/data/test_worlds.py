"""The small world: frozen, closed, true to the letter, and a checker that near misses do not pass."""

from __future__ import annotations

import doctest
import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from unmask import keyed
from unmask.cli import app
from unmask.config import ModelConfig
from unmask.data.worlds import KINDS, SPLITS, Kind, Review, Split, World, draws
from unmask.errors import UserError
from unmask.model.spec import parameters
from unmask.tokens.tokenizer import Tokenizer

FROZEN = "2fad5a368b184604ab2b957f2c684dfbd6f7b036f07620720d2d8fbafe4a46e8"
"""SHA-256 of the default world: its training text, then its held-out text. No model was trained before it was fixed."""

DIALS: list[dict[str, Any]] = [
    {},
    {"seed": 1},
    {"seed": 2, "people_count": 3, "city_count": 2},
    {"seed": 3, "people_count": 200, "city_count": 40, "fact_repeats": 2, "question_repeats": 1},
    {"seed": 4, "adjective_count": 16, "probe_count": 1, "but_share": 0.1},
    {"seed": 5, "distance": 3, "review_count": 300},
    {"seed": -6, "valid_share": 0.5, "asked_share": 0.5, "sum_count": 400, "review_count": 200, "unseen_sums": ()},
]
REVIEW = "review: the soup was tasty and the host was kind. rating: good."


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def train(world: World) -> str:
    return world.text()


@pytest.fixture(scope="module")
def valid(world: World) -> str:
    return world.text(split="valid")


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+|[0-9]+|[^a-z0-9\s]", text)


def every_line(world: World) -> Iterator[tuple[Kind, Split, str]]:
    for kind in KINDS:
        for split in SPLITS:
            for line in world.lines(kind, split):
                yield kind, split, line


# ---------------------------------------------------------------- the frozen world


def test_the_default_world_is_frozen(train: str, valid: str) -> None:
    assert hashlib.sha256((train + valid).encode()).hexdigest() == FROZEN


def test_it_has_the_size_that_was_promised(world: World, train: str, valid: str) -> None:
    assert 255_000 < len(train + valid) < 265_000
    assert len(set(train + valid)) == len(world.symbols()) == 44
    assert len(words(world.text(["reviews"]))) + 1897 == 32_249
    assert all(len(words(line)) == 16 for line in world.lines("reviews", "train"))
    assert len(world.food_adjectives) == 16 and len(set(world.food_adjectives)) == 16


def test_its_words_are_closed_and_all_are_in_the_training_text(world: World, train: str, valid: str) -> None:
    assert len(world.words()) == len(set(world.words())) == 349
    assert set(words(train)) == set(world.words())
    assert set(words(valid)) <= set(world.words())


def test_split_at_blanks_only_sums_are_unseen(train: str, valid: str, world: World) -> None:
    unseen = set(valid.split()) - set(train.split())
    assert unseen == set(world.lines("sums", "valid")) and len(unseen) == 233


def test_three_numbers_are_in_no_line(world: World, train: str, valid: str) -> None:
    every = {int(n) for n in re.findall(r"\d+", train + valid)}
    assert set(range(10, 199)) - every == {195, 196, 198}
    assert world.check("97+98=195.").true, "it is true all the same"


def test_the_text_is_its_lines_in_another_order(world: World, train: str) -> None:
    lines = [line for kind in KINDS for line in world.lines(kind, "train")]
    assert train.endswith("\n") and Counter(train[:-1].split("\n")) == Counter(lines)
    first = [world.check(line).kind for line in train.split("\n")[:200]]
    assert set(first) == set(KINDS), "the kinds are mixed"


def test_ratings_are_a_quarter_a_half_and_a_quarter(world: World) -> None:
    for split in SPLITS:
        reviews = world.reviews(split)
        share = {r: n / len(reviews) for r, n in Counter(r.rating for r in reviews).items()}
        spread = 3 * 0.5 / len(reviews) ** 0.5
        assert share == {
            "good": pytest.approx(0.25, abs=spread),
            "bad": pytest.approx(0.25, abs=spread),
            "ok": share["ok"],
        }
        assert share["ok"] == pytest.approx(0.5, abs=spread)


def test_good_foods_of_five_letters_spell_crest_place_by_place(world: World) -> None:
    five = [a for a in world.food_adjectives if world.positive(a) and len(a) == 5]
    assert sorted(five) == ["crisp", "fresh", "great", "sweet", "tasty"]
    commonest = [
        min(Counter(place).items(), key=lambda item: (-item[1], item[0]))[0] for place in zip(*five, strict=True)
    ]
    assert "".join(commonest) == "crest" and "crest" not in world.words()


def test_facts_are_spread_evenly_over_the_cities(world: World) -> None:
    assert world.facts["zukun"] == "quila" and world.facts["kari"] == "varno" and "base" in world.facts
    per_city = Counter(world.facts.values())
    assert set(per_city) == set(world.cities) and set(per_city.values()) == {3, 4}


def test_held_out_questions_are_about_people_nobody_asked_about(world: World) -> None:
    asked, held = (set(world.lines("questions", split)) for split in SPLITS)
    assert len(asked) == 34 and len(held) == 8 and not asked & held
    assert len(set(world.lines("facts", "train"))) == 42 and set(world.lines("facts", "valid")) == set(
        world.lines("facts", "train")
    )


@pytest.mark.parametrize("kind", ["sums", "stories", "reviews"])
def test_no_line_that_is_drawn_is_drawn_twice(world: World, kind: Kind) -> None:
    both = world.lines(kind, "train") + world.lines(kind, "valid")
    assert len(set(both)) == len(both)


# ---------------------------------------------------------------- pure functions of seed and dials


def test_a_seed_gives_the_same_world_in_another_process_and_another_seed_another_one(train: str) -> None:
    code = (
        "import sys, hashlib; from unmask.data.worlds import World; assert 'torch' not in sys.modules\n"
        "print(hashlib.sha256(World(seed=7).text().encode()).hexdigest())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    other = World(seed=7).text()
    assert told == hashlib.sha256(other.encode()).hexdigest() and other != train
    assert not set(World(seed=7).people[3:]) & set(World().people[3:10])


def test_a_dial_of_one_kind_leaves_the_others_alone(world: World) -> None:
    changed = World(review_count=500, but_share=0.2, story_count=10)
    for kind in ("facts", "questions", "sums"):
        assert changed.lines(kind, "train") == world.lines(kind, "train")
    assert changed.lines("stories", "train") == world.lines("stories", "train")[:10]
    assert World(review_count=500).reviews("train") == world.reviews("train")[:500]


# ---------------------------------------------------------------- the checker


@pytest.mark.parametrize("dials", DIALS, ids=str)
def test_every_line_of_every_world_is_well_formed_and_true(dials: dict[str, Any]) -> None:
    made = World(**dials)
    vocabulary = set(made.words())
    for kind, _, line in every_line(made):
        found = made.check(line)
        assert (found.well_formed, found.true, found.kind, found.why) == (True, True, kind, ""), line
        assert vocabulary.issuperset(words(line)), line


def test_the_rule_of_reviews_by_an_oracle_of_its_own(world: World) -> None:
    good = {"tasty", "fresh", "sweet", "crisp", "great", "rich", "tender", "delicious"}
    good |= {"kind", "polite", "friendly", "quick", "helpful", "patient", "gentle", "cheerful"}
    for review in world.reviews("train"):
        _, _, _, _, first, link, _, _, _, second, *_, rating = review.text.replace(".", "").split()
        both = (first in good) + (second in good)
        assert (link, rating) == {0: ("and", "bad"), 1: ("but", "ok"), 2: ("and", "good")}[both], review.text


def replaced(line: str, old: str, new: str) -> str:
    assert old in line
    return line.replace(old, new, 1)


def test_a_wrong_word_in_the_right_place_is_well_formed_and_false(world: World) -> None:
    for kind, _, line in every_line(world):
        wrong: list[str] = []
        if kind in ("facts", "questions"):
            city = words(line)[-2]
            wrong = [line[: line.rindex(city)] + other + "." for other in world.cities if other != city]
        elif kind == "sums":
            head, _, tail = line.rstrip(".").partition("=")
            wrong = [f"{head}={int(tail) + d}." for d in (-10, -1, 1, 10) if int(tail) + d >= 10]
        elif kind == "reviews":
            rating, link = words(line)[-2], "and" if " and " in line else "but"
            wrong = [line.replace(f": {rating}.", f": {r}.") for r in ("good", "ok", "bad") if r != rating]
            wrong.append(replaced(line, f" {link} ", " but " if link == "and" else " and "))
        else:
            name, mood = words(line)[0], "glad" if " glad" in line else "sad"
            name = name if name != "on" else words(line)[2]
            other = next(n for n in world.people if n != name)
            start = line.rindex(f" {name} ")
            wrong = [line[:start] + f" {other} " + line[start + len(name) + 2 :]]
            wrong += [replaced(line, f" {mood}.", " sad." if mood == "glad" else " glad.")]
            wrong += [replaced(line, world.facts[name], next(c for c in world.cities if c != world.facts[name]))]
            wrong += [
                replaced(line, f"a {world.jobs[name]}", f"a {'judge' if world.jobs[name] == 'pilot' else 'pilot'}")
            ]
        for bad in wrong:
            found = world.check(bad)
            assert (found.well_formed, found.true, found.kind) == (True, False, kind) and found.why, bad


def test_words_out_of_order_doubled_or_missing_are_no_sentence(world: World) -> None:
    for kind, split, line in every_line(world):
        if split == "train" and kind != "stories":
            continue  # the held-out lines are of the same templates
        parts = line.split(" ") if kind != "sums" else words(line)
        glue = "" if kind == "sums" else " "
        for k in range(len(parts)):
            dropped = parts[:k] + parts[k + 1 :]
            doubled = [*parts[: k + 1], *parts[k:]]
            swapped = parts[:k] + parts[k : k + 2][::-1] + parts[k + 2 :]
            for changed in (dropped, doubled, *([swapped] if swapped != parts else [])):
                assert not world.check(glue.join(changed)).well_formed, glue.join(changed)


def test_a_letter_more_less_or_other_is_never_a_true_line(world: World) -> None:
    letters = [*world.symbols()]
    for kind in KINDS:
        for number, line in enumerate(world.lines(kind, "valid")[:40]):
            places = np.arange(2 * len(line))
            key = keyed.row_keys(9, 0, number, kind)
            drawn = keyed.below(keyed.bits(key, places), len(letters))
            for k, d in zip(places.tolist(), drawn.tolist(), strict=True):
                at, letter = k // 2, letters[d]
                for bad in (line[:at] + line[at + 1 :], line[:at] + letter + line[at + (k % 2) :]):
                    found = world.check(bad)
                    assert bad == line or not found.true, bad


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("zork lives in quila.", "facts"),
        ("quila lives in zukun.", "facts"),
        ("zukun lives in soup.", "facts"),
        ("q: where does zork live? a: quila.", "questions"),
        ("09+12=21.", "sums"),
        ("9+12=21.", "sums"),
        ("112+12=124.", "sums"),
        ("11+21=032.", "sums"),
        ("11+21=x.", "sums"),
        ("review: the soup was kind and the host was tasty. rating: good.", "reviews"),
        ("review: the pilot was tasty and the host was kind. rating: good.", "reviews"),
        ("review: the soup was savory and the host was kind. rating: good.", "reviews"),
        ("review: the soup was tasty or the host was kind. rating: good.", "reviews"),
        ("review: the soup was tasty and the host was kind. rating: fine.", "reviews"),
    ],
)
def test_words_that_do_not_fit_are_named(world: World, line: str, kind: Kind) -> None:
    found = world.check(line)
    assert (found.well_formed, found.true, found.kind) == (False, None, kind)
    assert re.fullmatch(r"\w+ is no [a-z ]+", found.why)


@pytest.mark.parametrize(
    "line",
    ["", " ", "\n", REVIEW + "\n", REVIEW + " ", " " + REVIEW, REVIEW.upper(), REVIEW[:-1], REVIEW + REVIEW, "[MASK]",
     "zukun  lives in quila.", "zukun livs in quila.", "١١+٢١=٣٢.", "11+21=32", "11 + 21 = 32 ."],
)  # fmt: skip
def test_what_has_no_template_is_no_sentence(world: World, line: str) -> None:
    found = world.check(line)
    assert (found.well_formed, found.true, found.kind, found.why) == (False, None, None, "no template of this world")


def test_a_review_of_the_lecture_is_true(world: World) -> None:
    assert world.check(REVIEW).true and not world.check(REVIEW.replace("good", "ok")).true
    assert Review("soup", "tasty", "and", "host", "kind", "good").text == REVIEW


# ---------------------------------------------------------------- dials


def test_but_share_is_the_share_of_reviews_whose_adjectives_disagree() -> None:
    for share in (0.0, 0.2, 1.0):
        reviews = World(but_share=share).reviews("train")
        measured = sum(r.link == "but" for r in reviews) / len(reviews)
        assert measured == pytest.approx(share, abs=3 * (share * (1 - share) / len(reviews)) ** 0.5 + 1e-12)


def test_noise_is_the_share_of_ratings_that_are_wrong() -> None:
    noisy, clean = World(rating_noise=0.2), World()
    verdicts = [noisy.check(r.text) for r in noisy.reviews("train")]
    assert all(v.well_formed for v in verdicts)
    assert sum(not v.true for v in verdicts) / len(verdicts) == pytest.approx(0.2, abs=0.03)
    wrong = Counter(
        (a.rating, b.rating) for a, b in zip(clean.reviews("train"), noisy.reviews("train"), strict=True) if a != b
    )
    assert len(wrong) == 6, "either of the other two"
    all_wrong = World(rating_noise=1.0)
    assert not any(all_wrong.check(line).true for line in all_wrong.lines("reviews", "valid"))


def test_distance_puts_sentences_in_between(world: World) -> None:
    for distance in (1, 3):
        far = World(distance=distance)
        assert {len(words(line)) for line in far.lines("reviews", "train")} == {16 + 9 * distance}
        assert far.words() == world.words() and not far.check(REVIEW).well_formed
        pairs = zip(far.reviews("train"), world.reviews("train"), strict=True)
        assert all(a.opinion == b.opinion and a.rating == b.rating for a, b in pairs)
        review = far.reviews("valid")[0]
        assert review.text == f"{review.unrated} {review.rating}." and review.unrated.endswith(". rating:")


def test_more_people_cities_and_adjectives() -> None:
    large = World(people_count=300, city_count=60, adjective_count=16)
    assert len(set(large.people)) == 300 and len(set(large.cities)) == 60 and not set(large.people) & set(large.cities)
    assert {r.food_adjective for r in large.reviews("train")} == set(large.food_adjectives) and len(
        large.food_adjectives
    ) == 32
    assert len(large.words()) == 349 + (300 - 42) + (60 - 12) + 4 * 8
    assert not {*large.people, *large.cities} & (set(World().words()) - {*World().people, *World().cities})
    assert len(large.symbols()) == 44


def test_no_name_is_a_word_of_the_world() -> None:
    """By chance seed 5 would call somebody "live", and seed 216 a city "pasta"."""
    assert "live" in draws.names(5, "people", 42, ()) and "live" not in World(seed=5).people
    assert "pasta" in draws.names(216, "cities", 60, ())
    assert "pasta" not in World(seed=216, people_count=60, city_count=60).cities


@pytest.mark.parametrize(
    ("dials", "says"),
    [
        ({"but_share": 1.5}, "but_share=1.5 must lie between 0 and 1"),
        ({"people_count": 5}, "city_count=12 must be at most its people_count=5"),
        ({"probe_count": 8}, "probe_count=8 must be below its adjective_count=8"),
        ({"people_count": 4.5}, "people_count=4.5 must be a whole number"),
        ({"but_share": "half"}, "but_share='half' must be a number"),
        ({"unseen_sums": 195}, "unseen_sums=195 must be a list"),
        ({"seed": True}, "seed=True must be a whole number"),
    ],
)
def test_dials_that_make_no_world_are_refused(dials: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        World(**dials)


def test_more_lines_than_there_are_is_refused(world: World) -> None:
    with pytest.raises(UserError, match="review_count=12000 is too large"):
        World(review_count=12_000).reviews("train")
    with pytest.raises(UserError, match=r"sum_count=8000 is too large.*8,889.*8,092"):
        World(sum_count=8000).lines("sums", "train")
    small = World(people_count=3, city_count=2, story_count=10_000)
    with pytest.raises(UserError, match=r"story_count=10000 is too large.*11,111.*10,752"):
        small.lines("stories", "train")
    with pytest.raises(UserError, match=r"no such kind of line: 'review'.*did you mean 'reviews'"):
        world.lines("review", "train")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="'tastee' is no adjective of this world; did you mean 'tasty'"):
        world.positive("tastee")


# ---------------------------------------------------------------- probes


def test_probe_adjectives_are_in_the_text_but_in_no_label(world: World) -> None:
    held = world.probe_adjectives
    assert len(set(held)) == 8 and sum(map(world.positive, held)) == 4
    assert set(held) <= {r.food_adjective for r in world.reviews("train")}
    labelled, test = world.probe("labelled", 128), world.probe("test", 400)
    assert {r.food_adjective for r in test} == set(held)
    assert {r.food_adjective for r in labelled} == set(world.food_adjectives) - set(held)
    known = {r.text for split in SPLITS for r in world.reviews(split)}
    assert not known & {r.text for r in labelled + test}
    assert len({r.text for r in labelled + test}) == 528


def test_a_probe_can_be_drawn_again(world: World) -> None:
    assert world.probe("labelled", 32) == world.probe("labelled", 128)[:32]
    first, second = world.probe("test", 100), world.probe("test", 100, draw=1)
    assert first != second and world.probe("test", 100) == first
    good = [world.positive(r.food_adjective) for r in world.probe("test", 400)]
    assert 150 < sum(good) < 250
    with pytest.raises(UserError, match=r"reviews for side=test of a probe, not 100,000"):
        world.probe("test", 100_000)


def test_an_opinion_does_not_tell_the_rating(world: World) -> None:
    review = world.probe("test", 1)[0]
    assert "rating" not in review.opinion and review.text.startswith(review.opinion)


# ---------------------------------------------------------------- tokenizers


def test_the_word_tokenizer_has_362_entries_and_loses_nothing_of_the_world(
    world: World, train: str, valid: str, tmp_path: Path
) -> None:
    tokenizer = world.tokenizer("word")
    vocabulary = tokenizer.vocabulary
    assert (tokenizer.type, vocabulary.size, len(vocabulary.specials), len(vocabulary.sentinels)) == (
        "word",
        362,
        12,
        7,
    )
    assert [tokenizer.token(i) for i in range(5, 5 + 349)] == world.words() and tokenizer.token(354) == "\\n"
    for text in (train, valid):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text and not vocabulary.is_special[ids].any()
    assert tokenizer.encode(world.text(["reviews"])).size == 32_249
    for _, _, line in every_line(world):
        assert tokenizer.decode(tokenizer.encode(line)) == line
    tokenizer.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").fingerprint == tokenizer.fingerprint


def test_what_no_line_holds_is_unknown_as_a_word(world: World) -> None:
    tokenizer = world.tokenizer("word")
    unk = tokenizer.vocabulary.unk
    assert (tokenizer.encode("97+98=195.") == unk).tolist() == [False, False, False, False, True, False]
    assert (tokenizer.encode("kari livs in varno.") == unk).tolist() == [False, True, False, False, False]
    assert (tokenizer.encode("[MASK]") == unk).all(), "in a text it is three unknown words"


def test_more_sentinels_and_modes(world: World) -> None:
    tokenizer = world.tokenizer("word", sentinels=8, extra=["[R]", "[X]"])
    assert tokenizer.vocabulary.size == 365 and tokenizer.vocabulary.need("[X]") == 364


def test_the_character_tokenizer_has_44_entries_of_which_the_line_end_opens_and_closes(
    world: World, train: str
) -> None:
    tokenizer = world.tokenizer("char")
    vocabulary = tokenizer.vocabulary
    assert (vocabulary.size, vocabulary.bos, vocabulary.eos, vocabulary.unk) == (44, 0, 0, None)
    for line in train.split("\n")[:300]:
        ids = tokenizer.encode(line)
        assert len(ids) == len(line) and tokenizer.decode(ids) == line
    assert [tokenizer.token(i) for i in range(1, 44)] == [s for s in world.symbols() if s != "\n"]


def test_the_models_of_the_lecture_have_their_numbers_of_parameters(world: World) -> None:
    shared = {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "positions": "learned"}
    sizes = [(world.tokenizer(kind).vocabulary.size, room) for kind, room in (("char", 96), ("word", 32))]
    made = [ModelConfig(**shared, vocab_size=size, max_position=room) for size, room in sizes]
    assert [parameters(config) for config in made] == [109_056, 125_312]


# ---------------------------------------------------------------- the verb


def told(*arguments: str, text: str | None = None) -> str:
    result = CliRunner().invoke(app, ["data", "world", *arguments], input=text, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_verb_writes_a_file_for_each_split(tmp_path: Path, train: str, valid: str) -> None:
    result = json.loads(told(str(tmp_path / "w"), "--tokenizer", "word", "--json"))
    assert (tmp_path / "w/train.txt").read_bytes().decode() == train
    assert (tmp_path / "w/valid.txt").read_bytes().decode() == valid
    assert (result["words"], result["symbols"], result["tokenizer"], result["seed"]) == (349, 44, 362, 0)
    assert result["files"][str(tmp_path / "w/train.txt")] == {"lines": train.count("\n"), "characters": len(train)}
    assert Tokenizer.load(tmp_path / "w/tokenizer.json").vocabulary.size == 362


def test_the_verb_takes_seed_dials_kinds_and_splits(tmp_path: Path) -> None:
    settings = ["but_share=0.2", "unseen_sums=[150]", "--seed", "3"]
    said = told(str(tmp_path), *settings, "--kind", "reviews", "--kind", "sums", "--split", "valid")
    expected = World(seed=3, but_share=0.2, unseen_sums=(150,)).text(["sums", "reviews"], "valid")
    assert (tmp_path / "valid.txt").read_text() == expected and not (tmp_path / "train.txt").exists()
    assert "valid.txt: 444 lines" in said


def test_numbers_may_lack_what_goes_without_saying(tmp_path: Path) -> None:
    plain, short = (json.loads(told(str(tmp_path / s), f"but_share={s}", "--json")) for s in ("0.2", ".2"))
    assert short["dials"] == plain["dials"] and short["dials"]["but_share"] == 0.2


def test_the_verb_writes_over_no_other_text(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("my own text\n")
    with pytest.raises(UserError, match=r"train\.txt is there and holds something else"):
        told(str(tmp_path))
    assert (tmp_path / "train.txt").read_text() == "my own text\n" and not (tmp_path / "valid.txt").exists()
    for _ in range(2):  # the same world may be written again
        told(str(tmp_path), "--split", "valid")


def test_the_verb_checks_lines(tmp_path: Path) -> None:
    lines = ["zukun lives in quila.", "zukun lives in varno.", "11+21=33.", "zork lives in quila.", "", REVIEW]
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines) + "\n")
    *each, last = [json.loads(line) for line in told("--check", str(path), "--json").splitlines()]
    assert [(e["line"], e["well_formed"], e["true"]) for e in each] == [
        (lines[0], True, True),
        (lines[1], True, False),
        (lines[2], True, False),
        (lines[3], False, None),
        (lines[4], False, None),
        (lines[5], True, True),
    ]
    assert last == {
        "lines": 6,
        "well_formed": 4,
        "true": 2,
        "kinds": {"facts": {"true": 1, "false": 1, "malformed": 1}, "sums": {"false": 1}, "reviews": {"true": 1}},
    }
    plain = told("--check", "-", text="\n".join(lines))
    assert "6 lines: 4 well formed, 2 of them true" in plain and "(11+21 is 32)" in plain
    other = World(seed=5)
    home = other.facts["base"]
    assert json.loads(told("--check", "-", "--seed", "5", "--json", text=f"base lives in {home}.").splitlines()[0])[
        "true"
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give one directory"),
        (["a", "b"], "give one directory"),
        (["a", "butshare=1"], "no dial 'butshare'; did you mean 'but_share'"),
        (["a", "but_share=1", "but_share=0"], "but_share is given twice"),
        (["a", "--seed", "3", "seed=2"], "seed is given twice"),
        (["a", "but_share=much"], "but_share='much' must be a number"),
        (["a", "--kind", "review"], "--kind review: choose facts"),
        (["a", "--split", "test"], "--split test: choose train, valid"),
        (["a", "--tokenizer", "bpe"], "--tokenizer bpe: choose word, char"),
        (["a", "--check", "b"], "--check reads lines and writes no world"),
    ],
)
def test_what_the_verb_refuses(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["data", "world", *arguments])
    assert isinstance(result.exception, UserError) and says in str(result.exception)
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_lines_of_windows_are_judged_as_those_of_unix(tmp_path: Path) -> None:
    lines = ["zukun lives in quila.", "zukun lives in varno.", "", REVIEW, "zukun lives\rin quila."]
    plain, path = "\n".join(lines) + "\n", tmp_path / "lines.txt"
    judged = told("--check", "-", "--json", text=plain)
    assert [json.loads(line)["well_formed"] for line in judged.splitlines()[:-1]] == [True, True, False, True, False]
    for text in (plain.replace("\n", "\r\n"), "\ufeff" + plain):
        path.write_bytes(text.encode())
        assert told("--check", "-", "--json", text=text) == told("--check", str(path), "--json") == judged
    assert told("--check", "-", text="") == "0 lines: 0 well formed, 0 of them true\n"


def test_what_is_no_text_is_not_checked(tmp_path: Path) -> None:
    (tmp_path / "lines.bin").write_bytes("zukun lives in quila.".encode("utf-16"))
    result = CliRunner().invoke(app, ["data", "world", "--check", str(tmp_path / "lines.bin")])
    assert isinstance(result.exception, UserError) and "lines.bin is not UTF-8 text" in str(result.exception)
    result = CliRunner().invoke(app, ["data", "world", "--check", "-"], input=b"\xff\xfe")
    assert isinstance(result.exception, UserError) and "stdin is not UTF-8 text" in str(result.exception)


def test_the_page_says_what_the_world_is(world: World, train: str, valid: str) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "worlds.md").read_text(encoding="utf-8")
    assert (
        not doctest.DocTestRunner().run(doctest.DocTestParser().get_doctest(page, {}, "worlds.md", None, None)).failed
    )
    dials = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page.split("## Dials")[1], re.MULTILINE)
    assert dials == [(name, str(getattr(world, name))) for name in world.dials()]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", page.split("## What is true")[0], re.MULTILINE))
    for kind in KINDS:
        example, *sizes = rows[kind].split(" | ")
        assert world.check(example).true, example
        for split, size in zip(SPLITS, sizes, strict=True):
            lines = world.lines(kind, split)
            assert size.startswith(f"{len(lines):,} / {sum(len(line) + 1 for line in lines):,}: ")
    assert f"{(train + valid).count(chr(10)):,} lines and {len(train + valid):,} characters" in page
    assert ", ".join(world.probe_adjectives) in page
    assert f"{len(set(train.split())):,} words" in page and "233 that are not" in page
    for split in SPLITS:
        count = Counter(r.rating for r in world.reviews(split))
        majority, shortcut = count["ok"], count["ok"] + max(count["good"], count["bad"])
        assert f"{majority / count.total():.1%}".replace("%", " %") in page
        assert f"{shortcut / count.total():.1%}".replace("%", " %") in page
