"""Sizes for a parameter budget: depth, width, heads and feed-forward, each with the reason for it.

The switches (positions, norms, activation, …) are those of a preset; only its sizes are chosen here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from unmask.config import ModelConfig
from unmask.errors import UserError, nearest
from unmask.model.presets import PRESETS, preset
from unmask.model.spec import LANGUAGE_MODEL, parameters

TOLERANCE = 0.03
"""How far the count may lie from the target."""
DEFAULT = "modern-decoder"
GRAIN = 64
"""Sizes are multiples of it: matrix units work in tiles of 8 to 128 numbers."""
TIED_BELOW = 30e6
VOCABULARIES = ((1e6, 512), (5e6, 2048), (15e6, 4096), (40e6, 8192), (100e6, 16384), (math.inf, 32768))
"""Model size below which a vocabulary fits: a table that stays well under half of the model (parameter-golf's
frontier went 1,024, 4,096, 8,192 as its models grew; GPT-BERT has 8,192 at 10M words and 16,384 at 100M)."""


@dataclass(frozen=True)
class Advice:
    """A configuration of about the size asked for.

    changed: what to set beside `model.preset`; why: a sentence for each of them.
    """

    preset: str
    config: ModelConfig
    parameters: int
    changed: dict[str, Any]
    why: dict[str, str]


def advise(target: float, name: str | None = None, family: str | None = None, vocab_size: int | None = None) -> Advice:
    """Sizes for `target` parameters, within 3 %, with one head over the vocabulary.

    name: the preset whose switches are taken; family: instead, the first preset of that family.
    """
    if not 1e5 <= target <= 1e13:
        raise UserError(f"target={target:g} is no size of a model: give 1e5 to 1e13 parameters")
    base = name or (_of_family(family) if family else DEFAULT)
    values = preset(base)
    rows = vocab_size or next(size for limit, size in VOCABULARIES if target < limit)
    values["vocab_size"] = rows
    if target < TIED_BELOW and not values.get("embedding_size") and not values.get("tied_head", True):
        values["tied_head"] = True
        if "embedding_std" in values:
            values["embedding_std"] = 0.02
    _narrow_heads(values, target)
    sizes = _fit(values, target)
    changed = {"vocab_size": rows, **sizes}
    for key in ("tied_head", "embedding_std"):
        if values.get(key) != preset(base).get(key):
            changed[key] = values[key]
    config = _sized(values, sizes)
    why = {key: reason for key, reason in _reasons(base, config, target, vocab_size is not None) if key in changed}
    return Advice(base, config, parameters(config), {k: changed[k] for k in why}, why)


def parse_count(text: str) -> float:
    """A number of parameters as people write it.

    >>> [parse_count(t) for t in ("150M", "1.5B", "700k", "124,439,808")]
    [150000000.0, 1500000000.0, 700000.0, 124439808.0]
    """
    found = re.fullmatch(r"([0-9.]+)\s*([kmbg]?)", text.replace(",", "").replace("_", "").strip().lower())
    try:
        number = float(found[1]) * {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}[found[2]] if found else 0.0
    except ValueError:
        number = 0.0
    if not 1e5 <= number <= 1e13:
        raise UserError(f"'{text}' is no size of a model: write it as 150M or 1.5B, from 100k to 10000B")
    return number


def _of_family(family: str) -> str:
    known = {str(values["family"]): name for name, values in reversed(PRESETS.items()) if "family" in values}
    if family not in known:
        raise UserError(f"no preset of family '{family}' (known: {', '.join(known)}){nearest(family, known)}")
    return known[family]


# ---------------------------------------------------------------- the search


def resized(values: dict[str, Any], target: float) -> ModelConfig:
    """The model of these settings (vocab_size among them) at about `target` parameters."""
    values = dict(values)
    _narrow_heads(values, target)
    return _sized(values, _fit(values, target))


def _fit(values: dict[str, Any], target: float) -> dict[str, Any]:
    """Depth, width, heads and feed-forward size nearest to the aspect that is wanted, of those near the target."""
    wanted = _aspect(values)
    best: tuple[float, dict[str, Any]] | None = None
    for sizes in _candidates(values, target):
        sizes = _finer(values, sizes, target)
        error = abs(parameters(_sized(values, sizes), LANGUAGE_MODEL) / target - 1)
        off = abs(math.log(sizes["hidden_size"] / sizes["num_layers"] / wanted))
        cost = off + error + (1000 * error if error > TOLERANCE else 0)
        if best is None or cost < best[0]:
            best = cost, sizes
    if best is None or best[0] > 1000 * TOLERANCE:
        rows = values["vocab_size"]
        raise UserError(
            f"no model of this kind has {target:,.0f} parameters with a vocabulary of {rows}: "
            "give a smaller --vocab-size or a larger --target"
        )
    return best[1]


def _candidates(values: dict[str, Any], target: float) -> Iterator[dict[str, Any]]:
    """Every width with the one or two depths that come near the target."""
    head = _head_size(values)
    shared = values.get("distinct_layers")
    for width in range(head, 32768, _between(head)):
        thin, thick = (_sizes(values, width, depth) for depth in (_least(values), 2 * _least(values)))
        one, two = (parameters(_sized(values, s)) for s in (thin, thick))
        if one > target * 1.3:
            return
        if shared:
            yield _sizes(values, width, values["num_layers"])
            continue
        step = (two - one) / _least(values)
        depth = _least(values) + (target - one) / step
        for layers in {max(_least(values), math.floor(depth)), max(_least(values), math.ceil(depth))}:
            if layers <= 256:
                yield _sizes(values, width, layers)


def _between(head: int) -> int:
    """From one width to the next: of whole heads, and of whole tiles where that leaves enough widths.

    >>> [_between(head) for head in (32, 64, 48, 128, 96, 100)]
    [64, 64, 48, 128, 192, 100]
    """
    if head <= GRAIN:
        return head if GRAIN % head else GRAIN
    both = math.lcm(head, GRAIN)
    return both if both <= 8 * GRAIN else head


def _least(values: dict[str, Any]) -> int:
    """The fewest layers that show all kinds of them."""
    experts = values.get("experts") or {}
    return int(experts.get("first_dense", 0)) + max(2, len(experts.get("pattern", "E")))


def _finer(values: dict[str, Any], sizes: dict[str, Any], target: float) -> dict[str, Any]:
    """The same with a feed-forward size up to a fifth wider or narrower, where that comes nearer."""
    count = parameters(_sized(values, sizes))
    if abs(count / target - 1) <= TOLERANCE:
        return sizes
    size = sizes["intermediate_size"]
    grain = GRAIN if size >= 4 * GRAIN else 8
    wider = {**sizes, "intermediate_size": size + grain}
    slope = (parameters(_sized(values, wider)) - count) / grain
    if not slope:
        return sizes
    steps = round((target - count) / slope / grain)
    most = max(1, int(0.2 * size / grain))
    return {**sizes, "intermediate_size": max(grain, size + min(max(steps, -most), most) * grain)}


def _sizes(values: dict[str, Any], width: int, depth: int) -> dict[str, Any]:
    """Everything that follows from width and depth."""
    base = ModelConfig.model_validate({**values, "vocab_size": 1})
    heads = max(1, width // _head_size(values))
    out: dict[str, Any] = {"num_layers": depth}
    if base.num_source_layers:
        out["num_source_layers"] = depth
    out |= {"hidden_size": width, "num_heads": heads}
    if base.kv_heads != base.num_heads:
        share = base.num_heads // base.kv_heads
        out["num_kv_heads"] = heads // share if heads % share == 0 else heads
    ratio = base.mlp_size / base.hidden_size
    if values.get("intermediate_size") is None and base.gated:
        ratio = 8 / 3
    out["intermediate_size"] = max(GRAIN // 2, round(width * ratio / GRAIN) * GRAIN)
    return out


def _sized(values: dict[str, Any], sizes: dict[str, Any]) -> ModelConfig:
    """The configuration of a preset's switches with other sizes."""
    merged = {**values, **sizes}
    for key, scale in (("embedding_scale", 0.5), ("head_scale", -0.5)):  # powers of the width
        if key in merged:
            merged[key] = float(sizes["hidden_size"]) ** scale
    if (values.get("experts") or {}).get("intermediate_size"):
        share = values["experts"]["intermediate_size"] / values["intermediate_size"]
        narrow = max(8, round(sizes["intermediate_size"] * share / 8) * 8)
        merged["experts"] = {**values["experts"], "intermediate_size": narrow}
    return ModelConfig.model_validate(merged)


