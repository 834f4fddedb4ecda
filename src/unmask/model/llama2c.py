"""Models of llama2.c (Karpathy 2023): one file of seven integers and fp32 tensors, version 0 of its format.

    header    dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size (negative: the head is not tied), seq_len
    tensors   as `_layout` lists them; each kind holds all layers, matrices are (outputs, inputs)

Rotary positions turn adjacent pairs (2i, 2i + 1) there and halves (i, i + D / 2) here, as in transformers: the rows
of each head's query and key projection are put in the other order, which changes no score.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from unmask.batch import Head
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.transformer import Transformer
from unmask.model.translate import first_fault

HEADER = struct.Struct("<7i")
VERSIONED = 0x616B3432
"""First word ("ak42") of the later versions of the format."""


def load_llama2c(file: str | Path) -> Transformer:
    """The model of a llama2.c file, with one head over the vocabulary."""
    path = Path(file)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    config = _config(path, content)
    tensors = _tensors(path, content, config)
    model = Transformer(config, (Head("lm"),))
    model.load_state_dict(_ours(tensors, config))
    return model


def find_llama2c(source: Path) -> tuple[Path, list[Path]]:
    """The model's file at a path, or the one in that directory; and the tokenizers' files (tok*.bin) beside it."""
    if not source.exists():
        raise UserError(f"{source} does not exist: give a model's file of llama2.c, or the directory it lies in")
    folder = source if source.is_dir() else source.parent
    files = sorted(folder.glob("*.bin"))
    tokenizers = [f for f in files if f.name.startswith("tok") and f != source]
    if not source.is_dir():
        return source, tokenizers
    models = [f for f in files if f not in tokenizers]
    if len(models) != 1:
        raise UserError(
            f"{source} holds {len(models)} models of llama2.c (.bin, tok*.bin aside): give the model's file"
        )
    return models[0], tokenizers


def _config(path: Path, content: bytes) -> ModelConfig:
    if len(content) < HEADER.size:
        raise UserError(
            f"{path} is no llama2.c model: it has {len(content)} bytes, fewer than the header's {HEADER.size}"
        )
    dim, hidden, layers, heads, kv_heads, vocab, length = HEADER.unpack_from(content)
    if dim == VERSIONED:
        raise UserError(
            f"{path} is version {hidden} of llama2.c's format, and only version 0 is read: write it again "
            "with --version 0 of its export.py"
        )
    numbers = (dim, hidden, layers, heads, kv_heads, abs(vocab), length)
    if min(numbers) < 1 or max(numbers) > 1 << 24:
        raise UserError(
            f"{path} is no llama2.c model: its header says {(dim, hidden, layers, heads, kv_heads, vocab, length)}"
        )
    try:
        return ModelConfig(
            family="llama",
            visibility="causal",
            vocab_size=abs(vocab),
            hidden_size=dim,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            intermediate_size=hidden,
            activation="swiglu",
            max_position=length,
            positions="rotary",
            norm="rms",
            norm_eps=1e-5,
            attention_bias=False,
            mlp_bias=False,
            tied_head=vocab > 0,
        )
    except ValidationError as error:
        raise UserError(f"{path} describes no model: {first_fault(error)}") from None


def _layout(c: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Their tensors in the file's order (run.c, memory_map_weights), with shapes."""
    layers, d, m = c.num_layers, c.hidden_size, c.mlp_size
    queries, keys = c.num_heads * c.size_per_head, c.kv_heads * c.size_per_head
    out: dict[str, tuple[int, ...]] = {
        "token_embedding": (c.vocab_size, d),
        "rms_att": (layers, d),
        "wq": (layers, queries, d),
        "wk": (layers, keys, d),
        "wv": (layers, keys, d),
        "wo": (layers, d, queries),
        "rms_ffn": (layers, d),
        "w1": (layers, m, d),  # gate
        "w2": (layers, d, m),  # down
        "w3": (layers, m, d),  # up
        "rms_final": (d,),
        "freq_cis": (2, c.max_position, c.size_per_head // 2),  # cosines and sines, which are computed here
    }
    return out if c.tied_head else {**out, "wcls": (c.vocab_size, d)}


def _tensors(path: Path, content: bytes, config: ModelConfig) -> dict[str, Tensor]:
    layout = _layout(config)
    size = HEADER.size + 4 * sum(math.prod(shape) for shape in layout.values())
    if len(content) != size:
        raise UserError(
            f"{path} has {len(content):,} bytes and its header asks for {size:,}: the file is incomplete, "
            "or it is no llama2.c model of version 0"
        )
    out, offset = {}, HEADER.size
    for name, shape in layout.items():
        count = math.prod(shape)
        out[name] = torch.from_numpy(np.frombuffer(content, "<f4", count, offset).astype(np.float32).reshape(shape))
        offset += 4 * count
    return out


def _ours(t: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our state dict of their tensors."""
    head = t["token_embedding"] if config.tied_head else t["wcls"]
    out = {
        "embedding.weight": t["token_embedding"],
        "stack.final_norm.weight": t["rms_final"],
        "heads.lm.weight": head,
    }
    for i in range(config.num_layers):
        name = f"stack.layers.{i}."
        queries, keys = (halves(t[k][i], config.size_per_head) for k in ("wq", "wk"))
        out |= {
            name + "attention_norm.weight": t["rms_att"][i],
            name + "attention.qkv.weight": torch.cat([queries, keys, t["wv"][i]]),
            name + "attention.out.weight": t["wo"][i],
            name + "mlp_norm.weight": t["rms_ffn"][i],
            name + "mlp.up.weight": torch.cat([t["w1"][i], t["w3"][i]]),
            name + "mlp.down.weight": t["w2"][i],
        }
    return out


def halves(weight: Tensor, head_size: int) -> Tensor:
    """Rows (heads · D, d) from adjacent pairs to halves, within each head.

    >>> halves(torch.arange(8)[:, None], 4)[:, 0].tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return weight.view(-1, head_size // 2, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
