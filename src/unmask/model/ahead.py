"""Modules that say later tokens than the next one (multi-token prediction): a Transformer layer each.

    parallel      module k reads the last layer's own input: n layers side by side on one trunk (Gloeckle et al. 2024,
                  "Better & faster large language models via multi-token prediction", section 2)
    sequential    module k reads the states of module k − 1 and the token that that one had to say (DeepSeek-V3
                  technical report, section 2.2, equations 21 to 23)

Legend: B rows, T tokens, d hidden size. Position i of a stream that predicts its next token reads token i, so module k,
counted from 1, says token i + k + 1 and has been told token i + k.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.batch import Stream
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.layers import Layer
from unmask.model.parts import Context, Linear, Norm


class Ahead(nn.Module):
    """Module k = 0, 1, … of a stack.

    Sequential: h = layer(M [norm(h of the module before); norm(embedding of the token told)]), then a norm of its own,
    as in DeepSeek-V3's published weights (there the two halves of M stand the other way round). The first module reads
    the model's final states. Parallel: the stack's final norm serves all.
    """

    def __init__(self, config: ModelConfig, k: int) -> None:
        super().__init__()
        d = config.hidden_size
        self.shift = k + 1
        self.depth = config.ahead_depth(k)
        chained = config.ahead == "sequential"
        self.state_norm = Norm(config) if chained else None
        self.token_norm = Norm(config) if chained else None
        self.join = Linear(2 * d, d, False) if chained else None
        self.layer = Layer(config, self.depth, False)
        self.final_norm = Norm(config) if chained and config.final_norm and config.norm_position != "post" else None

    def forward(self, x: Tensor, embedded: Tensor, stream: Stream, context: Context, norm: Norm | None) -> Tensor:
        """The module's states (B, T, d) from x (B, T, d) and token vectors (B, T, d); `norm` is the stack's last."""
        if self.join is not None and self.state_norm is not None and self.token_norm is not None:
            if stream.pattern != "causal":
                raise UserError(
                    f"a sequential module is told later tokens, which a {stream.pattern} mask would hand on to "
                    "earlier positions: train it on causal text, or set model.ahead=parallel"
                )
            told = self.token_norm(later(embedded, stream.block, self.shift))
            x = self.join(torch.cat([self.state_norm(x), told], -1))
            norm = self.final_norm
        x = self.layer(x, context, self.depth)
        return x if norm is None else norm(x)


def later(embedded: Tensor, block: Tensor, shift: int) -> Tensor:
    """(B, T, d): at each position the vector `shift` places on, 0 where that lies outside its block."""
    out = torch.zeros_like(embedded)
    same = block[:, shift:] == block[:, :-shift]
    out[:, :-shift] = embedded[:, shift:] * same[..., None]
    return out
