"""Text-to-text objectives for the suite, and how the text of each comes back from its example.

`texts` marks no sentences, so BART's permutation has tests of its own (test_bart).
"""

from __future__ import annotations

from unmask.objectives import UL2, Bart, DroppedTokens, PrefixLM, Restoration, SpanCorruption
from unmask.objectives.base import Objective
from unmask.objectives.denoise import TextToText
from unmask.objectives.layout import Layout

from .cases import BOS, EOS, KINDS, Example, joined, pair

BOUNDARY = {kind: Layout(kind=kind, bos="boundary") for kind in ("prefix", "causal")}

OBJECTIVES: dict[str, Objective] = {
    **{f"spans-boundary-{kind}": SpanCorruption(layout=layout) for kind, layout in BOUNDARY.items()},
    **{f"prefix_lm-boundary-{kind}": PrefixLM(layout=layout) for kind, layout in BOUNDARY.items()},
    **{f"spans-iid-{kind}": SpanCorruption.iid(layout=Layout(kind=kind)) for kind in KINDS},
    "spans-iid-half": SpanCorruption.iid(noise_density=0.5, final_sentinel=False),
    **{f"dropped-{kind}": DroppedTokens(layout=Layout(kind=kind)) for kind in KINDS},
    "dropped-spans": DroppedTokens(mean_span=3, noise_density=0.3),
    **{f"restoration-{kind}": Restoration(layout=Layout(kind=kind)) for kind in KINDS},
    "restoration-mass": Restoration.mass_style(mask_rate=0.5),
    "restoration-shuffle": Restoration.deshuffling(layout="prefix"),
    **{f"bart-infill-{kind}": Bart.text_infilling(layout=Layout(kind=kind)) for kind in KINDS},
    "bart-infill-much": Bart.text_infilling(infill_rate=0.9, mean_span=1.0),
    "bart-mask": Bart.token_masking(),
    "bart-delete": Bart.token_deletion(),
    "bart-all": Bart(infill_rate=0.3, delete_rate=0.1, mask_rate=0.1, rotate=True, permute_sentences=False),
    **{f"ul2-{kind}": UL2(layout=Layout(kind=kind)) for kind in KINDS},
    "ul2-any": UL2(sequential="any", final_sentinel=False),
    "ul2-paper": UL2(modes="paper", layout="prefix"),
    "ul2-no-modes": UL2.without_modes(layout="prefix"),
}

COPIED = frozenset(n for n, o in OBJECTIVES.items() if o.copies)
"""Whose source shows the text that the target repeats: nothing to hide there, only in the target's own order."""

BOUNDED = frozenset(n for n in OBJECTIVES if n.startswith(("spans-iid", "bart-infill", "bart-all", "ul2")))
"""Whose room is for the worst draw (all noise tokens apart; as many masks as tokens), which few keys reach."""


def sides(objective: TextToText, e: Example) -> tuple[list[int], list[int]]:
    """Source and target, wherever [BOS] stands."""
    if objective.layout.bos == "front" or not e.index:
        return pair(e)
    whole, at = e.stream["tokens"], e.index[0]
    assert e.index == list(range(at, len(whole))) and whole[at:] == [BOS, *e.value[:-1]]
    return whole[:at], e.value


def restored(objective: Objective, e: Example, ends: bool) -> tuple[list[int], list[bool]] | None:
    """The text of an example, and which of its tokens were noise where that can be told; None = it cannot come back."""
    if isinstance(objective, PrefixLM):
        source, target = sides(objective, e)
        assert not ends or target.pop() == EOS
        return source + target, [False] * len(source) + [True] * len(target)
    if isinstance(objective, SpanCorruption):
        return joined(*sides(objective, e), objective.final_sentinel)
    if isinstance(objective, UL2):
        source, target = sides(objective, e)
        return joined(source[objective.modes != "none" :], target, objective.final_sentinel)
    if isinstance(objective, Restoration | Bart):
        source, target = sides(objective, e)
        assert source[-1] == target[-1] == EOS
        same_length = len(source) == len(target)
        return target[:-1], [same_length and a != b for a, b in zip(source, target[:-1], strict=False)]
    return None
