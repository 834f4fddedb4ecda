"""Shared by the tests of training."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    """Flushing to the disk guards against power loss, which no test can show; on a busy disk it costs seconds."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
