"""DeBERTa v2's convolution: a layer of n-grams beside the first Transformer layer.

Legend: B rows, T tokens, d hidden size, n kernel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.parts import Norm, activation


class Convolution(nn.Module):
    """norm(out + act(conv(x))): n embeddings around each token join the first layer's output (v2's `ConvLayer`).

    Neighbours in another block are zero, as beyond the ends of a text: a packed row gives what its texts give alone.
    (The common library lets padding next to a text in; there its embeddings are zero, too.)
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d, n = config.hidden_size, config.convolution
        if n % 2 == 0:
            raise UserError(f"model.convolution={n} has no middle: give an odd kernel, such as 3")
        self.weight = nn.Parameter(torch.empty(d, d, n))  # outputs, inputs, offset from -(n // 2)
        self.bias = nn.Parameter(torch.empty(d))
        self.norm = Norm(config)
        self.activation = activation(config.convolution_activation)

    def forward(self, x: Tensor, out: Tensor, block: Tensor) -> Tensor:
        """(B, T, d) from embeddings x and the first layer's output `out` (B, T, d), and blocks (B, T)."""
        reach = self.weight.shape[2] // 2
        changed = F.linear(x, self.weight[:, :, reach], self.bias)
        for offset in range(-reach, reach + 1):
            if offset and abs(offset) < x.shape[1]:
                there = _shifted(block, offset) == block
                neighbour = _shifted(x, offset) * there[..., None]
                changed = changed + F.linear(neighbour, self.weight[:, :, reach + offset])
        return self.norm(out + self.activation(changed))


def _shifted(x: Tensor, offset: int) -> Tensor:
    """Entry t + offset at t along the second axis; what wraps around is cut off by -1, which is no block."""
    rest = x.new_full((x.shape[0], abs(offset), *x.shape[2:]), -1)
    return torch.cat([rest, x[:, :offset]], 1) if offset < 0 else torch.cat([x[:, offset:], rest], 1)
