"""Between a ModelConfig and a family's config.json, and between our tensor names and theirs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from unmask.batch import Head
from unmask.config import ModelConfig
from unmask.errors import UserError, nearest
from unmask.model.families import ALIASES, FAMILIES, Family, Row, Settings
from unmask.model.families.base import ACTIVATIONS, GATES

NOTES = "unmask.json"
"""The file in which our exports say what config.json cannot: the objective, and the trained context."""


def read_hf_config(directory: str | Path) -> ModelConfig:
    """The ModelConfig of a Hugging Face directory."""
    path = Path(directory)
    if not (path / "config.json").is_file():
        raise UserError(f"{path} is not a model directory: it has no config.json")
    return read_settings(read_json(path / "config.json"), path / "config.json")


def read_settings(settings: Settings, file: Path) -> ModelConfig:
    """The ModelConfig of the settings in a config.json; what is wrong there is one sentence that names the file."""
    try:
        return read_config(settings)
    except ValidationError as error:
        raise UserError(f"{file} describes no model: {first_fault(error)}") from None
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:  # 0 heads, a list
        raise UserError(f"{file} holds a value of the wrong kind: {error}") from None


def first_fault(error: ValidationError) -> str:
    """The first thing that a validation found: which key, and what is wrong there."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    return f"{key}: {first['msg']}" if key else first["msg"].removeprefix("Value error, ")


def read_notes(directory: Path) -> dict[str, Any]:
    """What an export of ours says beyond config.json; nothing for other directories."""
    return read_json(directory / NOTES) if (directory / NOTES).is_file() else {}


def read_json(file: Path) -> dict[str, Any]:
    """The settings in a JSON file."""
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as fault:
        raise UserError(f"{file} is not valid JSON: {fault}") from None
    if not isinstance(settings, dict):
        raise UserError(f"{file} holds no settings")
    return settings


def read_config(settings: Settings) -> ModelConfig:
    """The ModelConfig of a config.json."""
    refuse_quantised(settings)
    kind = settings.get("model_type") or ("bert" if _first_bert(settings) else "")
    kind = ALIASES.get(kind, kind)
    if kind == "unmask":  # an export with code of its own (`bundle`)
        return ModelConfig.model_validate(settings.get("unmask", {}).get("model"))
    if kind not in FAMILIES:
        raise UserError(
            f"config.json: model_type '{kind}' is not one of {', '.join(FAMILIES)}{nearest(str(kind), FAMILIES)}"
        )
    return ModelConfig(family=kind, **FAMILIES[kind].read(settings))


def refuse_quantised(settings: Settings) -> None:
    """Weights that only another library's code can decode are none that could be read here."""
    if how := settings.get("quantization_config"):
        method = f" ({how['quant_method']})" if isinstance(how, Mapping) and how.get("quant_method") else ""
        raise UserError(
            f"config.json: quantization_config{method} is not supported: save the model dequantised (as bfloat16) first"
        )


def _first_bert(settings: Settings) -> bool:
    """Whether settings without a model_type are those of the first BERT files (also SpanBERT's and UniLM's)."""
    stock = settings.get("architectures") or ["Bert"]
    return "type_vocab_size" in settings and "embedding_size" not in settings and str(stock[0]).startswith("Bert")


def family_of(config: ModelConfig) -> Family:
    """The family whose stock class computes exactly this model.

    A named family must fit, but for modules that look ahead: no answer of a trained model needs them, and they are left
    out (Gloeckle et al. 2024, section 2). family=unmask takes the first that fits whole.
    """
    if config.family in FAMILIES:
        if found := misfits(FAMILIES[config.family], config.model_copy(update={"ahead_layers": 0})):
            raise UserError(f"{config.family} cannot hold this model: {found[0]}")
        return FAMILIES[config.family]
    faults: dict[str, list[str]] = {}
    for family in FAMILIES.values():
        found = misfits(family, config)
        if not found:
            return family
        if isinstance(_round_trip(family, config), ModelConfig):
            faults[family.name] = found
    closest = min(faults, key=lambda name: len(faults[name]), default="")
    why = f" ({closest} comes nearest: {', '.join(faults[closest][:3])})" if closest else ""
    raise UserError(f"no family of the common library holds this model{why}")


def misfits(family: Family, config: ModelConfig) -> list[str]:
    """The settings that a round trip through the family's config.json would change; none: it holds this model."""
    out = []
    if config.visibility != family.visibility:
        out.append(f"visibility={config.visibility} (it is {family.visibility})")
    if (config.num_source_layers > 0) != family.two_stacks:
        out.append(f"num_source_layers={config.num_source_layers}")
    back = _round_trip(family, config)
    if isinstance(back, str):
        return [*out, back]
    one_type = config.token_types == 1 and config.norm_position == "post"  # `_meaning` takes it for no types
    if one_type and not any(row.ours == "stack.token_types.weight" for row in family.rows):
        out.append("token_types=1 (it is 0 there)")
    ours, theirs = _meaning(config), _meaning(back)
    for name, value in ours.items():
        if name not in family.told and name not in theirs:
            out.append(f"{name}={value} (which has no place there)")
        elif name not in family.told and theirs[name] != value:
            out.append(f"{name}={value} (it is {theirs[name]} there)")
    return out


