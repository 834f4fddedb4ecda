"""Exports that no stock class of the common library computes: our own code, gathered into one file beside the weights.

    export_own(model, directory)  config.json, generation_config.json, model.safetensors, modeling_unmask.py
    read_own(directory)           → settings, heads, state dict; runs no code of the directory
    stock_family(config)          the family to write instead, where one computes this model

`modeling_unmask.py` holds no second implementation: it is the source text of this package's modules, from `wrapper.py`
back along its imports, with what nothing reaches left out (`source`). It depends on torch and transformers alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

import unmask
from unmask.batch import Head
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.families import Family
from unmask.model.files import fetch, stored, write_json
from unmask.model.gather import gathered
from unmask.model.heads import labels
from unmask.model.transformer import Transformer
from unmask.model.translate import family_of, first_fault, read_json, refuse_quantised
from unmask.tensors import aliases_note, named_once, save_tensors

MODEL_TYPE = "unmask"
"""model_type of such a config.json, and the key that holds our settings there."""
FILE = "modeling_unmask.py"


class Own(NamedTuple):
    """What a directory of `export_own` holds; `state` has every name of the model, shared tensors under each."""

    config: ModelConfig
    heads: tuple[Head, ...]
    state: dict[str, Tensor]


def stock_family(config: ModelConfig) -> Family | None:
    """The family whose stock class computes this model; None = it is exported with code of its own.

    A prefix mask has no stock class. A family that is named must fit; family=unmask takes the first that does.
    """
    if config.visibility == "prefix":
        return None
    try:
        return family_of(config)
    except UserError:
        if config.family != "unmask":
            raise
        return None


@cache
def source() -> str:
    """The text of modeling_unmask.py: the same for every model of one version of unmask."""
    return gathered("unmask.model.wrapper", _HEADER.format(version=unmask.__version__))


# ---------------------------------------------------------------- out


def export_own(
    model: Transformer, directory: str | Path, ids: Mapping[str, int | None] | None = None
) -> tuple[str, ...]:
    """Write the model with the code that runs it; nothing is left out, so no names come back.

    `ids` maps roles (pad, bos, eos, decoder_start) to token ids.
    """
    path, given = Path(directory), ids or {}
    path.mkdir(parents=True, exist_ok=True)
    tokens = {f"{role}_token_id": given.get(role) for role in ("pad", "bos", "eos")}
    if model.config.num_source_layers:
        tokens["decoder_start_token_id"] = given.get("decoder_start", given.get("pad"))
    write_json(path / "config.json", {**_settings(model), **tokens})
    known = {k: v for k, v in tokens.items() if v is not None}
    write_json(path / "generation_config.json", {**known, "use_cache": False})
    (path / FILE).write_text(source(), encoding="utf-8")
    tensors, aliases = named_once(model)
    shared = {f"model.{alias}": f"model.{name}" for alias, name in aliases.items()}
    named = {f"model.{name}": tensor for name, tensor in tensors.items()}
    save_tensors(named, path / "model.safetensors", format="pt", aliases=aliases_note(shared))
    return ()


def _settings(model: Transformer) -> dict[str, Any]:
    """config.json: what the library asks of every model, and our settings whole."""
    config = model.config
    classes = _classes(model)
    name = str(next(model.parameters()).dtype).removeprefix("torch.")
    return {
        "architectures": [next(reversed(classes.values()))],
        "auto_map": {
            "AutoConfig": f"{FILE.removesuffix('.py')}.UnmaskConfig",
            **{auto: f"{FILE.removesuffix('.py')}.{own}" for auto, own in classes.items()},
        },
        "model_type": MODEL_TYPE,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "max_position_embeddings": config.max_position,
        "is_encoder_decoder": config.num_source_layers > 0,
        "tie_word_embeddings": bool(named_once(model)[1]),
        "dtype": name,
        **labels(model.declared.values()),
        MODEL_TYPE: {
            "version": unmask.__version__,
            "model": config.model_dump(mode="json"),
            "heads": [asdict(head) for head in model.declared.values()],
        },
    }


def _classes(model: Transformer) -> dict[str, str]:
    """The library's Auto classes that serve this model → ours; the last one says most of it."""
    heads = list(model.declared.values())
    readable = [h for h in heads if h.arity == 1 and h.pool == "at" and h.stack == "stream"]
    out = {"AutoModel": "UnmaskModel"}
    two = model.config.num_source_layers > 0
    if not two and any(h.over != "vocabulary" for h in readable):
        out["AutoModelForPreTraining"] = "UnmaskForPreTraining"
    if any(h.over == "vocabulary" for h in readable):
        kind = "Seq2SeqLM" if two else "MaskedLM" if model.config.visibility == "bidirectional" else "CausalLM"
        out[f"AutoModelFor{kind}"] = f"UnmaskFor{kind}"
    return out


