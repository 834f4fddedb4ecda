"""What a model family is: data, never a class of its own.

A family says which settings it is (`read` and `write` translate config.json) and what it calls each tensor (`rows`).
A `Row` is one tensor of ours and the tensor or tensors of theirs that make it, by a `Form` that works both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from unmask.batch import Head
from unmask.config import ModelConfig
from unmask.errors import UserError

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Form:
    """How tensors of theirs become one of ours, and back. `load` takes them in the row's order; `save` undoes it.

    Both must only move numbers about (or shift them, as Gemma's norms), so that a round trip is exact.
    """

    load: Callable[[Sequence[Tensor], ModelConfig], Tensor]
    save: Callable[[Tensor, ModelConfig], Sequence[Tensor]]


def _one(f: Callable[[Tensor, ModelConfig], Tensor], back: Callable[[Tensor, ModelConfig], Tensor]) -> Form:
    return Form(lambda parts, c: f(parts[0], c), lambda tensor, c: [back(tensor, c)])


SAME = _one(lambda t, c: t, lambda t, c: t)
"""One tensor as it is."""
TRANSPOSED = _one(lambda t, c: t.t(), lambda t, c: t.t())
"""Stored as (inputs, outputs): GPT-1 and GPT-2."""
PLUS_ONE = _one(lambda t, c: t + 1, lambda t, c: t - 1)
"""Gemma's norms multiply by 1 + weight."""
ROW = _one(lambda t, c: t[0], lambda t, c: t[None])
"""A vector stored as one row: BART's final_logits_bias."""


def _interleave(tensor: Tensor, c: ModelConfig, back: bool) -> Tensor:
    n, rest = c.num_heads, tensor.shape[1:]
    shape = (3, n, c.size_per_head) if back else (n, 3, c.size_per_head)
    return tensor.reshape(*shape, *rest).transpose(0, 1).reshape(-1, *rest)


INTERLEAVED = _one(lambda t, c: _interleave(t, c, False), lambda t, c: _interleave(t, c, True))
"""Query, key and value of a head lie together, head by head: GPT-NeoX, BLOOM."""


def _parts(*sizes: Callable[[ModelConfig], int], across: bool = False) -> Form:
    """Theirs one below the other; `across`: each is stored transposed."""

    def load(parts: Sequence[Tensor], c: ModelConfig) -> Tensor:
        return torch.cat([p.t() if across else p for p in parts])

    def save(tensor: Tensor, c: ModelConfig) -> list[Tensor]:
        return [p.t() if across else p for p in torch.split(tensor, [size(c) for size in sizes])]

    return Form(load, save)


def _query(c: ModelConfig) -> int:
    return c.num_heads * c.size_per_head


def _key(c: ModelConfig) -> int:
    return c.kv_heads * c.size_per_head


def _mlp(c: ModelConfig) -> int:
    return c.mlp_size


QKV = _parts(_query, _key, _key)
KV = _parts(_key, _key)
GATE_UP = _parts(_mlp, _mlp)
EACH = Form(lambda parts, c: torch.stack(list(parts)), lambda tensor, c: list(tensor.unbind(0)))
"""One tensor an expert, stacked."""

When = Callable[[ModelConfig, int], bool]


def always(config: ModelConfig, layer: int) -> bool:
    return True


def gated(config: ModelConfig, layer: int) -> bool:
    return config.gated


def plain(config: ModelConfig, layer: int) -> bool:
    return not config.gated


def sparse(config: ModelConfig, layer: int) -> bool:
    return config.sparse(layer)


def dense(config: ModelConfig, layer: int) -> bool:
    return not config.sparse(layer)


@dataclass(frozen=True)
class Row:
    """One tensor of ours and the tensor or tensors of theirs that make it.

    {i} runs over the layers of the stack (the distinct ones); {e} in `theirs` over a layer's experts, inside the
    row; {lm}, {pair} and {detect} are our names of the vocabulary, the pair and the detection head.
    """

    ours: str
    theirs: tuple[str, ...]
    form: Form = SAME
    also: tuple[str, ...] = ()  # further names under which files hold the same tensor
    when: When = always  # asked with the configuration and the layer's number
    zero: Callable[[ModelConfig], tuple[int, ...]] | None = None
    """Either side may lack it: then it is zeros of this shape (of ours), which add nothing."""


@dataclass(frozen=True)
class Family:
    """How one family is written in the common library."""

    name: str  # its model_type
    read: Callable[[Settings], dict[str, Any]]  # config.json → fields of ModelConfig
    write: Callable[[ModelConfig], dict[str, Any]]  # the reverse, without token ids
    rows: tuple[Row, ...]
    prefix: str  # in front of the body's names; absent in files of the bare body
    classes: Mapping[str, str]  # heads that are there, joined by + ("" = none) → stock class
    heads: Mapping[str, Head] = field(default_factory=lambda: {"lm": Head("lm")})  # role → head of that role
    unused: tuple[str, ...] = ()  # ends of names that hold no weights (buffers of older versions)
    visibility: str = "causal"
    two_stacks: bool = False
    offset_from_pad: bool = False  # learned positions start after the pad id (RoBERTa)
    ids: tuple[str, ...] = ()  # roles beside pad, bos and eos whose ids the config class has, with defaults of its own
    head_names: tuple[str, ...] = ("lm_head.", "cls.")  # beginnings of head tensors, which have no prefix
    renames: Mapping[str, str] = field(default_factory=dict)  # parts of names in some files → those of `rows`
    decide: Callable[[ModelConfig, Callable[[str], Tensor | None]], dict[str, Any]] = lambda c, tensor: {}
    """Settings that only the tensors tell, such as a bias that is not zero."""
    told: tuple[str, ...] = ()  # the settings `decide` knows: config.json does not hold them


def token_types(theirs: str) -> Row:
    """The table of token types; none here is one row of zeros there."""
    return Row("stack.token_types.weight", (f"{theirs}.weight",), zero=lambda c: (max(c.token_types, 1), c.table_size))


def pair(
    ours: str, theirs: str | tuple[str, ...], bias: bool = True, form: Form = SAME, **more: Any
) -> tuple[Row, ...]:
    """Rows of a weight and, where there is one, its bias (which is never transposed)."""
    names = (theirs,) if isinstance(theirs, str) else theirs
    row = Row(f"{ours}.weight", tuple(f"{n}.weight" for n in names), form, **more)
    if not bias:
        return (row,)
    flat = SAME if form is TRANSPOSED else form
    return row, replace(row, ours=f"{ours}.bias", theirs=tuple(f"{n}.bias" for n in names), form=flat)


def several(prefix: str, names: str) -> tuple[str, ...]:
    """`several("a.", "q k") == ("a.q", "a.k")`."""
    return tuple(prefix + name for name in names.split())


# ---------------------------------------------------------------- words of config.json

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
    "relu2": "relu2",
    "tanh": "tanh",
}
_READ_ACTIVATIONS = {v: k for k, v in ACTIVATIONS.items()} | {
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "swish": "silu",
    "gelu_python": "gelu",
}
GATES = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_pytorch_tanh", "reglu": "relu"}
_READ_GATES = {v: k for k, v in GATES.items()} | {"gelu_new": "geglu_tanh", "swish": "swiglu", "gelu_python": "geglu"}


