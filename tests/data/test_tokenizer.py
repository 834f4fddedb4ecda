from __future__ import annotations

import json
import pydoc_data.topics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, trainers

from unmask.config import TokenizerConfig
from unmask.data.special import ROLES, Vocabulary, sentinel
from unmask.data.tokenizer import PIECE, Tokenizer, cut
from unmask.errors import UserError

TYPES = ("bbpe", "wordpiece", "char", "byte", "word")
TEXTS = [
    "The cat sat on the mat. The cat's hat, naïve café!\n",
    "A [MASK] and a <extra_id_0> in the corpus, [CLS] too.\n[PAD] [UNK] [SEP]",
    "the rat ran; the cat ran after the rat\tand the hat.",
] * 20
HARD = [
    "a [MASK] b <extra_id_0>",
    "[PAD][UNK][CLS][SEP][MASK][BOS][EOS]",
    "<extra_id_0><extra_id_1> x <extra_id_4>",
    " [MASK]\n[MASK]",
]
CONFIG = TokenizerConfig(vocab_size=420, sentinels=5)


def made(type_: str, **more: object) -> Tokenizer:
    return Tokenizer.train(TokenizerConfig(**{**CONFIG.model_dump(), "type": type_, **more}), TEXTS)


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    return {type_: made(type_) for type_ in TYPES}


# ---------------------------------------------------------------- the table of special tokens


def test_controls_come_first_and_sentinels_last(trained: dict[str, Tokenizer]) -> None:
    for type_, tokenizer in trained.items():
        vocabulary = tokenizer.vocabulary
        roles = [r for r in ROLES if r != "unk" or type_ not in ("byte", "bbpe")]
        assert [vocabulary.need(r) for r in roles] == list(range(len(roles)))
        assert [tokenizer.token(i) for i in range(len(roles))] == [ROLES[r] for r in roles]
        assert vocabulary.sentinels.tolist() == list(range(vocabulary.size - 5, vocabulary.size))
        assert [tokenizer.token(i) for i in vocabulary.sentinels] == [sentinel(k) for k in range(5)]
        assert vocabulary.specials.tolist() == [*range(len(roles)), *vocabulary.sentinels.tolist()]


def test_sizes(trained: dict[str, Tokenizer]) -> None:
    """256 bytes + 6 control tokens (bytes know no unknown) + 5 sentinels; elsewhere 420 is a ceiling."""
    assert trained["byte"].vocabulary.size == 267
    assert trained["byte"].vocabulary.unk is None
    assert all(t.vocabulary.size <= 420 for t in trained.values())
    assert Tokenizer.train(TokenizerConfig(type="byte"), []).vocabulary.size == 362


def test_d18_ordinary_ids_leave_out_controls_and_holes() -> None:
    vocabulary = Vocabulary.of({"[PAD]": 0, "a": 1, "b": 3, "<extra_id_0>": 1002})
    assert vocabulary.size == 1003
    assert vocabulary.ordinary.tolist() == [1, 3]
    assert not vocabulary.is_special[[1, 3]].any() and vocabulary.is_special.sum() == 1001


def test_need_names_the_role() -> None:
    with pytest.raises(UserError, match=r"no mask token.*it has: cls, sep, bos, eos"):
        Vocabulary.of({"<|endoftext|>": 0, "a": 1}).need("mask")


def test_roles_of_other_vocabularies() -> None:
    bert = Vocabulary.of({"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103})
    assert (bert.pad, bert.unk, bert.cls, bert.sep, bert.mask, bert.bos, bert.eos) == (0, 100, 101, 102, 103, 101, 102)
    roberta = Vocabulary.of({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4})
    assert (roberta.cls, roberta.sep, roberta.bos, roberta.eos, roberta.mask) == (0, 2, 0, 2, 4)
    gpt2 = Vocabulary.of({"a": 0, "<|endoftext|>": 1})
    assert (gpt2.bos, gpt2.eos, gpt2.cls, gpt2.pad) == (1, 1, 1, None)
    t5 = Vocabulary.of({"<pad>": 0, "</s>": 1, "<unk>": 2, "<extra_id_1>": 3, "<extra_id_0>": 4})
    assert t5.sentinels.tolist() == [4, 3] and t5.eos == 1 and t5.bos is None


# ---------------------------------------------------------------- control strings in text


@pytest.mark.parametrize("type_", TYPES)
def test_control_strings_in_text_stay_text(trained: dict[str, Tokenizer], type_: str) -> None:
    tokenizer = trained[type_]
    allowed = [] if tokenizer.vocabulary.unk is None else [tokenizer.vocabulary.unk]
    for ids in tokenizer.encode_batch(HARD):
        assert not np.isin(ids, np.setdiff1d(tokenizer.vocabulary.specials, allowed)).any()
    marked = tokenizer.encode_with_specials("a [MASK] b <extra_id_0>")
    controls = [tokenizer.vocabulary.need("mask"), tokenizer.vocabulary.sentinels[0]]
    assert [i for i in marked if i in tokenizer.vocabulary.specials and i not in allowed] == controls


def test_a_blank_before_a_mask_belongs_to_the_hidden_piece(trained: dict[str, Tokenizer]) -> None:
    ids = trained["bbpe"].encode_with_specials("the [MASK] sat")
    assert [trained["bbpe"].token(i) for i in ids] == ["the", "[MASK]", " sat"]


def test_foreign_pieces_that_spell_a_control_are_cut_apart(tmp_path: Path) -> None:
    """A sentencepiece model holds </s> as a piece like any other; text must not reach it."""
    model = models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("a", -1.0), ("▁", -1.0), ("<", -2.0), ("/s>", -2.0)], 0)
    foreign = tokenizers.Tokenizer(model)
    foreign.pre_tokenizer = pre_tokenizers.Metaspace()
    foreign.save(str(tmp_path / "t.json"))
    tokenizer = Tokenizer.load(tmp_path / "t.json")
    assert tokenizer.type == "unigram" and tokenizer.vocabulary.eos == 1
    ids = tokenizer.encode("a </s> a")
    assert 1 not in ids and ids.size