def auto_classes(directory: str | Path) -> tuple[str, ...]:
    """The library's Auto classes that load an export, the one that says most last."""
    settings = read_json(Path(directory) / "config.json")
    if settings["model_type"] == MODEL_TYPE:
        return tuple(sorted(settings["auto_map"].keys() - {"AutoConfig"}, key=_ORDER.index))
    from transformers.models.auto import modeling_auto as auto

    stock = settings["architectures"][0]
    for kind in ("Seq2SeqLM", "CausalLM", "MaskedLM"):
        names = getattr(auto, f"MODEL_FOR_{_WORDS[kind]}_MAPPING_NAMES").values()
        if stock in names or (kind == "MaskedLM" and stock.replace("ForPreTraining", "ForMaskedLM") in names):
            return ("AutoModel", f"AutoModelFor{kind}")
    return ("AutoModel", "AutoModelForPreTraining") if stock.endswith("ForPreTraining") else ("AutoModel",)


_ORDER = (
    "AutoModel",
    "AutoModelForPreTraining",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
)
_WORDS = {"Seq2SeqLM": "SEQ_TO_SEQ_CAUSAL_LM", "CausalLM": "CAUSAL_LM", "MaskedLM": "MASKED_LM"}
"""How the library's tables of classes spell them."""


# ---------------------------------------------------------------- in


def is_own(directory: str | Path) -> bool:
    """Whether `export_own` wrote this directory."""
    file = Path(directory) / "config.json"
    return file.is_file() and read_json(file).get("model_type") == MODEL_TYPE


def own_outline(directory: str | Path) -> tuple[ModelConfig, tuple[Head, ...]]:
    """Settings and heads of an export with code of its own, without its weights."""
    path = Path(directory)
    settings = read_json(path / "config.json")
    refuse_quantised(settings)
    noted = settings.get(MODEL_TYPE)
    if not isinstance(noted, Mapping):
        raise UserError(f"{path / 'config.json'} holds no settings of unmask: export the model again")
    try:
        config = ModelConfig.model_validate(noted.get("model"))
        heads = TypeAdapter(tuple[Head, ...]).validate_python(noted.get("heads"))
    except ValidationError as error:
        made = f" (written by unmask {noted.get('version')}, this is {unmask.__version__})"
        raise UserError(f"{path / 'config.json'} describes no model{made}: {first_fault(error)}") from None
    return config, heads


def read_own(directory: str | Path) -> Own:
    """Settings, heads and weights (as stored) of an export with code of its own; the code there is not run."""
    path = Path(directory)
    config, heads = own_outline(path)
    held = {name.removeprefix("model."): fetch(*place) for name, place in stored(path).items()}
    return Own(config, heads, _complete(path, config, heads, held))


def import_own(
    directory: str | Path, heads: Iterable[Head] | None = None
) -> tuple[Own, tuple[str, ...], tuple[str, ...]]:
    """`read_own` in fp32 and, with `heads`, for these: beside it the names that the files lack, and those left over."""
    path = Path(directory)
    own = read_own(path)
    state = {k: v.float() if v.dtype in (torch.float16, torch.bfloat16) else v for k, v in own.state.items()}
    declared = own.heads if heads is None else tuple(heads)
    with torch.device("meta"):
        blank = Transformer(own.config, declared)
    wanted = {k: tuple(v.shape) for k, v in blank.state_dict().items()}
    for name in wanted.keys() & state.keys():
        if tuple(state[name].shape) != wanted[name]:
            raise UserError(f"{path}: tensor {name} has shape {tuple(state[name].shape)}, not {wanted[name]} as asked")
    found = {k: v for k, v in state.items() if k in wanted}
    new, unused = (tuple(k for k in a if k not in b) for a, b in ((wanted, state), (state, wanted)))
    return Own(own.config, declared, found), new, unused


def _complete(path: Path, config: ModelConfig, heads: tuple[Head, ...], held: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor under every name; files that do not fit their settings are refused."""
    with torch.device("meta"):
        blank = Transformer(config, heads)
    wanted, copies = {k: tuple(v.shape) for k, v in blank.state_dict().items()}, named_once(blank)[1]
    if lacking := [k for k in wanted if k not in held and k not in copies]:
        raise UserError(f"{path} lacks {lacking[0]}, which its config.json asks for: the files are incomplete")
    if unknown := [k for k in held if k not in wanted]:
        raise UserError(f"{path} holds {unknown[0]}, of which its config.json knows nothing: they do not fit")
    state = {**held, **{name: held[first] for name, first in copies.items()}}
    for name, shape in wanted.items():
        if tuple(state[name].shape) != shape:
            raise UserError(
                f"{path}: tensor {name} has shape {tuple(state[name].shape)}, but config.json asks for {shape}"
            )
    return state


_HEADER = '''"""A language model of unmask {version}, as one file for the `transformers` library.

It needs torch >= 2.11 and transformers >= 5, and nothing else.

Generated: the source text of unmask's own modules, laid end to end, with what this file does not need left out; their
names head each part below. Licence of this code: Apache-2.0 (the weights' is in README.md). The settings are those in
config.json, and the weights are in model.safetensors, under the names of the parameters here.

To check it: the same version of unmask prints this very file,

    python -c "from unmask.model.bundle import source; print(source(), end='')" | diff - modeling_unmask.py

and `unmask.load(DIRECTORY)` reads the same weights without running it.
"""
'''
