"""A Transformer written out from the papers' equations: one text, one query and one head at a time, in fp64.

Nothing here comes from src. It reads a model's tensors by name and its settings as plain values; who sees whom is a
table of booleans that the test writes down. Angles and sinusoids are taken in fp32, as all published code does, which
is why they can be equal to 1e-10.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

Rule = Callable[[int, int], bool]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "relu": lambda x: x.clamp(min=0),
    "relu2": lambda x: x.clamp(min=0) ** 2,
    "geglu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "swiglu": lambda x: x / (1 + torch.exp(-x)),
}


@dataclass(frozen=True)
class Text:
    """One text; `sees[i][j]`: token i sees token j."""

    tokens: list[int]
    sees: list[list[bool]]
    positions: list[int]
    positions2: list[int] | None = None
    types: list[int] | None = None

    @staticmethod
    def of(tokens: Any, rule: Rule, **more: Any) -> Text:
        n = len(tokens)
        sees = [[rule(i, j) for j in range(n)] for i in range(n)]
        return replace(Text([int(t) for t in tokens], sees, list(range(n))), **more)


def full(i: int, j: int) -> bool:
    return True


def causal(i: int, j: int) -> bool:
    return j <= i


def backward(i: int, j: int) -> bool:
    return j >= i


def after_prefix(prefix: int) -> Rule:
    return lambda i, j: j < prefix or j <= i


class Explicit:
    """The forward pass of a model's tensors; they stay connected, so gradients can be compared too."""

    def __init__(self, model: Any) -> None:
        self.w = dict(model.state_dict(keep_vars=True))
        self.c = SimpleNamespace(**model.config.model_dump())
        c = self.c
        self.size = c.head_size or c.hidden_size // c.num_heads
        self.groups = c.num_kv_heads or c.num_heads
        self.seen: dict[str, Tensor] = {}  # attention's output before its last projection, by layer

    # ------------------------------------------------------------ parts

    def linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self.w[f"{name}.weight"].T
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def norm(self, x: Tensor, name: str, kind: str | None = None) -> Tensor:
        if (kind or self.c.norm) == "layer":
            centred = x - x.mean(-1, keepdim=True)
            y = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + self.c.norm_eps)
        else:
            y = x / torch.sqrt((x**2).mean(-1, keepdim=True) + self.c.norm_eps)
        if self.c.norm_weight:
            y = y * self.w[f"{name}.weight"]
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def dense(self, x: Tensor, name: str) -> Tensor:
        return self.linear(self.hidden(self.linear(x, f"{name}.up")), f"{name}.down")

    def hidden(self, up: Tensor) -> Tensor:
        act, half = ACTIVATIONS[self.c.activation], up.shape[-1] // 2
        return act(up[..., :half]) * up[..., half:] if self.c.activation in ("geglu", "swiglu") else act(up)

    def experts(self, x: Tensor, name: str) -> Tensor:
        """Σ of the chosen experts' answers by normalised probabilities, and the shared expert's on top."""
        e, out = self.c.experts, []
        for t in x:
            p = torch.softmax(self.w[f"{name}.router.weight"] @ t, 0)
            best = sorted(range(e["count"]), key=lambda i: -float(p[i].detach()))[: e["per_token"]]
            total = sum(p[i] for i in best)
            y = self.dense(t[None], f"{name}.shared")[0] if e["shared"] else torch.zeros_like(t)
            for i in best:
                hidden = self.hidden(self.w[f"{name}.up"][i] @ t + self.w[f"{name}.up_bias"][i])
                y = y + p[i] / total * (self.w[f"{name}.down"][i] @ hidden + self.w[f"{name}.down_bias"][i])
            out.append(y)
        return torch.stack(out)

    # ------------------------------------------------------------ attention

    def turned(self, x: Tensor, positions: list[int], base: float) -> Tensor:
        """x (T, heads, D): of the first R dimensions, i and i + R / 2 turn by position · base^(-2 i / R)."""
        size = int(self.size * self.c.rotary_share)
        rate = 1.0 / base ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
        angle = torch.tensor(positions)[:, None] * rate
        cos, sin = angle.cos().double()[:, None], angle.sin().double()[:, None]
        a, b, rest = x[..., : size // 2], x[..., size // 2 : size], x[..., size:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def softmax(self, q: Tensor, k: Tensor, v: Tensor, sees: list[list[bool]], bias: Any = None) -> Tensor:
        """q (T, H, D), k and v (S, K, D) → (T, H · D); 0 for a query that sees nothing."""
        c, out = self.c, []
        scale = self.size**-0.5 if c.attention_scale is None else c.attention_scale
        scale = (3 * self.size) ** -0.5 if c.positions == "deberta" else scale
        for i in range(len(q)):
            for h in range(c.num_heads):
                group, keys = h // (c.num_heads // self.groups), [j for j in range(len(k)) if sees[i][j]]
                if not keys:
                    out.append(torch.zeros_like(v[0, 0]))
                    continue
                scores = k[keys, group] @ q[i, h]
                if c.positions == "deberta" and bias is not None:
                    scores = scores + torch.stack([bias(i, j, h) for j in keys])
                scores = scores * scale
                if c.attention_softcap:
                    scores = c.attention_softcap * torch.tanh(scores / c.attention_softcap)
                if c.positions != "deberta" and bias is not None:
                    scores = scores + torch.tensor([bias(i, j, h) for j in keys], dtype=scores.dtype)
                p = torch.exp(scores - scores.max())
                out.append((p / p.sum()) @ v[keys, group])
        return torch.stack(out).view(len(q), -1)

    def heads(self, x: Tensor, name: str, rows: slice) -> Tensor:
        y = x @ self.w[f"{name}.weight"][rows].T
        y = y + self.w[f"{name}.bias"][rows] if f"{name}.bias" in self.w else y
        return y.view(len(x), -1, self.size)

    def attention(self, x: Tensor, name: str, text: Text, depth: int, side: str, keys: Tensor | None = None) -> Tensor:
        c, keys = self.c, x if keys is None else keys
        local = c.attention_pattern[depth % len(c.attention_pattern)] == "L"
        queries, kv = c.num_heads * self.size, self.groups * self.size
        q = self.heads(x, f"{name}.qkv", slice(0, queries))
        k = self.heads(keys, f"{name}.qkv", slice(queries, queries + kv))
        v = self.heads(keys, f"{name}.qkv", slice(queries + kv, None))
        if f"{name}.values.gate.weight" in self.w:
            gate = 2 / (1 + torch.exp(-x[:, :32] @ self.w[f"{name}.values.gate.weight"].T))
            v = v + gate[..., None] * self.w[f"{name}.values.table.weight"][text.tokens].view(v.shape)
        if c.qk_norm and not c.qk_norm_after:
            q, k = self.norm(q, f"{name}.q_norm", "rms"), self.norm(k, f"{name}.k_norm", "rms")
        if c.positions == "rotary":
            base = c.rotary_local_base if local and c.rotary_local_base else c.rotary_base
            q, k = self.turned(q, text.positions, base), self.turned(k, text.positions, base)
        if c.qk_norm and c.qk_norm_after:
            q, k = self.norm(q, f"{name}.q_norm", "rms"), self.norm(k, f"{name}.k_norm", "rms")
        sees = text.sees
        if local:
            window, at = c.source_window if side == "source" and c.source_window else c.window, text.positions
            sees = [[s and abs(at[i] - at[j]) <= window for j, s in enumerate(row)] for i, row in enumerate(sees)]
        out = self.softmax(q, k, v, sees, self.score(name, text, q, k, side))
        self.seen[f"{side}.{depth}"] = out
        return self.linear(out, f"{name}.out")

    def score(self, name: str, text: Text, q: Tensor, k: Tensor, side: str) -> Any:
        """A function of (query, key, head), or None."""
        c, at = self.c, text.positions
        if c.positions == "alibi":
            return lambda i, j, h: -slopes(c.num_heads)[h] * abs(at[i] - at[j])
        if c.positions != "deberta":
            return None
        span, table = c.relative_max_distance, self.w[f"{side}.relative.weight"]
        queries = c.num_heads * self.size
        of_query = self.heads(table, f"{name}.qkv", slice(0, queries))
        of_key = self.heads(table, f"{name}.qkv", slice(queries, 2 * queries))

        def disentangled(i: int, j: int, h: int) -> Tensor:
            row = min(max(at[i] - at[j] + span, 0), 2 * span - 1)
            return q[i, h] @ of_key[row, h] + k[j, h] @ of_query[row, h]

        return disentangled

    def cross(self, x: Tensor, name: str, memory: Tensor) -> Tensor:
        kv = self.groups * self.size
        q = self.linear(x, f"{name}.q").view(len(x), -1, self.size)
        k, v = (self.heads(memory, f"{name}.kv", part) for part in (slice(0, kv), slice(kv, None)))
        if self.c.qk_norm:
            q, k = self.norm(q, f"{name}.q_norm", "rms"), self.norm(k, f"{name}.k_norm", "rms")
        return self.linear(self.softmax(q, k, v, [[True] * len(memory)] * len(x)), f"{name}.out")

    # ------------------------------------------------------------ layers and stacks

    def layer(
        self, x: Tensor, weights: int, depth: int, text: Text, side: str, memory: Tensor | None, keys: Any = None
    ) -> Tensor:
        c, name = self.c, f"{side}.layers.{weights}"
        sparse = c.experts is not None and c.experts["pattern"][weights % len(c.experts["pattern"])] == "E"
        parts: list[tuple[str, Callable[[Tensor], Tensor]]] = [
            ("attention", lambda y: self.attention(y, f"{name}.attention", text, depth, side, keys)),
            ("mlp", lambda y: self.experts(y, f"{name}.mlp") if sparse else self.dense(y, f"{name}.mlp")),
        ]
        if memory is not None:
            parts.insert(1, ("cross", lambda y: self.cross(y, f"{name}.cross", memory)))
        if keys is not None and c.norm_position != "post":
            keys = self.norm(keys, f"{name}.attention_norm")
        start = x
        for part, f in parts:
            skip = part == "attention" and c.skip_first_norm and weights == 0
            norm = (lambda y: y) if skip else (lambda y, part=part: self.norm(y, f"{name}.{part}_norm"))
            if c.norm_position == "post":
                x = norm(x + f(x))
                continue
            change = f(norm(start if c.parallel_block else x))
            x = x + (self.norm(change, f"{name}.{part}_after_norm") if c.norm_position == "both" else change)
        return x

    def placed(self, text: Text, side: str) -> Tensor:
        return self.w[f"{side}.positions.weight"][[p + self.c.position_offset for p in text.positions]]

    def embed(self, text: Text, side: str) -> Tensor:
        c, w = self.c, self.w
        x = w["embedding.weight"][text.tokens] * c.embedding_scale
        if c.positions == "learned":
            x = x + self.placed(text, side)
        if c.positions == "sinusoidal":
            x = x + sinusoids(text.positions, x.shape[1], torch.float32)
        if c.positions2:
            x = x + w[f"{side}.positions2.weight"][text.positions2 or [0] * len(x)]
        if c.token_types:
            x = x + w[f"{side}.token_types.weight"][text.types or [0] * len(x)]
        x = self.norm(x, f"{side}.embedding_norm") if c.embedding_norm else x
        return self.linear(x, f"{side}.widen") if c.embedding_size not in (None, c.hidden_size) else x

    def __call__(self, text: Text, source: Text | None = None) -> Tensor:
        """The stream's final states (T, d)."""
        memory = None if source is None else self.stack(source, "source", None)
        return self.stack(text, "stack", memory)

    def stack(self, text: Text, side: str, memory: Tensor | None) -> Tensor:
        c, depth = self.c, self.c.num_source_layers if side == "source" else self.c.num_layers
        run = depth // (c.distinct_layers or depth)  # neighbouring depths that share weights
        x = start = self.embed(text, side)
        for i in range(depth):
            if c.mask_decoder and side == "stack" and i == depth - 1:
                queries = x + self.placed(text, side)
                for _ in range(2):
                    queries = self.layer(queries, i // run, i, text, side, memory, keys=x)
                x = queries
                continue
            if c.residual_scalars:
                x = self.w[f"{side}.stream_scale"][i] * x + self.w[f"{side}.embedding_scale"][i] * start
            x = self.layer(x, i // run, i, text, side, memory)
        return self.norm(x, f"{side}.final_norm") if c.final_norm and c.norm_position != "post" else x

    def logits(self, x: Tensor) -> Tensor:
        c, name = self.c, "heads.lm"
        if c.head_transform:
            x = self.norm(ACTIVATIONS[c.activation](self.linear(x, f"{name}.dense.dense")), f"{name}.dense.norm")
        y = x @ self.w["embedding.weight" if c.tied_head else f"{name}.weight"].T
        y = y + self.w[f"{name}.bias"] if c.head_bias else y
        return c.logit_softcap * torch.tanh(y / c.logit_softcap) if c.logit_softcap else y


def slopes(heads: int) -> list[float]:
    """ALiBi's (Press et al. 2022, section 3 and their code's rule for other numbers of heads than 2^n)."""
    if math.log2(heads).is_integer():
        first = 2.0 ** (-8 / heads)
        return [first ** (i + 1) for i in range(heads)]
    below = 2 ** math.floor(math.log2(heads))
    return slopes(below) + slopes(2 * below)[0::2][: heads - below]


def sinusoids(positions: list[int], size: int, dtype: torch.dtype) -> Tensor:
    """PE(p, 2i) = sin(p / 10000^(2i / d)), PE(p, 2i + 1) = cos of the same (Vaswani et al. 2017, section 3.5), with
    all sines in front of all cosines."""
    rate = torch.exp(torch.arange(size // 2, dtype=dtype) * (-math.log(10000.0) / (size // 2)))
    angle = torch.tensor(positions, dtype=dtype)[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], 1).double()
