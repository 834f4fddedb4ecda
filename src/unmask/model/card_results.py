"""What a model card says was measured: the figures of result.json, under the names of what they are of.

a head over tokens          loss per content target beside the unigram floor, of a mixture also part by part
no head over tokens         the loss is made of its heads' terms, which are listed
one network of several      the terms of the heads that were exported, not of the one left behind (ELECTRA)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

RESULTS = {
    "held_out_loss": "held-out loss, nats per content target",
    "held_out_interval": "its 95 % interval",
    "held_out_unigram_floor": "unigram floor: the same targets by word frequencies alone",
    "held_out_accuracy": "share of content targets whose token is the likeliest",
    "held_out_content_targets": "content targets",
    "held_out_structural_loss": "loss of other targets (ends, sentinels)",
}
"""Keys of result.json about a head over tokens, in the card's order."""

BYTES = {"held_out_bits_per_byte": "bits per byte", "bits_per_byte": "bits per byte"}

ORIGINAL = "always_original"
"""The figure that only a generator's and a discriminator's step has (`unmask.electra`)."""
DETECTING = {
    "accuracy": "share of tokens rightly called original or replaced",
    ORIGINAL: "the same, if every token were called original",
}
GENERATING = {"generator_accuracy": "share of masked tokens whose token is the likeliest"}


def at_step(lines: Iterable[Mapping[str, Any]], step: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what had been spent, what was measured) after an update, from metrics.jsonl in the form of result.json."""
    spent, terms = {}, {}
    result: dict[str, Any] = {}
    parts: dict[str, dict[str, float]] = {}
    for line in lines:
        if line.get("step") != step:
            continue
        if "evaluation" not in line:
            spent = dict(line)
        for name, value in line.get("evaluation", {}).items():
            part, _, figure = name.rpartition(".")
            if name.startswith("term_"):
                terms[name.removeprefix("term_")] = value
            elif part:
                parts.setdefault(part, {})[figure] = value
            else:
                result[f"held_out_{name}"] = value
    return spent, {**result, "held_out_terms": terms, "held_out_parts": parts}


def rows(result: Mapping[str, Any], heads: Collection[str], detects: bool) -> list[tuple[str, str]]:
    """Titles and figures; `heads` are those of the exported network, `detects`: it says no tokens."""
    terms: Mapping[str, float] = result.get("held_out_terms") or {}
    found: list[tuple[str, Any]]
    if ORIGINAL in terms:
        figures = DETECTING if detects else GENERATING
        losses = [(f"held-out loss of its head `{h}`, nats per target", terms[h]) for h in terms if h in heads]
        found = [*losses, *((title, terms[key]) for key, title in figures.items() if key in terms)]
    elif terms and not result.get("held_out_content_targets") and result.get("held_out_accuracy") is None:
        found = [("held-out loss, the mean of its terms by their weights", result.get("held_out_loss")), *_terms(terms)]
    else:
        found = [(title, result.get(key)) for key, title in RESULTS.items()]
        parts: Mapping[str, Mapping[str, float]] = result.get("held_out_parts") or {}
        for name, part in parts.items():
            found.append((f"part `{name}`: held-out loss, nats per content target", part.get("loss")))
            found.append((f"part `{name}`: unigram floor", part.get("unigram_floor")))
        found += _terms({name: value for name, value in terms.items() if name != "lm"})
    found += [(title, result.get(key)) for key, title in BYTES.items()]
    return [(title, _shown(value)) for title, value in found if value is not None]


def _terms(terms: Mapping[str, float]) -> list[tuple[str, Any]]:
    """One line a head, and what heads over classes get right."""
    endings = {
        "_accuracy": "share of targets that its head `{}` gets right",
        "_majority": "share of targets of head `{}` that are the commonest class",
    }
    out: list[tuple[str, Any]] = []
    for name, value in terms.items():
        ending = next((e for e in endings if name.endswith(e) and name.removesuffix(e) in terms), "")
        title = endings.get(ending, "term `{}`, nats per target").format(name.removesuffix(ending) if ending else name)
        out.append((title, value))
    return out


def _shown(value: Any) -> str:
    numbers = value if isinstance(value, list) else [value]
    return " to ".join(f"{v:,}" if isinstance(v, int) else f"{v:.4f}" for v in numbers)


def learnt_nothing(result: Mapping[str, Any], detects: bool) -> str:
    """The sentence about a model that is no better than knowing no text; empty where it is, or nobody measured it."""
    terms: Mapping[str, float] = result.get("held_out_terms") or {}
    if ORIGINAL in terms:
        right, all_original = terms.get("accuracy"), terms[ORIGINAL]
        if not detects or right is None or right > all_original:
            return ""
        return (
            f"It calls no more tokens rightly original or replaced ({right:.3f}) than calling all of them original "
            f"would ({all_original:.3f})."
        )
    loss, floor = result.get("held_out_loss"), result.get("held_out_unigram_floor")
    if loss is None or floor is None or loss < floor:
        return ""
    return f"Its held-out loss ({loss:.3f}) is not below the unigram floor ({floor:.3f}): it has learnt no context."


_NUMBERED = re.compile(r"^([^\d]*)\.\d+\..*$")


def grouped(names: Iterable[str]) -> list[str]:
    """Names of tensors, those of numbered modules together.

    >>> grouped(["stack.ahead.0.join.weight", "stack.ahead.1.join.weight", "heads.lm2.weight"])
    ['stack.ahead.* (2 tensors)', 'heads.lm2.weight']
    """
    count = Counter(_NUMBERED.sub(r"\1.*", name) for name in names)
    return [f"{name} ({n} tensors)" if name.endswith(".*") else name for name, n in count.items()]
