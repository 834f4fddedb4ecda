"""DeBERTa v2's convolution against transformers, and packed rows against their texts."""

from __future__ import annotations

import pytest
import torch

from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.convolution import Convolution

from .helpers import close
from .test_relative import D, random, states


def convolution(kernel: int, activation: str = "gelu", size: int = D) -> Convolution:
    config = ModelConfig(
        hidden_size=size, num_heads=2, convolution=kernel, convolution_activation=activation, norm_eps=1e-7
    )
    return random(Convolution(config))


@pytest.mark.parametrize("activation", ["gelu", "tanh"])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("length", [1, 2, 11])
def test_the_convolution_equals_transformers(kernel: int, activation: str, length: int) -> None:
    stock = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    config = stock.DebertaV2Config(hidden_size=D)
    config.conv_kernel_size, config.conv_act = kernel, activation
    theirs = stock.ConvLayer(config).double().eval()
    ours = convolution(kernel, activation)
    theirs.conv.load_state_dict({"weight": ours.weight, "bias": ours.bias})
    theirs.LayerNorm.load_state_dict(ours.norm.state_dict())
    real = torch.ones(2, length)
    real[1, length // 2 + 1 :] = 0
    x, out = states(2, length) * real[..., None], states(2, length, seed=2)  # as there, padding has embeddings of 0
    got, wanted = ours(x, out, real.int())[real != 0], theirs(x, out, real.long())[real != 0]
    assert close(got, wanted, 1e-12)
    direction = torch.randn(got.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (a,) = torch.autograd.grad((got * direction).sum(), ours.weight)
    (b,) = torch.autograd.grad((wanted * direction).sum(), theirs.conv.weight)
    assert close(a, b, 1e-12)


@pytest.mark.parametrize("kernel", [3, 5])
def test_the_convolution_sees_no_other_text(kernel: int) -> None:
    layer = convolution(kernel)
    x, out = states(1, 12), states(1, 12, seed=2)
    block = torch.tensor([[1, 1, 1, 2, 3, 3, 3, 3, 3, 0, 0, 0]])
    packed = layer(x, out, block)
    for begin, end in ((0, 3), (3, 4), (4, 9)):
        alone = layer(x[:, begin:end], out[:, begin:end], torch.ones(1, end - begin))
        assert close(packed[:, begin:end], alone, 1e-12)
    left = layer(x.roll(3, 1), out.roll(3, 1), block.roll(3, 1))  # padding stands on the left
    assert close(left[:, 3:], packed[:, :9], 1e-12)


def test_an_even_kernel_is_refused() -> None:
    with pytest.raises(UserError, match=r"model\.convolution=4 has no middle"):
        convolution(4)
