"""Multi-head latent attention: keys and values of all heads come from one narrow state (DeepSeek-V2, Liu et al. 2024,
section 2.1, equations 9 to 19; unchanged in V3).

    c   = norm(W_kv_a x)               (R) the latent; beside it one rotary key that all heads share
    k_h = [W_k_h c ; turned key]       v_h = W_v_h c
    q_h = [W_q_h x ; turned W_r_h x]   through a bottleneck of its own where `query_rank` is set

Legend: B rows, T tokens, S tokens that keys come from, d hidden size, H heads, N head dimensions without position,
P with (rotary), D = N + P, W value size, R key rank.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.config import ModelConfig
from unmask.model.attention import attend
from unmask.model.fused import rotate
from unmask.model.parts import Context, Linear, Norm


class LatentAttention(nn.Module):
    """Self-attention with the interface of `layers.Attention`.

    q or q_a, q_b     rows of a head: N without position, then P with
    kv_a              (R + P, d) the latent, then the shared key
    kv_b              (H · (N + W), R) rows of a head: its key, then its value

    Rotary dimensions are paired i with i + P / 2, as everywhere here; DeepSeek's files pair 2 i with 2 i + 1.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.latent is not None
        self.config = config
        latent, d = config.latent, config.hidden_size
        self.heads, self.plain, self.turned = config.num_heads, config.size_per_head, latent.rotary_size
        self.rank, self.value = latent.key_rank, latent.value_size
        queries = self.heads * (self.plain + self.turned)
        rank = latent.query_rank
        self.q = None if rank else Linear(d, queries, False)
        self.q_a = Linear(d, rank, config.attention_bias) if rank else None
        self.q_a_norm = Norm(config, rank, "rms") if rank else None
        self.q_b = Linear(rank, queries, False) if rank else None
        parts = (self.rank, self.turned)
        self.kv_a = Linear(d, sum(parts), config.attention_bias, parts)
        self.kv_a_norm = Norm(config, self.rank, "rms")
        self.kv_b = Linear(self.rank, self.heads * (self.plain + self.value), False)
        self.out = Linear(self.heads * self.value, d, config.out_bias)

    def forward(self, x: Tensor, context: Context, depth: int, keys: Tensor | None = None) -> Tensor:
        """x (B, T, d) → (B, T, d); `keys` (B, S, d) are the states of keys and values, where not x's own."""
        local = self.config.local(depth)
        given = context.of_keys
        angles = context.local_angles if local else context.angles
        turned = given.local_angles if local else given.angles
        assert angles is not None and turned is not None
        q = self._queries(x, angles)
        k, v = self._keys(x if keys is None else keys, turned)
        if context.cache is not None:
            k, v = context.cache.store(depth, k, v)
        view = context.local if local and context.local is not None else context.view
        out = attend(q, k, v, view, self.config.scale, context.drop_attention, cap=self.config.attention_softcap)
        return self.out(out.transpose(1, 2).flatten(2))

    def _queries(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """(B, H, T, D)."""
        if self.q_a is not None and self.q_a_norm is not None and self.q_b is not None:
            joint = self.q_b(self.q_a_norm(self.q_a(x)))
        else:
            assert self.q is not None
            joint = self.q(x)
        plain, turned = joint.unflatten(-1, (self.heads, -1)).split((self.plain, self.turned), -1)
        return torch.cat([plain, rotate(turned, angles)], -1).transpose(1, 2)

    def _keys(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys (B, H, S, D) and values (B, H, S, W)."""
        latent, turned = self.kv_a(x).split((self.rank, self.turned), -1)
        both = self.kv_b(self.kv_a_norm(latent)).unflatten(-1, (self.heads, -1))
        plain, v = both.split((self.plain, self.value), -1)
        shared = rotate(turned[:, :, None], angles).expand(-1, -1, self.heads, -1)
        return torch.cat([plain, shared], -1).transpose(1, 2), v.transpose(1, 2)
