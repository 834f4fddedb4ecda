from __future__ import annotations

import itertools
import json
import os
import pickle
import pydoc_data.topics
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from unmask.cli.tokenizer import tokenizer_train
from unmask.config import CorpusConfig, TokenizerConfig
from unmask.errors import UserError
from unmask.text.corpus import read
from unmask.tokens.special import ROLES, Vocabulary, sentinel
from unmask.tokens.tokenizer import PIECE, Tokenizer, cut

TYPES = ("bbpe", "bpe", "wordpiece", "unigram", "char", "byte", "word")
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


def test_text_is_segmented_as_if_control_pieces_were_not_there() -> None:
    """SentencePiece's way with control pieces: they are not found in text, whatever their score or merges."""
    unigram = tokenizers.Tokenizer(
        models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("a", -1.0), ("<", -2.0), ("/s", -2.0), (">", -2.0)], 0)
    )
    bpe = tokenizers.Tokenizer(
        models.BPE({"<unk>": 0, "</s>": 1, "a": 2, "<": 3, "/s": 4, ">": 5, "/": 6, "s": 7, "</s": 8},
                   [("/", "s"), ("<", "/s"), ("</s", ">")], unk_token="<unk>")
    )  # fmt: skip
    for library, expected in ((unigram, [2, 3, 4, 5, 2]), (bpe, [2, 8, 5, 2])):
        tokenizer = Tokenizer(library.to_str())
        assert tokenizer.encode("a</s>a").tolist() == expected
        assert tokenizer.encode_aligned(["a</s>a"])[0].ids.tolist() == expected
        assert tokenizer.vocabulary.eos == 1 and tokenizer.decode([2, 1, 2], skip_special=False).count("</s>") == 1


def test_d16_control_tokens_are_known_by_id_not_by_spelling() -> None:
    """A start token of an unusual spelling is one; a text that spells [CLS] holds none."""
    library = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "«go»": 2, "[CLS]": 3, "[SEP]": 4}, "[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens([AddedToken("«go»", special=True)])
    tokenizer = Tokenizer(library.to_str())
    assert tokenizer.vocabulary.is_special.tolist() == [True, False, True, True, True]
    assert tokenizer.encode("a [CLS] «go» a").tolist() == [1, 0, 0, 1]
    assert tokenizer.encode_with_specials("a «go» a").tolist() == [1, 2, 1]


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


def thousand() -> list[str]:
    """1,000 random strings of tabs, double blanks, newlines, emoji, NBSP, combining marks, right-to-left text."""
    draw = random.Random(0)
    parts = [*BLANKS, *MARKS, "▁", "<0x41>", "the cat ", "a", "B, ", "12"]
    return ["".join(draw.choice(parts) for _ in range(draw.randrange(1, 12))) for _ in range(1000)]


def test_d21_what_is_lost_is_said_and_nothing_else() -> None:
    """Each type with a vocabulary that holds every character: what comes back differs as `losses` says."""
    texts = thousand()
    back = {
        "bbpe": lambda t: t,
        "byte": lambda t: t,
        "char": lambda t: t,
        "bpe": lambda t: t.replace("▁", " "),
        "unigram": lambda t: t.replace("▁", " "),
    }
    unknown = "what the vocabulary lacks becomes [UNK]"
    said = {"bbpe": [], "byte": [], "char": [unknown]}
    for type_, expected in back.items():
        tokenizer = Tokenizer.train(TokenizerConfig(type=type_, vocab_size=700, sentinels=2), texts * 2)
        assert tokenizer.losses == said.get(type_, ["▁ becomes a blank", unknown])
        for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
            assert tokenizer.decode(ids) == expected(text), (type_, text)