# ---------------------------------------------------------------- round trips


BLANKS = ["\t", "  ", "\n", "\r\n", "\u00a0", "\u202e", "\x00"]
MARKS = ["😀", "👨\u200d👩\u200d👧", "e\u0301", "שלום", "مرحبا", "你好"]
ANY = st.lists(st.one_of(st.text(max_size=12), st.sampled_from([*BLANKS, *MARKS, *HARD])), max_size=12).map("".join)


@given(text=ANY)
@settings(max_examples=50, deadline=None)
def test_d21_lossless_types_round_trip(text: str) -> None:
    for type_ in ("bbpe", "byte"):
        tokenizer = _TRAINED.setdefault(type_, made(type_))
        assert tokenizer.lossless and tokenizer.normalisation == "none"
        assert tokenizer.decode(tokenizer.encode(text)) == text
    own = Tokenizer.train(TokenizerConfig(type="char", sentinels=2, vocab_size=900), [text + "a"])
    assert own.decode(own.encode(text)) == text


_TRAINED: dict[str, Tokenizer] = {}


def test_d21_lossy_types_say_what_is_lost(trained: dict[str, Tokenizer]) -> None:
    assert not trained["wordpiece"].lossless and not trained["word"].lossless and not trained["char"].lossless
    assert "white space is not kept" in trained["word"].normalisation
    assert trained["char"].normalisation == "what the vocabulary lacks becomes [UNK]"
    folded = made("wordpiece", lowercase=True)
    assert "case is folded" in folded.normalisation and "accents are stripped" in folded.normalisation
    assert folded.decode(folded.encode("The Café")) == "the cafe"


def test_unseen_characters_are_unknown(trained: dict[str, Tokenizer]) -> None:
    unk = trained["char"].vocabulary.unk
    assert trained["char"].encode("a☃a").tolist()[1] == unk


def test_d06_word_level_always_has_an_unknown(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(type="word", sentinels=0), ["a b"])
    assert tokenizer.encode("c").tolist() == [tokenizer.vocabulary.unk]
    tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="<nope>")).save(str(tmp_path / "t.json"))
    with pytest.raises(UserError, match="lacks its unknown token '<nope>'"):
        Tokenizer.load(tmp_path / "t.json")


def test_lone_surrogates_do_not_crash(trained: dict[str, Tokenizer]) -> None:
    for tokenizer in trained.values():
        tokenizer.encode("a\ud800b")
    assert trained["byte"].decode(trained["byte"].encode("\ud83d\ude00")) == "😀"


# ---------------------------------------------------------------- the same ids whatever the path


@pytest.mark.parametrize("type_", TYPES)
def test_save_load_batch_and_library_agree(trained: dict[str, Tokenizer], type_: str, tmp_path: Path) -> None:
    tokenizer = trained[type_]
    tokenizer.save(tmp_path / "t.json")
    again = Tokenizer.load(tmp_path / "t.json")
    assert (again.type, again.fingerprint) == (type_, tokenizer.fingerprint)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "t.json"))
    library.encode_special_tokens = True
    texts = [*TEXTS[:3], *HARD, "", "naïve 😀 \r\n\tx", "unseen: ☃ \u00a0"]
    for text, ids in zip(texts, again.encode_batch(texts), strict=True):
        assert ids.dtype == np.int32
        assert ids.tolist() == tokenizer.encode(text).tolist() == library.encode(text).ids