def activation(name: str) -> str:
    """Our name of a plain activation."""
    if name not in _READ_ACTIVATIONS:
        raise UserError(f"config.json: activation '{name}' is not one of {', '.join(sorted(_READ_ACTIVATIONS))}")
    return _READ_ACTIVATIONS[name]


def gate(name: str) -> str:
    """Our name of a gated layer, from the activation of its gate."""
    if name not in _READ_GATES:
        raise UserError(f"config.json: gate activation '{name}' is not one of {', '.join(sorted(_READ_GATES))}")
    return _READ_GATES[name]


def need(settings: Settings, family: str, **wanted: Any) -> None:
    """These settings must hold their plain value, or be absent where that is the library's default."""
    for name, value in wanted.items():
        if settings.get(name, value) != value:
            raise UserError(f"config.json: {name}={settings[name]} is not supported for {family}, only {value}")


def rope(settings: Settings, family: str) -> dict[str, Any]:
    """The rope settings of a config.json, in either spelling; only plain ones are known."""
    rope: dict[str, Any] = {**(settings.get("rope_scaling") or {}), **(settings.get("rope_parameters") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UserError(f"config.json: rope type '{kind}' is not supported for {family}, only 'default'")
    return rope


def reach(settings: Settings, family: str, name: str, default: int) -> int:
    """The largest position difference that a window of a config.json sees: it counts the token itself."""
    width = settings.get(name, default)
    if width < 2:
        raise UserError(f"config.json: {name}={width} is not supported for {family}, only 2 and more")
    return int(width) - 1


def pattern_of(layers: Sequence[str], letters: Mapping[str, str]) -> str:
    """The shortest attention_pattern of a list of layers' kinds; `letters`: kind → G or L.

    >>> pattern_of(["global", "local", "global", "local", "global"], {"global": "G", "local": "L"})
    'GL'
    """
    if unknown := [kind for kind in layers if kind not in letters]:
        raise UserError(f"config.json: a layer's attention '{unknown[0]}' is not one of {', '.join(letters)}")
    whole = "".join(letters[kind] for kind in layers)
    return next(whole[:n] for n in range(1, len(whole) + 1) if (whole[:n] * len(whole))[: len(whole)] == whole)