def test_d21_lossy_settings_are_named() -> None:
    """Words apart come back apart, and nothing but white space is lost."""
    clean = [re.sub(r"[\x00\u202e\u200d]", "", t) for t in thousand()]
    for type_, more in (("bpe", {"end_of_word": "</w>"}), ("word", {"split": "whitespace"})):
        config = TokenizerConfig(type=type_, vocab_size=9000, min_frequency=1, sentinels=0, **more)
        tokenizer = Tokenizer.train(config, clean)
        assert tokenizer.losses[0] == "white space is not kept, only that words were apart"
        for text, ids in zip(clean, tokenizer.encode_batch(clean), strict=True):
            assert tokenizer.decode(ids).split() == text.split()
    folded = Tokenizer.train(
        TokenizerConfig(type="bpe", vocab_size=700, normalization="nfc", lowercase=True), clean * 2
    )
    assert folded.losses[:2] == ["Unicode is normalised to NFC", "case is folded"]
    assert folded.decode(folded.encode("CABE\u0301 É")) == "cabé é"


def test_d21_bytes_of_unknown_characters_never_show_as_text() -> None:
    vocab = {"<unk>": 0, **{f"<0x{b:02X}>": b + 1 for b in range(256)}, "▁": 257, "a": 258, "▁a": 259}
    model = models.BPE(vocab, [("▁", "a")], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = Tokenizer(library.to_str())
    ids = tokenizer.encode(" a😀\n")
    assert tokenizer.losses == ["▁ becomes a blank"] and tokenizer.decode(ids) == " a😀\n"
    assert [tokenizer.token(i) for i in ids] == [" a", "\\xf0", "\\x9f", "\\x98", "\\x80", "\\n"]
    assert not any("<0x" in tokenizer.token(i) for i in range(tokenizer.vocabulary.size))


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


@pytest.mark.parametrize(
    ("type_", "more"),
    (
        ("bbpe", {"digits": "split", "normalization": "nfkc"}),
        ("bpe", {"end_of_word": "</w>", "lowercase": True}),
        ("bpe", {"split": "gpt2", "digits": "split"}),
        ("unigram", {"split": "whitespace", "normalization": "nfc"}),
        ("wordpiece", {"split": "whitespace"}),
    ),
)
def test_transformers_reads_the_same_ids_under_all_settings(type_: str, more: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = made(type_, **more)
    tokenizer.save_hf(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [TEXTS[0], TEXTS[2], "the naïve cat 😀\n ran  x 1999 CAFE\u0301 ½"]:
        ids = theirs(text)["input_ids"]
        assert ids == tokenizer.encode(text).tolist()
        assert theirs.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)


def test_dropout_of_a_foreign_file_is_left_out(trained: dict[str, Tokenizer]) -> None:
    """A file may ask the library to skip merges by chance; ids are a function of the text all the same."""
    spec = json.loads(json.dumps(trained["bbpe"].spec))
    spec["model"]["dropout"] = 0.5
    foreign = Tokenizer(json.dumps(spec))
    expected = trained["bbpe"].encode(TEXTS[0]).tolist()
    assert all(foreign.encode(TEXTS[0]).tolist() == expected for _ in range(3))
    assert all(foreign.encode_with_specials(TEXTS[0]).tolist() == expected for _ in range(3))


def test_save_hf_can_wrap_texts(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = trained["wordpiece"]
    tokenizer.save_hf(tmp_path, ("cls", "sep"))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    cls, sep = tokenizer.vocabulary.cls, tokenizer.vocabulary.sep
    a, b = tokenizer.encode("the cat").tolist(), tokenizer.encode("ran").tolist()
    assert theirs("the cat", "ran")["input_ids"] == [cls, *a, sep, *b, sep]
    assert Tokenizer.load(tmp_path).encode("the cat").tolist() == a


def test_pieces_for_training_are_cut_before_white_space() -> None:
    text = ("The cat \u00a0 sat,\n\n  and ran.\t" * (3 * PIECE // 20))[: 2 * PIECE + 17]
    pieces = list(cut(text))
    assert "".join(pieces) == text and len(pieces) > 1
    assert all(p[0] in " \n" and not a[-1].isspace() for a, p in itertools.pairwise(pieces))


def test_a_copy_in_another_process_is_the_same(trained: dict[str, Tokenizer]) -> None:
    for tokenizer in trained.values():
        tokenizer.encode(TEXTS[0])
        again = pickle.loads(pickle.dumps(tokenizer))
        assert again.fingerprint == tokenizer.fingerprint
        assert again.encode(TEXTS[0]).tolist() == tokenizer.encode(TEXTS[0]).tolist()


WORKERS = """
import multiprocessing, os, sys, threading
from unmask.tokens.tokenizer import Tokenizer

def work(path_or_tokenizer, texts, out):
    tokenizer = path_or_tokenizer if isinstance(path_or_tokenizer, Tokenizer) else Tokenizer.load(path_or_tokenizer)
    out.put([ids.tolist() for ids in tokenizer.encode_batch(texts)])

if __name__ == "__main__":
    tokenizer = Tokenizer.load(sys.argv[1])
    texts = [f"the cat {i} sat on the mat, naïve" for i in range(200)]
    expected = [ids.tolist() for ids in tokenizer.encode_batch(texts)]
    tokenizer.encode_aligned(texts[:2])
    busy = Tokenizer.load(sys.argv[1])._encoder if tokenizer._table is None else None
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        out = context.Queue()
        if busy is not None:
            tokenizer._encoder.lock.acquire()  # as if another thread were at it when this process is forked
        workers = [context.Process(target=work, args=(tokenizer, texts, out)) for _ in range(4)]
        for w in workers: w.start()
        if busy is not None:
            tokenizer._encoder.lock.release()
        found = [out.get(timeout=50) for _ in workers]
        for w in workers: w.join(10)
        assert all(f == expected for f in found), method
        assert all(w.exitcode == 0 for w in workers)
    print("done")
"""


def test_d25_workers_after_the_parent_encoded(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    """Four workers under fork and spawn, also while a thread holds the memo: no hang, no warning."""
    trained["bbpe"].save(tmp_path / "t.json")
    (tmp_path / "program.py").write_text(WORKERS)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "t.json")]
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert (run.stdout, run.stderr) == ("done\n", "")


@pytest.mark.parametrize("type_", ("bbpe", "wordpiece", "word"))
def test_training_is_the_same_in_every_process(type_: str) -> None:
    """Every process has its own hash seed; the library's own WordPiece trainer fails this."""
    program = (
        "import pydoc_data.topics as p, sys\n"
        "from unmask.config import TokenizerConfig\n"
        "from unmask.tokens.tokenizer import Tokenizer\n"
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


def test_settings_reach_training(tmp_path: Path) -> None:
    """Every setting, and what training says."""
    file = tmp_path / "a.txt"
    file.write_text("low lower newest 12 12 12 ☃ 北京 北京\n" * 50, encoding="utf-8")
    said: list[str] = []
    settings = {"type": "bpe", "end_of_word": "</w>", "digits": "split", "lowercase": True, "ties": "first"}
    config = TokenizerConfig(**{**settings, "vocab_size": 200})
    tokenizer = Tokenizer.train(config, (d.text for d in read(CorpusConfig(path=str(file)))), said.append)
    assert [tokenizer.token(i) for i in tokenizer.encode("12 LOW")] == ["1</w>", "2</w>", "low</w>"]
    with pytest.raises(UserError, match=r"--type bppe.*'bbpe', 'bpe'"):
        tokenizer_train([str(file)], str(tmp_path / "out.json"), kind="bppe")


# ---------------------------------------------------------------- segmentations by chance


def test_sampled_segmentations_are_keyed_and_spell_the_text(trained: dict[str, Tokenizer]) -> None:
    tokenizer, text = trained["unigram"], "the cats ran after the rats, and the hat sat."
    drawn = [tokenizer.sample(text, key, 0.1).tolist() for key in range(50)]
    assert drawn == [tokenizer.sample(text, key, 0.1).tolist() for key in range(50)]
    assert len(set(map(tuple, drawn))) > 25
    assert {tokenizer.decode(ids) for ids in drawn} == {text}
    best = tokenizer.encode_batch([*TEXTS[:3], "a☃☃b ☃", ""])
    for own, text in zip(best, [*TEXTS[:3], "a☃☃b ☃", ""], strict=True):
        assert tokenizer.sample(text, 3, 1e6).tolist() == own.tolist()
    with pytest.raises(UserError, match="only a unigram tokenizer"):
        trained["bbpe"].sample("a", 0)
