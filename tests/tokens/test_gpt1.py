"""GPT-1's tokenizer, in and out: the oracle is the common library's OpenAIGPTTokenizer."""

from __future__ import annotations

import json
import pydoc_data.topics
import random
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from unmask.config import TokenizerConfig
from unmask.tokens.formats import gpt1_files
from unmask.tokens.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

TEXT = [
    " ".join(pydoc_data.topics.topics.values())[:60_000],
    "Naïve cafés, l\u2019été: 北京 costs 3,000.50! don't re-enter",
] * 2


def texts(seed: int, n: int) -> list[str]:
    """Random lines of pieces that tell the two apart if anything does: case, accents, marks, blanks, unknowns."""
    draw = random.Random(seed)
    words = [
        *TEXT[0].split()[:400],
        "Ünïcode",
        "CAFE\u0301",
        "don't",
        "(a.b)",
        "北京",
        "☃",
        "x\u00a0y",
        "\t",
        "\n",
        "1999",
    ]
    words += ["\u0000", "\u200b", "ﬁ", "½", "İ", "e\u0301\u0302", "--", "…", "</w>", "a</w>"]
    return ["", " ", *(" ".join(draw.choices(words, k=draw.randrange(1, 12))) for _ in range(n))]


def test_published_files_are_read_as_the_common_library_reads_them(tmp_path: Path) -> None:
    """vocab.json and merges.txt alone, as OpenAI's: <unk> is an entry, nothing else is."""
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    made.train_from_iterator(TEXT, trainer)
    model = json.loads(made.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in model["merges"]))
    theirs, ours = transformers.OpenAIGPTTokenizer.from_pretrained(tmp_path), Tokenizer.load(tmp_path)
    assert ours.type == "bpe" and ours.vocabulary.size == len(theirs) == 600
    assert ours.vocabulary.unk == theirs.unk_token_id
    unknown = 0
    for text in texts(0, 300):
        ids = ours.encode(text).tolist()
        assert ids == theirs(text)["input_ids"], text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        unknown += ids.count(ours.vocabulary.unk)
    assert unknown > 10


def trained(**more: object) -> Tokenizer:
    settings = {
        "type": "bpe",
        "end_of_word": "</w>",
        "split": "bert",
        "lowercase": True,
        "vocab_size": 700,
        "sentinels": 2,
    }
    return Tokenizer.train(TokenizerConfig.model_validate({**settings, **more}), TEXT)


def test_our_own_is_written_as_one(tmp_path: Path) -> None:
    """By its tokenizer.json, and by vocab.json and merges.txt alone."""
    ours = trained()
    ours.save_hf(tmp_path)
    whole = transformers.OpenAIGPTTokenizer.from_pretrained(tmp_path)
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for name in ("tokenizer.json", "special_tokens_map.json"):
        (tmp_path / name).unlink()
    files = transformers.OpenAIGPTTokenizer.from_pretrained(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.vocabulary.size == ours.vocabulary.size == len(files)
    for text in texts(1, 200):
        ids = ours.encode(text).tolist()
        assert ids == whole(text)["input_ids"] == auto(text)["input_ids"] == files(text)["input_ids"], text
        assert ids == again.encode(text).tolist()
        for theirs in (whole, auto, files):
            assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids)


@pytest.mark.parametrize(
    "more", [{"split": "whitespace"}, {"lowercase": False}, {"end_of_word": "@end@"}, {"digits": "split"}]
)
def test_another_kind_is_not(more: dict[str, object], tmp_path: Path) -> None:
    tokenizer = trained(**more)
    assert gpt1_files(tokenizer.spec) == {}
    tokenizer.save_hf(tmp_path)
    assert not (tmp_path / "vocab.json").exists()