def _narrow_heads(values: dict[str, Any], target: float) -> None:
    """Heads of 64 (or the next size below that the width holds) instead of 128 below 100M, so that a narrow model
    still has several."""
    if target < 100e6 and "head_size" not in values and _head_size(values) > 64:
        size = next((s for s in range(64, 31, -2) if values["hidden_size"] % s == 0), None)
        if size is None:
            return
        share = values["num_heads"] // (values.get("num_kv_heads") or values["num_heads"])
        values["num_heads"] = values["hidden_size"] // size
        if "num_kv_heads" in values:
            values["num_kv_heads"] = values["num_heads"] // share


def _head_size(values: dict[str, Any]) -> int:
    return int(values.get("head_size") or values["hidden_size"] // values["num_heads"])


def _aspect(values: dict[str, Any]) -> float:
    """Width over depth that is aimed at."""
    return 36.0 if values.get("family") == "modernbert" or values.get("attention_pattern") == "GLL" else 64.0


# ---------------------------------------------------------------- the reasons


def _reasons(base: str, config: ModelConfig, target: float, given: bool) -> Iterator[tuple[str, str]]:
    """(setting, one line) of everything that was chosen."""
    c, d, layers = config, config.hidden_size, config.num_layers
    table = c.vocab_size * c.table_size * (1 if c.tied_head else 2)
    share = f"tables are {100 * table / parameters(c):.0f} % of the model"
    yield (
        "vocab_size",
        f"as given: {share}" if given else f"{share}; smaller models want smaller tables (parameter-golf)",
    )
    near = "ModernBERT's deep and narrow 35" if _aspect_of(c) < 50 else "nanochat's 64"
    if c.distinct_layers:
        yield "num_layers", "as the preset: shared layers cost time but no parameters (Lan et al. 2020)"
    else:
        wide = f"width / depth = {d / layers:.0f} (aim: {near}); loss hardly feels it over a factor of 40"
        yield "num_layers", f"{wide} (Kaplan et al. 2020, figure 5)"
    yield "num_source_layers", "as many as the stream's (Raffel et al. 2020, section 3.2.2)"
    yield (
        "hidden_size",
        f"a multiple of {math.gcd(d, GRAIN)}, for whole tiles in matrix products; the depth follows from the target",
    )
    yield "num_heads", f"heads of {c.size_per_head}; {base} is the pattern"
    yield "num_kv_heads", f"{c.num_heads // c.kv_heads} queries share a key, as in {base} (Ainslie et al. 2023)"
    ratio = c.mlp_size / d
    usual = "8/3: a gated layer has three matrices (Shazeer 2020)" if c.gated else "4 (Vaswani et al. 2017)"
    yield "intermediate_size", f"{ratio:.2f} × width; usual is {usual}; moved a little where that meets the target"
    yield "tied_head", f"below {TIED_BELOW / 1e6:.0f}M a second table costs more than it gives (Press and Wolf 2017)"
    yield "embedding_std", "a tied table starts as small as a head must"


def _aspect_of(config: ModelConfig) -> float:
    return _aspect({"family": config.family, "attention_pattern": config.attention_pattern})