def _round_trip(family: Family, config: ModelConfig) -> ModelConfig | str:
    """The settings after writing them as the family's config.json and reading that, or why it cannot be."""
    try:
        return ModelConfig(family=family.name, **family.read(family.write(config)))
    except KeyError:  # only activations are looked up
        return f"activation={config.activation}"
    except UserError as error:
        return str(error).removeprefix("config.json: ")
    except ValidationError as error:
        return first_fault(error)


_FREE = {
    *("family", "visibility", "pooler", "detector_transform", "dropout", "attention_dropout"),
    *("init_std", "embedding_std", "head_std", "zero_init_projections", "relative_start"),
}
"""Settings that change no number a trained model computes, or only those of heads (which are written as they are)."""


def _meaning(config: ModelConfig) -> dict[str, Any]:
    """The settings that change what a model computes, defaults resolved, those without effect left out."""
    out = {k: v for k, v in config.model_dump().items() if k not in _FREE}
    depth = max(config.num_layers, config.num_source_layers)
    patterns = ["".join("L" if config.local(i) else "G" for i in range(depth))]
    out["attention_pattern"] = patterns[0]
    out["num_kv_heads"], out["head_size"] = config.kv_heads, config.size_per_head
    out["intermediate_size"], out["embedding_size"] = config.mlp_size, config.table_size
    out["attention_scale"], out["distinct_layers"] = config.scale, config.depths(config.num_layers)[-1] + 1
    out["attention_out_bias"] = config.out_bias
    out["final_norm"] = config.final_norm and config.norm_position != "post"
    out["norm_bias"] = config.norm_bias and config.norm == "layer" and config.norm_weight
    out["token_types"] = max(config.token_types, 1) if config.norm_position == "post" else config.token_types
    out["source_window"] = (config.source_window or config.window) if config.num_source_layers else 0
    out["rotary_local_base"] = config.rotary_local_base or config.rotary_base
    head = config.head_activation or config.activation
    out["head_activation"] = ACTIVATIONS.get(head) or GATES[head]
    if config.experts is not None:
        out["experts"]["intermediate_size"] = config.expert_size
        out["experts"]["pattern"] = "".join("E" if config.sparse(i) else "D" for i in range(depth))
        for name in ("balance_loss", "z_loss", "first_dense"):
            out["experts"].pop(name)
    relative, rotary = ("t5", "deberta"), config.positions == "rotary"
    idle = {
        "rotary_base": not rotary,
        "rotary_share": not rotary,
        "rotary_local_base": not rotary or "L" not in patterns[0],
        "qk_norm_after": not (rotary and config.qk_norm),
        "window": "L" not in patterns[0],
        "source_window": "L" not in patterns[0],
        "relative_buckets": config.positions not in relative,
        "relative_max_distance": config.positions not in relative,
        "relative_norm": config.positions != "deberta",
        "relative_shared": config.positions != "deberta",
        "position_offset": config.positions != "learned",
        "ahead": not config.ahead_layers,
        "convolution_activation": not config.convolution,
        "max_position": config.positions in ("t5", "alibi", "xlnet", "none"),
        "query_vector": config.positions == "xlnet",
        "intermediate_size": all(config.sparse(i) for i in range(depth)),  # no dense layer has it
        "head_activation": not config.head_transform,
        "head_transform_bias": not config.head_transform,
    }
    return {k: v for k, v in out.items() if not idle.get(k, False)}


def concrete(family: Family, config: ModelConfig, heads: Mapping[str, str]) -> list[Row]:
    """The family's rows with every layer, expert and head written out; `heads`: role → our module's name."""
    out = []
    for row in family.rows:
        role = row.ours[row.ours.find("{") + 1 : row.ours.find("}")] if row.ours.startswith("heads.") else ""
        if role and role not in heads:
            continue
        depth = config.num_source_layers if row.ours.startswith("source.") else config.num_layers
        for i in range(config.depths(depth)[-1] + 1 if "{i}" in row.ours else 1):
            if not row.when(config, i):
                continue
            names = {**heads, "i": str(i)}
            theirs, also = (_spelled(group, names, config) for group in (row.theirs, row.also))
            out.append(replace(row, ours=row.ours.format(**names), theirs=theirs, also=also))
    return out


def _spelled(group: tuple[str, ...], names: Mapping[str, str], config: ModelConfig) -> tuple[str, ...]:
    """Their names with numbers in place; {e} runs over the experts."""
    experts = range(config.experts.count if config.experts else 0)
    return tuple(name.format(**names, e=e) for name in group for e in (experts if "{e}" in name else range(1)))


def known_heads(heads: Mapping[str, Head], family: Family | None = None) -> dict[str, str]:
    """The modules that families know: role (lm, pair, detect) → our name. `heads` are the modules' declarations.

    With a family, only those that it has names for.
    """
    out: dict[str, str] = {}
    for name, head in heads.items():
        if head.over == "vocabulary" and head.arity == 1:
            out.setdefault("lm", name)
        elif head.over == "classes" and head.size == 2:
            out.setdefault("pair", name)
        elif head.over == "binary":
            out.setdefault("detect", name)
    return {role: name for role, name in out.items() if family is None or role in family.heads}
