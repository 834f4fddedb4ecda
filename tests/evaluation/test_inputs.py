"""What an export's tokenizer puts around a text is what the model read there in training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

from unmask.batch import Rows
from unmask.evaluation.inputs import around, framed
from unmask.lm import LM
from unmask.model.transformer import Transformer
from unmask.objectives import Permutation

from .test_objective_plans import CASES, config_of, words

# UL2's mode token is for the asker to put: an export's tokenizer frames any text.
ONE_STACK = [n for n, o in CASES.items() if not config_of(o, 300).num_source_layers and not n.startswith("ul2")]
PERMUTATIONS = {"first": Permutation(), "last": Permutation.xlnet()}


@pytest.mark.parametrize("name", ONE_STACK)
def test_the_tokenizers_template_is_the_frame_of_training(name: str, tmp_path: Path) -> None:
    objective, tokenizer = CASES[name], words()
    config = config_of(objective, tokenizer.vocabulary.size)
    tokenizer.save_hf(tmp_path, around(objective, config))
    written = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in ("the cat sat", "a", ""):
        read = framed(Rows.of([tokenizer.encode(text)]), config, tokenizer.vocabulary, objective).stream
        assert written.encode(text).ids == read.tokens.tolist()


@pytest.mark.parametrize("cls", PERMUTATIONS)
def test_a_permutation_is_trained_and_framed_and_exported_alike(cls: str, tmp_path: Path) -> None:
    """The text's own tokens of an example, without the queries, are the frame; in pairs [CLS] stands once, too."""
    objective, tokenizer, v = PERMUTATIONS[cls], words(), words().vocabulary
    rows = Rows.of([tokenizer.encode("the cat sat on the mat")])
    trained = objective(rows, v).stream.tokens
    config = config_of(objective, v.size)
    assert trained[trained >= 0].tolist() == framed(rows, config, v, objective).stream.tokens.tolist()
    tokenizer.save_hf(tmp_path, around(objective, config))
    written = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    a, b = tokenizer.encode("a cat").tolist(), tokenizer.encode("a dog").tolist()
    whole = [v.cls, *a, v.sep, *b, v.sep] if cls == "first" else [*a, v.sep, *b, v.sep, v.cls]
    both = written.encode("a cat", "a dog")
    assert both.ids == whole
    assert both.type_ids == [int(i > whole.index(v.sep)) for i in range(len(whole))]


@pytest.mark.parametrize("cls", PERMUTATIONS)
def test_an_exported_xlnet_reads_as_it_was_trained(cls: str, tmp_path: Path) -> None:
    """Its AutoTokenizer and stock class give the answers of the model in training's frame."""
    transformers = pytest.importorskip("transformers")
    objective, tokenizer = PERMUTATIONS[cls], words()
    more = {"family": "xlnet", "positions": "xlnet", "attention_bias": False, "final_norm": False}
    more |= {"norm_position": "post", "head_bias": True, "max_position": 48, "mlp_bias": True}
    config = config_of(objective, tokenizer.vocabulary.size, **more)
    lm = LM(Transformer(config, objective.heads()).eval(), 48, tokenizer, objective)
    lm.export(tmp_path / "hf")
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    stock = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    assert type(stock).__name__ == "XLNetLMHeadModel"
    given = read("the cat sat", return_tensors="pt")
    ids = framed(Rows.of([tokenizer.encode("the cat sat")]), config, tokenizer.vocabulary, objective).stream.tokens
    assert given["input_ids"][0].tolist() == np.asarray(ids).tolist()
    with torch.no_grad():
        theirs = stock(**given).logits
    torch.testing.assert_close(lm.logits([ids.tolist()]), theirs, atol=1e-5, rtol=1e-4)
