"""Every formula against what the objective does: sums within three standard deviations, and the variance itself."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from unmask import keyed
from unmask.batch import Examples, Rows
from unmask.objectives import (
    GLM,
    REGISTRY,
    UL2,
    Causal,
    CausallyMasked,
    Contrastive,
    Dials,
    Diffusion,
    Ernie,
    FillInTheMiddle,
    FullSentences,
    Masked,
    Mass,
    Mixture,
    NextSentence,
    Permutation,
    PrefixLM,
    Replaced,
    SalientSpans,
    SentenceOrder,
    ShiftedMasked,
    SpanCorruption,
    UniLM,
)
from unmask.objectives.base import Objective
from unmask.show.density import deviations
from unmask.show.expected import RULES, expected, moments
from unmask.show.reading import Words
from unmask.tokens.asked import spelt_controls

WORDS = Masked.whole_word()
ODD: dict[str, Objective] = {
    "masked independent": Masked(selection="independent", mask_rate=0.3),
    "words independent": Masked(selection="independent", unit="word"),
    "token spans": Masked(span_lengths="geometric", mask_rate=0.3),
    "boundary of words": Masked.spanbert().model_copy(update={"max_span": 4}),
    "boundary of tokens": Masked(boundary_offsets=3, span_lengths="uniform", max_span=3),
    "falling rate": Masked(mask_rate=0.4, final_rate=0.1),
    "ernie words": Ernie(phrases_from=0),
    "ernie entities": Ernie(phrases_from=0, entities_from=0),
    "three salient": SalientSpans(max_spans=3),
    "hybrid": ShiftedMasked(causal_share=0.5),
    "hybrid words": ShiftedMasked(causal_share=0.25, unit="word"),
    "full sentences of words": FullSentences(masking=WORDS),
    "nsp short": NextSentence(short_share=0.5),
    "nsp tokens": NextSentence(boundary="token", masking=Masked(selection="independent")),
    "nsp random": NextSentence(one_sentence="random"),
    "sop words sentences": SentenceOrder(masking=WORDS),
    "sop words": SentenceOrder(masking=WORDS, boundary="token"),
    "sop words independent": SentenceOrder(masking=Masked(unit="word", selection="independent"), boundary="token"),
    "neighbours": Contrastive(pairs="neighbours"),
    "dials exact": Dials(mask_rate=0.4, selection="exact"),
    "dials exact prefix": Dials(mask_rate=0.4, selection="exact", prefix="uniform", predict="rest"),
    "dials prefix, masked": Dials(mask_rate=0.4, prefix="uniform", predict="masked"),
    "fim middle": FillInTheMiddle(rate=0.8, loss="middle"),
    "fim middle words": FillInTheMiddle(rate=0.8, loss="middle", splits="words", end="sentinel", spm="v1"),
    "fim sentinel": FillInTheMiddle(end="sentinel"),
    "cm3 unasked": CausallyMasked(predict_sentinels=False),
    "spans mean 1": SpanCorruption(mean_span=1),
    "spans official": SpanCorruption(edges="official", final_sentinel=False, noise_density=0.4),
    "iid half": SpanCorruption(mean_span=None, noise_density=0.5),
    "ul2 any": UL2(sequential="any"),
    "ul2 flash": UL2(sequential="three_quarters", final_sentinel=False),
    "mass tokens": Mass(fragment_tokens=5),
    "unilm next": UniLM(next_token=True),
    "diffusion lengths": Diffusion(times="independent", random_length_share=0.5),
    "glm dense": GLM(noise_density=0.5, mean_span=2),
    "glm single": GLM(mean_span=1),
    "all permuted": Permutation(one_in=1),
    "words replaced": Replaced(unit="word", task="recovery"),
    "mixture": Mixture.model_validate(
        {"parts": {"a": {"preset": "msk_uni", "weight": 3}, "b": {"type": "glm"}, "c": {"type": "causal", "weight": 2}}}
    ),
}
EVERY: dict[str, Objective] = {
    **ODD,
    **{name: REGISTRY.make(name) for name in REGISTRY.own_types},
    # AntLM's parts come one after the other: its mean over the run is in test_density
    **{f"preset {name}": REGISTRY.make(name) for name in REGISTRY.own_presets if name != "antlm"},
}
UNTOLD = {
    "preset glm_sentence": "which sentences come first, until there are enough",
    "preset spanbert": "how many tokens stand beyond the first 20 of a span",  # some ten words here have more
}
"""What lengths, words and sentences do not tell."""
SHORT = [1, 2, 3, 7, 30, 64]


def show_rows(objective: Objective, lengths: list[int], seed: int = 1) -> Rows:
    """Texts of these lengths with every field that may be needed, half of which end their document."""
    rng = np.random.default_rng(seed)
    keys = keyed.row_keys(seed + 4, 0, np.arange(len(lengths)))
    ends = np.arange(len(lengths)) % 2 == 0
    rows = Rows.of([rng.integers(107, 200, n) for n in lengths], keys, ends=rng.permutation(ends))
    first = np.isin(np.arange(len(rows.tokens)), rows.start)
    word, sentence = (first | (rng.random(len(first)) < p) for p in (0.7, 0.1))
    opens = np.flatnonzero(first | (rng.random(len(first)) < 0.2))
    until = np.append(opens[1:], len(first))
    spans = np.stack([opens, np.minimum(opens + rng.integers(1, 4, len(opens)), until)], 1)[::2]
    rows = replace(rows, word=word, sentence=sentence, spans=spans)
    if objective.needs & {"partner", "target"}:
        turned = np.roll(np.arange(len(lengths)), 1)  # partners of other lengths, some of them shorter
        other = show_rows(Causal(), [lengths[i] for i in turned], seed + 1)
        rows = replace(rows, partner=replace(other, key=keys + np.uint64(1)))
    return rows


def stub(objective: Objective) -> Any:
    return Words.of(" ".join(f"w{i}" for i in range(200)), sorted(spelt_controls(objective))).vocabulary


def counts(objective: Objective, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """(R,) targets and sentinels of each text."""
    vocabulary = stub(objective)
    made: Examples = objective(rows, vocabulary)
    targets, marks = np.zeros((2, len(rows.lengths)))
    for head in objective.heads():
        if head.name not in made.targets or not made.targets[head.name].weight.size:
            continue
        t, start = made.targets[head.name], made.stream.start
        assert t.index is not None and start is not None
        row = np.searchsorted(start, t.index.reshape(len(t.index), -1)[:, 0], "right") - 1
        targets += np.bincount(row, t.weight != 0, len(targets))
        if head.over == "vocabulary":
            marks += np.bincount(row, np.isin(t.value, vocabulary.sentinels), len(targets))
    return targets, marks


def test_every_own_objective_has_a_rule() -> None:
    assert set(RULES) == set(REGISTRY.own_types.values())


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("lengths", [[40] * 400, SHORT * 60], ids=["40", "mixed"])
def test_formulas_hold_on_every_preset_and_odd_settings(name: str, lengths: list[int]) -> None:
    objective = EVERY[name]
    rows = show_rows(objective, lengths)
    formula = expected(objective, rows)
    if name in UNTOLD:
        assert formula == UNTOLD[name]
        return
    assert not isinstance(formula, str), formula
    targets, marks = (int(part.sum()) for part in counts(objective, rows))
    assert abs(deviations(targets, formula.targets, formula.targets_variance)) <= 3, (targets, formula)
    assert abs(deviations(marks, formula.marks, formula.marks_variance)) <= 3, (marks, formula)


RUNS = ("albert", "gpt_bert", "boundary", "hybrid words")
"""Of runs of words the variance is told for words whose lengths do not depend on their neighbours."""


@pytest.mark.parametrize("name", [name for name in EVERY if name not in UNTOLD])
def test_variances_are_those_of_many_copies_of_a_text(name: str) -> None:
    """The same text (ends, words and all) 3,000 times under keys of its own."""
    objective, n, r = EVERY[name], 30, 3000
    one = show_rows(objective, [n] * 3, seed=5)
    rows = repeated(one, 2, r)
    told = moments(objective, rows)
    assert not isinstance(told, str)
    for found, mean, variance in zip(
        counts(objective, rows), (told.targets, told.marks), (told.variance, told.marks_variance), strict=True
    ):
        assert np.ptp(mean) == 0 and np.ptp(variance) == 0
        assert abs(found.mean() - mean[0]) <= 3.5 * (variance[0] / r) ** 0.5 + 1e-9, (found.mean(), mean[0])
        if any(part in name for part in RUNS):
            continue
        assert 0.85 * variance[0] - 1e-6 <= found.var() <= 1.15 * variance[0] + 1e-6, (found.var(), variance[0])


def repeated(rows: Rows, which: int, times: int) -> Rows:
    """Text number `which` so many times, with keys and numbers of its own."""
    part = slice(int(rows.start[which]), int(rows.start[which + 1]))
    n = part.stop - part.start
    keys, index = keyed.row_keys(9, 0, np.arange(times)), np.arange(times)
    found = Rows.of(np.tile(rows.tokens[part], (times, 1)), keys, index=index, ends=np.full(times, rows.ends[which]))
    assert rows.word is not None and rows.sentence is not None and rows.spans is not None
    spans = rows.spans[(rows.spans[:, 0] >= part.start) & (rows.spans[:, 1] <= part.stop)] - part.start
    spans = (spans[None] + (n * index)[:, None, None]).reshape(-1, 2)
    found = replace(
        found, word=np.tile(rows.word[part], times), sentence=np.tile(rows.sentence[part], times), spans=spans
    )
    if rows.partner is None:
        return found
    other = repeated(rows.partner, which, times)
    return replace(found, partner=replace(other, key=keys + np.uint64(1)))


def test_the_prefix_formula_is_the_mean_over_every_split() -> None:
    for n, ends in itertools.product((1, 2, 5, 9), (True, False)):
        every = [n - split + ends for split in range(n)]
        found = expected(PrefixLM(), Rows.of([range(n)], ends=np.array([ends])))
        assert not isinstance(found, str)
        assert abs(found.targets - np.mean(every)) < 1e-9 and abs(found.targets_variance - np.var(every)) < 1e-9


def test_runs_of_tokens_chosen_one_by_one_are_counted_over_every_choice() -> None:
    n, x = 7, 3
    runs = [
        sum(1 for i, at in enumerate(chosen) if i == 0 or chosen[i - 1] < at - 1)
        for chosen in itertools.combinations(range(n), x)
    ]
    found = expected(SpanCorruption(mean_span=None, noise_density=x / n), Rows.of([range(n)]))
    assert not isinstance(found, str)
    assert abs(found.marks - np.mean(runs) - 1) < 1e-9 and abs(found.marks_variance - np.var(runs)) < 1e-9


def test_glm_blanks_are_counted_over_every_filling_and_turn() -> None:
    n, o = 12, GLM(noise_density=0.5, mean_span=2)
    x, boxes = 6, 3
    blanks = []
    for balls in itertools.product(range(boxes), repeat=x):
        filled = len(set(balls))
        blanks += [filled + 1] * (x - filled) + [filled] * (n - x + filled)
    found = expected(o, Rows.of([range(n)]))
    assert not isinstance(found, str)
    assert abs(found.targets - x - np.mean(blanks)) < 1e-9 and abs(found.targets_variance - np.var(blanks)) < 1e-9


def test_what_cannot_be_told_says_why() -> None:
    rows = show_rows(Masked.spanbert(), [64] * 3)
    short = Masked.spanbert().model_copy(update={"boundary_offsets": 2})
    assert expected(short, rows) == "how many tokens stand beyond the first 2 of a span"
    every = REGISTRY.make("t5", {"layout": {"kind": "causal", "loss": "all"}})
    assert "layout.loss=all" in str(expected(every, rows))
    parts = Mixture.model_validate({"parts": {"a": {"type": "causal"}, "b": {"preset": "glm_sentence"}}})
    assert str(expected(parts, rows)).startswith("of part b: which sentences")

    class Mine(Masked):
        """Selects in a way of its own."""

    assert expected(Mine(), rows) == "what it asks for"


def test_a_wrong_formula_would_be_seen() -> None:
    assert deviations(100, 100, 0) == 0 and deviations(101, 100, 0) == float("inf")
    assert deviations(130, 100, 100) == 3