@pytest.mark.parametrize("type_", TYPES)
def test_transformers_reads_the_same_ids(trained: dict[str, Tokenizer], type_: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = trained[type_]
    tokenizer.save_hf(tmp_path / "hf", max_length=128)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    direct = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "hf" / "tokenizer.json"))
    for text in [TEXTS[0], TEXTS[2], "the naïve cat 😀\n ran  x"]:
        assert theirs(text)["input_ids"] == direct(text)["input_ids"] == tokenizer.encode(text).tolist()
    for role in ROLES:
        assert getattr(theirs, f"{role}_token_id") == getattr(tokenizer.vocabulary, role)
    assert len(theirs) == tokenizer.vocabulary.size and theirs.model_max_length == 128
    prompt = "the [MASK] sat <extra_id_1>"
    assert theirs(prompt)["input_ids"] == tokenizer.encode_with_specials(prompt).tolist()
    assert Tokenizer.load(tmp_path / "hf").fingerprint == tokenizer.fingerprint


def test_save_hf_can_wrap_texts(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = trained["wordpiece"]
    tokenizer.save_hf(tmp_path, ("cls", "sep"))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    cls, sep = tokenizer.vocabulary.cls, tokenizer.vocabulary.sep
    a, b = tokenizer.encode("the cat").tolist(), tokenizer.encode("ran").tolist()
    assert theirs("the cat", "ran")["input_ids"] == [cls, *a, sep, *b, sep]
    assert Tokenizer.load(tmp_path).encode("the cat").tolist() == a


def test_long_texts_are_cut_without_changing_an_id(trained: dict[str, Tokenizer]) -> None:
    text = ("The cat \u00a0 sat,\n\n  and ran.\t" * (3 * PIECE // 20))[: 2 * PIECE + 17]
    assert "".join(cut(text)) == text and len(list(cut(text))) > 1
    for type_ in ("bbpe", "wordpiece", "word"):
        whole = trained[type_]._plain.encode(text, add_special_tokens=False).ids
        assert trained[type_].encode(text).tolist() == whole
    spaceless = "x" * (2 * PIECE)
    assert trained["bbpe"].decode(trained["bbpe"].encode(spaceless)) == spaceless


@pytest.mark.parametrize("type_", ("bbpe", "wordpiece", "word"))
def test_training_is_the_same_in_every_process(type_: str) -> None:
    """Every process has its own hash seed; the library's own WordPiece trainer fails this."""
    program = (
        "import pydoc_data.topics as p, sys\n"
        "from unmask.config import TokenizerConfig\n"
        "from unmask.data.tokenizer import Tokenizer\n"
        "texts = list(p.topics.values())[:25]\n"
        f"c = TokenizerConfig(type={type_!r}, vocab_size=1200)\n"
        "print(Tokenizer.train(c, texts).fingerprint)\n"
    )
    command = [sys.executable, "-c", program]
    runs = {subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(runs) == 1 and runs != {""}


def test_wordpiece_learns_as_well_as_the_library() -> None:
    """Ties between merges fall differently (in the library from run to run); what matters is the length of text."""
    texts = [t for t in pydoc_data.topics.topics.values() if t.isascii()][:25]
    library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=False)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=1001, min_frequency=2, show_progress=False, special_tokens=["[UNK]"])
    library.train_from_iterator(texts, trainer)
    ours = Tokenizer.train(TokenizerConfig(type="wordpiece", vocab_size=1000 + 7, sentinels=0), texts)
    lengths = [sum(len(t.encode(text)) for text in texts) for t in (ours, library)]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.005)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("type_", TYPES)
def test_too_small_a_vocabulary_is_refused(type_: str) -> None:
    with pytest.raises(UserError, match="too small"):
        made(type_, vocab_size=12)


def test_no_text_is_refused() -> None:
    with pytest.raises(UserError, match="empty"):
        Tokenizer.train(TokenizerConfig(type="word"), [])


def test_lowercase_fits_words_only() -> None:
    with pytest.raises(UserError, match="lowercase"):
        made("bbpe", lowercase=True)


def test_no_tokenizer_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the tokenizer"):
        Tokenizer.load(tmp_path / "absent.json")
    (tmp_path / "t.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path / "t.json")


# ---------------------------------------------------------------- real vocabularies


@pytest.mark.shared
def test_golden_ids_of_published_vocabularies(shared_data: Path, tmp_path: Path) -> None:
    from tokenizers.implementations import BertWordPieceTokenizer, ByteLevelBPETokenizer

    folder = shared_data / "tokenizers"
    golden = json.loads((folder / "golden_ids.json").read_text(encoding="utf-8"))
    files = {
        "gpt2": ByteLevelBPETokenizer(str(folder / "gpt2/encoder.json"), str(folder / "gpt2/vocab.bpe")),
        "bert_base_uncased": BertWordPieceTokenizer(str(folder / "bert-base-uncased/vocab.txt"), lowercase=True),
    }
    for name, library in files.items():
        library.save(str(tmp_path / name))
        tokenizer = Tokenizer.load(tmp_path / name)
        assert tokenizer.type == {"gpt2": "bbpe"}.get(name, "wordpiece")
        assert tokenizer.lossless == (name == "gpt2")
        for probe, ids in zip(golden["probes"], golden[name], strict=True):
            if not any(t in probe for t in ("[MASK]", "<|endoftext|>", "[CLS]")):
                assert tokenizer.encode(probe).tolist() == ids, probe
