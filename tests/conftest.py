from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def data_folder() -> Path:
    return Path(os.environ.get("UNMASK_DATA", ROOT.parent / "shared" / "data"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if data_folder().is_dir():
        return
    skip = pytest.mark.skip(reason="needs $UNMASK_DATA")
    for item in items:
        if "shared" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora and conformance cases; tests that use it are marked `shared`."""
    if not data_folder().is_dir():
        pytest.skip("needs $UNMASK_DATA")
    return data_folder()
