"""Shared by the tests of training."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    """Flushing to the disk guards against power loss, which no test can show; on a busy disk it costs seconds."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Bit equality is promised for one thread count; and toy products are slower on two threads of a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
