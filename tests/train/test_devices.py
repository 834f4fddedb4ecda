"""Where and how precisely: by rule, with its reason."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
import torch
import toy
from torch import nn

from unmask.errors import UserError
from unmask.train import devices

CPU = torch.device("cpu")


def of_width(width: int) -> nn.ModuleDict:
    return nn.ModuleDict({"model": nn.Sequential(nn.Embedding(500, width), nn.Linear(width, 4 * width))})


def test_precision_is_a_rule_with_a_reason(monkeypatch) -> None:
    assert devices.choose_precision("bf16", CPU, of_width(8)) == ("bf16", "as asked")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True, "amx_bf16": False})
    assert devices.choose_precision("auto", CPU, of_width(64)) == (
        "bf16",
        "auto: the CPU has avx512_bf16 and the width 64 is at least 64",
    )
    assert devices.choose_precision("auto", CPU, of_width(32))[0] == "fp32"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    assert devices.choose_precision("auto", CPU, of_width(512))[0] == "fp32"


def test_precision_of_the_first_start_is_replayed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(devices, "BF16_WIDTH", 8)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    t = toy.trainer(tmp_path, steps=2, precision="auto")
    t.run()
    assert t.precision == "bf16"
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    again = toy.trainer(tmp_path, steps=2, precision="auto")
    again.run(resume=True)
    assert again.precision == "bf16"


def test_t21_device() -> None:
    assert devices.choose_device("cpu") == CPU
    assert devices.choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(UserError, match="device=warp is not available"):
        devices.choose_device("warp")


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is one here")
def test_a_device_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(UserError, match="device=mps is not available here: use device=auto, or cpu"):
        devices.choose_device("mps")


def test_an_operation_that_a_device_lacks_is_one_sentence() -> None:
    """As torch says it on MPS; nothing of MPS was run."""
    said = "The operator 'aten::foo' is not currently implemented for the MPS device. If you want it to be added …"
    what = r"device=mps lacks an operation of this run \(The operator 'aten::foo' is not .* for the MPS device\): "
    advice = "set PYTORCH_ENABLE_MPS_FALLBACK=1, .*use device=cpu"
    with pytest.raises(UserError, match=what + advice), devices.missing_explained(torch.device("mps")):
        raise NotImplementedError(said)
    with pytest.raises(NotImplementedError), devices.missing_explained(CPU):
        raise NotImplementedError(said)


def test_batches_become_tensors_without_warnings() -> None:
    (batch,) = toy.batches()(0, 0.0)
    shown = batch.map(lambda a: np.broadcast_to(a, np.shape(a)))  # read-only, as constructors make some vectors
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moved = devices.to_device(shown, CPU)
    assert torch.equal(moved.stream.tokens, torch.as_tensor(np.array(batch.stream.tokens)))
    assert float(moved.targets[toy.KEY].norm) == float(batch.targets[toy.KEY].norm)


def test_allocator_is_tuned_on_linux() -> None:
    assert devices.tune_process() == sys.platform.startswith("linux")
