"""Whether heads that choose between a few classes have learnt more than how common the classes are.

A head that says the commonest class everywhere looks good on lopsided classes, and its loss falls at first. Held-out
figures (`heldout.HeldOut.terms`) hold both how often it is right and how often the commonest class would be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unmask.electra import BASELINE, warning


def unlearnt(terms: Mapping[str, float]) -> dict[str, str]:
    """Head → a sentence, for the heads that pass no baseline: their commonest class, or "original" everywhere.

    >>> list(unlearnt({"nsp_accuracy": 0.5, "nsp_majority": 0.53, "sop_accuracy": 0.9, "sop_majority": 0.5}))
    ['nsp']
    """
    found: dict[str, str] = {}
    for name, value in terms.items():
        head = name.removesuffix("_majority")
        accuracy = terms.get(f"{head}_accuracy")
        if head != name and accuracy is not None and accuracy <= value:
            found[head] = _one_class(head, accuracy, value)
        if name == BASELINE or name.endswith(f".{BASELINE}"):
            part = name.removesuffix(BASELINE)
            own = {key.removeprefix(part): figure for key, figure in terms.items() if key.startswith(part)}
            if (told := warning(own)) is not None:
                found[f"{part}detection"] = told
    return found


def _one_class(head: str, accuracy: float, majority: float) -> str:
    if majority == 1:
        return (
            f"WARNING: all held-out targets of head {head} are of one class, so there is nothing to learn: look at the "
            "text and how it is cut (unmask data stats, unmask show)"
        )
    return (
        f"WARNING: head {head} is right at {accuracy:.3f} of its held-out targets, and its commonest class everywhere "
        f"would be at {majority:.3f}: it has learnt nothing beyond how common its classes are; train longer, or raise "
        "its coefficient"
    )


@dataclass
class Classes:
    """Says so once a run for each head: at the second of two measurements in a row after the warm-up, or at the last.

    >>> watch, bad = Classes(warmup=10), {"nsp_accuracy": 0.5, "nsp_majority": 0.53}
    >>> [len(watch(step, bad)) for step in (5, 10, 20, 30)], len(watch(40, bad, last=True))
    ([0, 0, 1, 0], 0)
    """

    warmup: int
    before: set[str] = field(default_factory=set)
    """Heads that the measurement before found so."""
    said: set[str] = field(default_factory=set)

    def __call__(self, step: int, terms: Mapping[str, float], last: bool = False) -> list[str]:
        """The sentences that are due at this measurement."""
        found = unlearnt(terms) if last or step >= self.warmup else {}
        due = [head for head in found if (last or head in self.before) and head not in self.said]
        self.before = set(found)
        self.said.update(due)
        return [found[head] for head in due]
