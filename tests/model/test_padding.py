"""Left-padded causal batches with rows of padding alone, in every number format and by every attention kernel."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from unmask.batch import Batch
from unmask.evaluation.inputs import stream_of

from .helpers import VOCABULARY, logits_of, model_of

LENGTHS, WIDTH = (9, 4, 0, 1), 9
KERNELS: dict[str, tuple[bool, list[SDPBackend]]] = {
    "explicit": (True, []),
    "math": (False, [SDPBackend.MATH]),
    "flash": (False, [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]),  # what the first cannot do, the second does
}
CLOSE = {torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""How far a padded batch may be from its rows alone; logits are of size 1 to 3."""
MODELS: dict[str, dict[str, Any]] = {
    "learned": {},
    "rotary, grouped": {"positions": "rotary", "num_kv_heads": 2},
    "t5": {"positions": "t5"},
    "alibi": {"positions": "alibi"},
    "prefix": {"visibility": "prefix"},
    "loud": {"attention_scale": 8.0},
    "softcap": {"attention_softcap": 5.0},
}


def kernel(name: str) -> AbstractContextManager[Any]:
    return sdpa_kernel(KERNELS[name][1]) if KERNELS[name][1] else nullcontext()


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("by", KERNELS)
def test_o29_rows_of_padding_are_finite_and_real_rows_are_as_without(by: str, name: str, dtype: torch.dtype) -> None:
    settings = {"visibility": "causal", **MODELS[name]}
    model = model_of(dtype, **settings)
    order: Any = settings["visibility"]
    ids = np.random.default_rng(0).integers(5, VOCABULARY, (len(LENGTHS), WIDTH))
    mask = np.array([[0] * (WIDTH - n) + [1] * n for n in LENGTHS])

    def read(rows: np.ndarray, real: np.ndarray | None) -> Tensor:
        with kernel(by):
            batch = Batch(stream_of(rows, order, real), {}, {})
            return logits_of(model, model(batch, explicit=KERNELS[by][0])["stream"])

    padded = read(ids, mask)
    assert padded.dtype == dtype and bool(padded.isfinite().all())
    (padded.float().log_softmax(-1)[..., 7] * torch.from_numpy(mask)).sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients and all(bool(g.isfinite().all()) for g in gradients)
    with torch.no_grad():
        for row, n in enumerate(LENGTHS):
            if n:
                alone = read(ids[row : row + 1, WIDTH - n :], None)
                torch.testing.assert_close(padded[row, WIDTH - n :].detach(), alone[0], atol=CLOSE[dtype], rtol=0)
