"""Every objective whose models fill [MASK]s writes by unmasking: against a loop that asks for one place at a time.

The loop builds each question by hand, as training puts it: what is hidden is left out or moved physically, one row, one
answer; nothing of `evaluation.shown` is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from unmask.batch import INFINITY, QUERY, Batch, Rows, Stream
from unmask.data.collate import collate
from unmask.errors import UserError
from unmask.evaluation.abilities import abilities
from unmask.evaluation.base import token_losses
from unmask.evaluation.generate import generate, generations
from unmask.evaluation.shown import in_order
from unmask.evaluation.unmasking import Unmasking, longest_text, unmask
from unmask.lm import LM
from unmask.objectives import Dials, Permutation, ShiftedMasked
from unmask.objectives.base import LM as LM_HEAD

from .test_objective_plans import CASES, model_of, refusal, words
from .test_unmasking import by_hand

PROMPTS = ["the cat sat", "a", ""]
UNMASKS = [name for name, objective in CASES.items() if abilities(objective).unmasks]
BOTH_WAYS = ["hybrid", "hyb_uni", "hyb_pre", "unilm", "unilm-next"]
RULES: list[Any] = [("confidence", 0, 0), ("confidence", 3, 4), ("mask_predict", 3, 0), ("confidence", 0, 1)]


def told(lm: LM, tokens: list[int], positions: list[int], reveal: list[int], horizon: list[int], read: int) -> Tensor:
    """(V,) log-probabilities at one place of a row in which token j is seen where reveal[j] ≤ horizon[i]."""
    one = [torch.tensor([a], dtype=torch.int32) for a in (tokens, positions, [1] * len(tokens), reveal, horizon)]
    stream = Stream(*one, token_type=torch.zeros_like(one[0]), pattern="order")
    module: Any = lm.network.heads["lm"]
    with torch.no_grad():
        state = lm.network(Batch(stream, {}, {}))["stream"][:, read]
        return module.project(module.features(state[:, None]))[0].double().log_softmax(-1)  # type: ignore[no-any-return]


def asked(lm: LM, text: list[int], hidden: set[int], place: int) -> Tensor:
    """What the model says of one place of a text, the `hidden` places not seen."""
    objective, v = lm.objective, lm.vocabulary
    kept = [i for i in range(len(text)) if i not in hidden]
    if isinstance(objective, Permutation):  # what is hidden is not there at all; the query stands at its place
        lead = int(objective.cls == "first")
        frame = [(0, v.need("cls")), (len(text) + 1, v.need("sep"))]
        if not lead:
            frame = [(len(text), v.need("sep")), (len(text) + 1, v.need("cls"))]
        ordered = objective.context == "ordered"
        row = [(p, t, 0) for p, t in frame]
        row += [(i + lead, text[i], (k + 1) * ordered) for k, i in enumerate(kept)]
        rank, last = [r for *_, r in row], len(kept) * ordered
        return told(
            lm, [*[t for _, t, _ in row], QUERY], [*[p for p, *_ in row], place + lead], [*rank, INFINITY],
            [*rank, last], len(row),
        )  # fmt: skip
    if isinstance(objective, Dials) and objective.prefix != "all":  # [BOS], what is seen, and the masks behind it
        order = [*kept, *sorted(hidden)]
        tokens = [v.need("bos"), *[v.need("mask") if i in hidden else text[i] for i in order]]
        rank = list(range(len(tokens)))
        if objective.prefix == "uniform":
            rank = [max(r - len(kept), 0) for r in rank]
        return told(lm, tokens, [0, *[i + 1 for i in order]], rank, rank, 1 + order.index(place))
    tokens = [v.need("cls"), *[v.need("mask") if i in hidden else t for i, t in enumerate(text)], v.need("sep")]
    zeros, read = [0] * len(tokens), place + (not isinstance(objective, ShiftedMasked))
    return told(lm, tokens, list(range(len(tokens))), zeros, zeros, read)


@pytest.mark.parametrize("name", UNMASKS)
@pytest.mark.parametrize(("order", "steps", "block"), RULES)
def test_unmasking_equals_a_loop_over_places(name: str, order: Any, steps: int, block: int) -> None:
    lm = model_of(name)
    found = unmask(lm, PROMPTS, Unmasking(order, steps, block), 7)
    for prompt, g in zip(PROMPTS, found, strict=True):
        ids, logprob = by_hand(lm, prompt, 7, order, steps, block, asked)
        assert g.ids == ids and g.logprob == pytest.approx(logprob, rel=1e-4) and len(ids) == 7


def test_the_kinds_are_there() -> None:
    assert {"masked", "shifted", "permutation", "xlnet", "permutation-ordered", "msk_uni", "msk_bi"} <= set(UNMASKS)
    assert set(BOTH_WAYS) == {n for n in UNMASKS if abilities(CASES[n]).unmasks == "too"}


@pytest.mark.parametrize("name", UNMASKS)
def test_one_forward_pass_a_step_for_all_texts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm, count = model_of(name), []
    plain = type(lm.network).forward
    monkeypatch.setattr(type(lm.network), "forward", lambda *a, **k: count.append(1) or plain(*a, **k))  # type: ignore[func-returns-value]
    unmask(lm, PROMPTS, Unmasking(steps=4), 8)
    assert len(count) == 4


@pytest.mark.parametrize("name", UNMASKS)
def test_generate_unmasks_by_itself_or_where_it_is_asked(name: str) -> None:
    lm = model_of(name)
    expected = [g.text for g in unmask(lm, PROMPTS, Unmasking(steps=3), 6)]
    assert lm.can("generate") and generate(lm, PROMPTS, 6, steps=3) == expected
    by_itself = generations(lm, PROMPTS, 6)
    assert (by_itself == unmask(lm, PROMPTS, Unmasking(), 6)) == (name not in BOTH_WAYS)


@pytest.mark.parametrize("name", UNMASKS)
def test_the_longest_text_is_one_of_training(name: str) -> None:
    """A permutation's queries take a part of the row, so its texts, and their positions, were shorter."""
    lm = model_of(name)
    most = longest_text(lm)
    g = generations(lm, "the cat", 99) if name not in BOTH_WAYS else unmask(lm, ["the cat"], Unmasking(), 99)
    assert len(g[0].ids) == most - len("the cat") and g[0].stopped == "positions"
    objective = CASES[name]
    if isinstance(objective, Permutation):
        n = most + objective.count(torch.tensor([most]).numpy())[0] + 2
        assert n <= 48 < n + 2
    with pytest.raises(UserError, match=f"goes beyond the {most} that"):
        unmask(lm, ["x" * most], Unmasking(), 1)


