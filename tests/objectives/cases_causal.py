"""Entries of the suite: infilling, multi-token prediction and MASS."""

from __future__ import annotations

from unmask.objectives import CausallyMasked, FillInTheMiddle, Mass, MultiToken
from unmask.objectives.base import Objective
from unmask.objectives.layout import Layout

from .cases import BOS, EOS, KINDS, VOCABULARY, Example

SENTINELS: list[int] = VOCABULARY.sentinels.tolist()

OBJECTIVES: dict[str, Objective] = {
    "fim-psm": FillInTheMiddle(rate=1, spm_rate=0),
    "fim-spm": FillInTheMiddle(rate=1, spm_rate=1),
    "fim-spm-v1": FillInTheMiddle(rate=1, spm_rate=1, spm="v1"),
    "fim-joint-sentinel": FillInTheMiddle(rate=1, end="sentinel"),
    "fim-middle": FillInTheMiddle(rate=1, loss="middle"),
    "cm3": CausallyMasked(max_spans=3),
    "cm3-one": CausallyMasked(max_spans=1),
    "incoder": CausallyMasked.incoder(),
    "multi-parallel": MultiToken(),
    "multi-sequential": MultiToken.deepseek_v3(),
    "multi-shared": MultiToken.modded_nanogpt(),
    # No token of the fragment is kept: with the paper's 80/10/10 the source shows some by design (`copies`).
    **{
        f"mass-{kind}-{opening}": Mass(layout=Layout(kind=kind), opening=opening, mask_share=0.5, random_share=0.5)
        for kind in KINDS
        for opening in ("mask", "token")
    },
    "mass-random": Mass(mask_share=0.0, random_share=1.0, begin="edges"),
}

BOUNDED = frozenset({"incoder"})


def restored(objective: Objective, e: Example, ends: bool) -> tuple[list[int], list[bool]] | None:
    """The text of an example from what the model reads and must say, and which of its tokens were moved or hidden."""
    if isinstance(objective, Mass):
        return _filled(objective, e, ends)
    if not isinstance(objective, (FillInTheMiddle, CausallyMasked, MultiToken)):
        return None
    written = said(e)
    if isinstance(objective, MultiToken):
        written = written[: len(written) - ends]
        return written, [True] * len(written)
    return (
        in_order(objective, written, ends)
        if isinstance(objective, FillInTheMiddle)
        else put_back(objective, written, ends)
    )


def said(e: Example) -> list[int]:
    """What a causal stream says: all it reads after [BOS], and its last target."""
    if not e.stream["tokens"]:
        return []
    assert e.stream["tokens"][0] == BOS and e.index[-1] == len(e.stream["tokens"]) - 1
    written = [*e.stream["tokens"][1:], e.value[-1]]
    assert [written[i] for i in e.index] == e.value
    return written


def in_order(objective: FillInTheMiddle, written: list[int], ends: bool) -> tuple[list[int], list[bool]]:
    """Prefix, middle and suffix of a cut text in their order."""
    if not written or written[0] not in SENTINELS:
        written = written[: len(written) - ends]
        return written, [False] * len(written)
    if objective.end == "eos":
        assert written.pop() == EOS
    else:
        assert not ends or written.pop() == EOS
        assert written.pop() == SENTINELS[3]
    pre, suf, mid = (written.index(s) for s in SENTINELS[:3])
    if (pre < suf and suf != pre + 1) or not objective.spm_rate:  # prefix, suffix, middle
        prefix, suffix, middle = written[pre + 1 : suf], written[suf + 1 : mid], written[mid + 1 :]
    elif suf < pre:  # v1
        suffix, prefix, middle = written[suf + 1 : pre], written[pre + 1 : mid], written[mid + 1 :]
    else:  # v2: where the prefix ends is not said, nor need it be
        suffix, prefix, middle = written[suf + 1 : mid], [], written[mid + 1 :]
    text = prefix + middle + suffix
    return text, [False] * len(prefix) + [True] * len(middle) + [False] * len(suffix)


def put_back(objective: CausallyMasked, written: list[int], ends: bool) -> tuple[list[int], list[bool]]:
    """Each span of the end in the place of its sentinel."""
    assert not ends or written.pop() == EOS
    opening = SENTINELS[: objective.max_spans]
    marks = [i for i, x in enumerate(written) if x in opening]
    count = len(marks) // 2
    assert [written[i] for i in marks] == 2 * opening[:count]
    if not count:
        return written, [False] * len(written)
    body, spans = written[: marks[count]], {}
    for begin, end in zip(marks[count:], [*marks[count + 1 :], len(written)], strict=True):
        spans[written[begin]] = written[begin + 1 : end - objective.end_of_span]
        assert not objective.end_of_span or written[end - 1] == SENTINELS[-1]
    text: list[int] = []
    noise: list[bool] = []
    for x in body:
        part = spans.get(x, [x])
        assert part
        text += part
        noise += [x in spans] * len(part)
    return text, noise


def _filled(objective: Mass, e: Example, ends: bool) -> tuple[list[int], list[bool]]:
    """The source with the fragment's tokens at their positions."""
    if e.source is None:
        begin = e.index[0] if e.index else 0
        text, at = e.stream["tokens"][:begin], e.stream["positions"][begin:]
        assert e.stream["positions"][:begin] == list(range(begin))
        read = e.stream["tokens"][begin:]
    else:
        text, at, read = e.source["tokens"].copy(), e.stream["positions"], e.stream["tokens"]
    assert at == list(range(at[0], at[0] + len(at))) if at else not e.value
    assert read[1:] == e.value[:-1]
    noise = [i in at for i in range(len(text))]
    for i, value in zip(at, e.value, strict=True):
        text[i] = value
    if ends:
        assert text.pop() == EOS
    return text, noise[: len(text)]
