"""Objectives that play with order (permutation, UniLM, dials, GLM) for the suite, and how their texts come back."""

from __future__ import annotations

from unmask.batch import QUERY
from unmask.objectives.base import Objective
from unmask.objectives.dials import Dials
from unmask.objectives.glm import GLM
from unmask.objectives.permutation import Permutation
from unmask.objectives.unilm import UniLM

from .cases import BOS, EOS, MASK, Example

OBJECTIVES: dict[str, Objective] = {
    "permutation": Permutation(),
    "permutation-xlnet": Permutation.xlnet(),
    "permutation-single": Permutation(max_span=1, one_in=3),
    "permutation-ordered": Permutation(context="ordered"),
    "permutation-all": Permutation(one_in=1, context="ordered", cls="last"),
    "unilm": UniLM(),
    "unilm-dense": UniLM(mask_rate=0.5, span_shares=(0.0, 0.0, 1.0)),
    "unilm-next": UniLM(next_token=True),
    **{f"dials-{k}": getattr(Dials, k)() for k in ("nxt_uni", "nxt_pre", "msk_uni", "msk_bi", "hyb_uni", "hyb_pre")},
    "dials-exact": Dials(mask_rate=0.3, selection="exact"),
    "glm": GLM(),
    "glm-ordered": GLM(shuffle=False),
    "glm-half": GLM(noise_density=0.5),
    "glm-dense": GLM(noise_density=0.9, mean_span=2),
    "glm-document": GLM.glm_document(),
    "glm-end": GLM(spans="document", place="end"),
    "glm-sentence": GLM.glm_sentence(),
}

COPIED = frozenset(n for n, o in OBJECTIVES.items() if o.copies)
"""Whose input may hold a target, by design."""
STILL = frozenset({"unilm-next", "dials-nxt_uni", "glm-end", "glm-sentence"})
"""Whose noise is the same under two keys for many texts: none at all, or a choice out of few."""
BOUNDED = frozenset({"glm-sentence"})
"""Whose room is a bound that texts without sentence starts do not reach."""
PLACED = frozenset(n for n in OBJECTIVES if n.startswith(("permutation", "glm")))
"""Whose positions are not the places in the row."""


def restored(objective: Objective, e: Example, ends: bool) -> tuple[list[int], list[bool]] | None:
    """The text of an example, from what the model sees and must say, and which of its tokens were noise (targets)."""
    if isinstance(objective, Permutation):
        return _permutation(objective, e)
    if isinstance(objective, UniLM):
        return _unilm(objective, e, ends)
    if isinstance(objective, Dials):
        return _dials(objective, e, ends)
    return _glm(e) if isinstance(objective, GLM) else None


def _permutation(objective: Permutation, e: Example) -> tuple[list[int], list[bool]]:
    tokens, at = e.stream["tokens"], e.stream["positions"]
    text = tokens[: len(tokens) - tokens.count(QUERY)]
    assert e.index == list(range(len(text), len(tokens))) and at[: len(text)] == list(range(len(text)))
    assert [text[at[i]] for i in e.index] == e.value
    inner = slice(1, -1) if objective.cls == "first" else slice(0, -2)
    frame = [text[0], text[-1]] if objective.cls == "first" else text[:-3:-1]
    assert frame == [BOS, EOS]
    asked = {at[i] for i in e.index}
    return text[inner], [i in asked for i in range(len(text))][inner]


def kind_of(reveal: list[int]) -> int:
    """Which kind a UniLM text is of, from its mask alone."""
    if reveal[-1] == 0:
        return 0
    return 3 if reveal[1] == 0 else 1 if reveal[0] == 0 else 2


def _unilm(objective: UniLM, e: Example, ends: bool) -> tuple[list[int], list[bool]]:
    tokens, reveal, kind = e.stream["tokens"].copy(), e.stream["reveal"], kind_of(e.stream["reveal"])
    step = [0, -1, 1, -1][kind] if objective.next_token else 0
    for i, v in zip(e.index, e.value, strict=True):
        assert not step or tokens[i - step] == v
        if not step:
            tokens[i] = v
    asked = {i - step for i in e.index}
    assert (len(tokens) - 1 in asked) == bool(ends and step == -1)
    keep = list(range(1, len(tokens) - 1))
    if kind == 3:
        middle = reveal.index(1) - 1
        assert tokens[middle] == EOS
        keep.remove(middle)
    assert (tokens[0], tokens[-1]) == (BOS, EOS)
    return [tokens[i] for i in keep], [i in asked for i in keep]


def _dials(objective: Dials, e: Example, ends: bool) -> tuple[list[int], list[bool]] | None:
    tokens = e.stream["tokens"].copy()
    if objective.predict == "masked":
        for i, v in zip(e.index, e.value, strict=True):
            assert tokens[i] == MASK
            tokens[i] = v
        text = slice(1, -1) if objective.prefix == "all" else slice(1, None)
        return tokens[text], [i in set(e.index) for i in range(len(tokens))][text]
    if objective.mask_rate:
        return None  # these texts hold [MASK] as an ordinary token too: see test_dials
    if ends:
        assert e.value.pop() == EOS
    seen = len(tokens) - len(e.value) - ends
    assert e.index[: len(e.value)] == list(range(seen, seen + len(e.value)))
    assert tokens[seen + 1 :] == e.value[: len(tokens) - seen - 1]
    return tokens[1 : seen + 1] + e.value, [False] * seen + [True] * len(e.value)


def _glm(e: Example) -> tuple[list[int], list[bool]]:
    tokens, at = e.stream["tokens"], e.stream["positions"]
    shown = e.stream["reveal"].count(0)
    assert e.index == list(range(shown, len(tokens))) and (tokens[0], tokens[shown - 1]) == (BOS, EOS)
    answers: dict[int, list[int]] = {}
    for i, v in zip(e.index, e.value, strict=True):
        assert tokens[i] == (answers[at[i]][-1] if at[i] in answers else BOS) and tokens[at[i]] == MASK
        answers.setdefault(at[i], []).append(v)
    text: list[int] = []
    noise: list[bool] = []
    for i in range(1, shown - 1):
        part = answers.get(i, [tokens[i], EOS])
        assert part[-1] == EOS
        text += part[:-1]
        noise += [i in answers] * (len(part) - 1)
    return text, noise