def test_models_that_do_not_fill_are_told_so() -> None:
    assert "writes from left to right" in refusal(lambda: generate(model_of("causal"), "a", steps=2))
    assert "must know how long" in refusal(lambda: generate(model_of("mass"), "a", steps=2))
    assert "was trained without" in refusal(lambda: generate(model_of("unilm-l2r"), "a"))
    assert "was trained without" in refusal(lambda: generate(model_of("unilm-r2l"), "a", steps=2))
    assert "writes from left to right" in refusal(lambda: generate(model_of("unilm-pairs"), "a", steps=2))


def test_one_place_at_a_time_is_the_score_from_left_to_right() -> None:
    """Where contexts are ordered, writing in blocks of one is the order that `left_to_right` scores."""
    lm, v = model_of("permutation-ordered"), words().vocabulary
    written = unmask(lm, [""], Unmasking(block=1), 9)[0]
    objective: Any = lm.objective
    examples = in_order(objective, Rows.of([written.ids], ends=[False]), np.ones(9, bool), v)
    batch = collate({"x": examples}, {"x": (LM_HEAD,)}).map(torch.from_numpy)
    module: Any = lm.network.heads["lm"]
    with torch.no_grad():
        states = lm.network(batch)["stream"]
        asked_for = batch.targets["x", "lm"].map(lambda a: a[:9])
        losses, _ = token_losses(LM_HEAD, module, states, batch.stream, asked_for)
    assert written.logprob == pytest.approx(-float(losses.double().sum()), rel=1e-5)
