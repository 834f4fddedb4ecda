"""Files of other people: the ids of published vocabularies, SentencePiece and llama2.c as oracles, clear refusals."""

from __future__ import annotations

import io
import itertools
import json
import pydoc_data.topics
import random
import shutil
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from unmask.errors import UserError
from unmask.tokens.formats import from_llama2c
from unmask.tokens.sentencepiece import CONTROL, NORMAL, UNKNOWN, Model, Piece, build, read_model
from unmask.tokens.tokenizer import Tokenizer

GOLDEN = ("bert_base_uncased", "bert_base_cased", "bert_base_chinese", "gpt2", "t5")
CONTROLS = 27
"""The probe of control strings."""


def golden(shared_data: Path) -> Any:
    return json.loads((shared_data / "tokenizers/golden_ids.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=8)
def published(shared_data: Path, name: str) -> Tokenizer:
    return Tokenizer.load(shared_data / "tokenizers" / name.replace("_", "-"))


# ---------------------------------------------------------------- published vocabularies


@pytest.mark.shared
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_ids_of_published_vocabularies(shared_data: Path, name: str) -> None:
    """All 40 probes. Probe 27 spells control tokens: the golden ids of BERT have them as control ids, which is what
    `encode_with_specials` gives; for GPT-2 and T5, SentencePiece's too, they are text, which is what `encode` gives.
    """
    expected = golden(shared_data)
    tokenizer = published(shared_data, name)
    probes = expected["probes"]
    assert len(probes) == len(expected[name]) == 40
    for k, (probe, ids) in enumerate(zip(probes, expected[name], strict=True)):
        with_controls = k == CONTROLS and tokenizer.type == "wordpiece"
        found = tokenizer.encode_with_specials(probe) if with_controls else tokenizer.encode(probe)
        assert found.tolist() == ids, probe
        aligned = tokenizer.encode_aligned([probe])[0]
        assert with_controls or aligned.ids.tolist() == ids


@pytest.mark.shared
def test_golden_offsets(shared_data: Path) -> None:
    expected = golden(shared_data)
    tokenizer = published(shared_data, "bert_base_uncased")
    for k, (probe, offsets) in enumerate(zip(expected["probes"], expected["offsets_bert_base_uncased"], strict=True)):
        if k != CONTROLS:
            aligned = tokenizer.encode_aligned([probe])[0]
            assert list(map(list, zip(aligned.begin.tolist(), aligned.end.tolist(), strict=True))) == offsets, probe


@pytest.mark.shared
def test_control_tokens_of_published_vocabularies(shared_data: Path) -> None:
    bert = published(shared_data, "bert_base_cased").vocabulary
    assert (bert.pad, bert.unk, bert.cls, bert.sep, bert.mask, bert.size) == (0, 100, 101, 102, 103, 28996)
    gpt2 = published(shared_data, "gpt2").vocabulary
    assert (gpt2.bos, gpt2.eos, gpt2.unk, gpt2.specials.tolist()) == (50256, 50256, None, [50256])
    t5 = published(shared_data, "t5").vocabulary
    assert (t5.pad, t5.eos, t5.unk, t5.size) == (0, 1, 2, 32100)
    assert t5.sentinels.tolist() == list(range(32099, 31999, -1))  # as transformers numbers them


@pytest.mark.shared
def test_what_published_vocabularies_lose(shared_data: Path) -> None:
    gpt2, t5 = published(shared_data, "gpt2"), published(shared_data, "t5")
    assert gpt2.lossless and gpt2.decode(gpt2.encode(" a\t😀 é\n\n")) == " a\t😀 é\n\n"
    assert t5.losses[:3] == [
        "Unicode is normalised by sentencepiece's table",
        "blanks at the ends are dropped",
        "runs of blanks become one",
    ]
    assert t5.decode(t5.encode("  ﬁne  tea ")) == "fine tea"


@pytest.mark.shared
def test_the_common_library_reads_what_we_loaded(shared_data: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    probes = golden(shared_data)["probes"]
    for name in ("gpt2", "t5"):
        tokenizer = published(shared_data, name)
        tokenizer.save_hf(tmp_path / name)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
        for k, probe in enumerate(probes):
            if k != CONTROLS:
                assert theirs(probe)["input_ids"] == tokenizer.encode(probe).tolist(), probe


@pytest.mark.shared
def test_bert_tokenization_of_the_original(shared_data: Path, tmp_path: Path) -> None:
    """The unit tests of google-research/bert."""
    cases = json.loads((shared_data / "conformance/bert_tokenization.json").read_text(encoding="utf-8"))

    def of(vocab: list[str], lower: bool) -> Tokenizer:
        (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in vocab), encoding="utf-8")
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
        return Tokenizer.load(tmp_path)

    full = cases["full"]
    tokenizer = of(full["vocab"], True)
    ids = tokenizer.encode(full["text"])
    assert ids.tolist() == full["ids"] and [tokenizer.token(i) for i in ids] == full["tokens"]
    for case in cases["wordpiece"]:
        tokenizer = of(case["vocab"], False)
        assert [tokenizer.token(i) for i in tokenizer.encode(case["text"])] == case["tokens"]
    for case in cases["basic"]:
        tokenizer = of(["[UNK]", *sorted(set(case["tokens"]))], case["lower"])
        assert [tokenizer.token(i) for i in tokenizer.encode(case["text"])] == case["tokens"]


# ---------------------------------------------------------------- BERT and GPT: what the files do not say


BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<S>", "the", "caf", "##e", "cafe", "naive", "##É", "é"]


def test_case_is_told_by_content_and_by_settings(tmp_path: Path) -> None:
    """An upper-case letter outside [...] and <...> makes it cased; a tokenizer_config.json wins."""

    def tokens(vocab: list[str], settings: dict[str, Any] | None, text: str) -> list[str]:
        (tmp_path / "vocab.txt").write_text("\r\n".join(vocab), encoding="utf-8")
        (tmp_path / "tokenizer_config.json").unlink(missing_ok=True)
        if settings is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        tokenizer = Tokenizer.load(tmp_path / "vocab.txt")
        return [tokenizer.token(i) for i in tokenizer.encode(text)]

    uncased = [p for p in BERT if p != "##É"]
    assert tokens(uncased, None, "THE CAFÉ") == ["the", "cafe"]
    assert tokens([*uncased, "The"], None, "THE CAFÉ The") == ["[UNK]", "[UNK]", "The"]
    assert tokens([*uncased, "The"], {"do_lower_case": True}, "THE CAFÉ") == ["the", "cafe"]
    assert tokens(uncased, {"do_lower_case": False}, "the THE") == ["the", "[UNK]"]
    assert tokens(uncased, {"strip_accents": False}, "É") == ["é"]


def write_gpt2(folder: Path, merges: str = "#version: 0.2\nt h\nth e\nĠ the\n") -> None:
    from unmask.tokens.pieces import BYTES

    vocab = {c: i for i, c in enumerate([*BYTES, "th", "the", "Ġthe", "<|endoftext|>", "model"])}
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (folder / "merges.txt").write_text(merges, encoding="utf-8")


def test_gpt2_files(tmp_path: Path) -> None:
    write_gpt2(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.type == "bbpe" and tokenizer.lossless
    assert tokenizer.encode("the the").tolist() == [257, 258]
    assert tokenizer.encode_with_specials("the<|endoftext|>").tolist() == [257, 259]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True}))
    again = Tokenizer.load(tmp_path / "vocab.json")
    assert again.encode("the the").tolist() == [258, 258] and again.losses == ["a blank is put in front"]


def test_gpt1_files(tmp_path: Path) -> None:
    vocab = {"t": 0, "h": 1, "e": 2, "e</w>": 3, "th": 4, "the</w>": 5, "<unk>": 6, "o": 7, "n": 8, "n</w>": 9}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nt h\nth e</w>\n")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.type == "bpe" and tokenizer.encode("The then ☃").tolist() == [5, 4, 2, 9, 6]
    assert tokenizer.decode([5, 4, 2, 9]) == "the then"


# ---------------------------------------------------------------- SentencePiece


def trained(kind: str, **options: Any) -> bytes:
    sentencepiece = pytest.importorskip("sentencepiece")
    lines = [line for text in pydoc_data.topics.topics.values() for line in text.split("\n") if line.strip()][:1000]
    lines += ["naïve café 北京 ½ ﬁ a_b x  y"] * 30
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=made, vocab_size=500, model_type=kind, minloglevel=2, **options
    )
    return made.getvalue()


LLAMA = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}


@pytest.mark.parametrize("kind", ("unigram", "bpe"))
@pytest.mark.parametrize(
    "options",
    (
        {},
        LLAMA,
        {"add_dummy_prefix": False, "remove_extra_whitespaces": False},
        {"normalization_rule_name": "identity"},
        {"user_defined_symbols": ["<x>", "import"]},
        {"allow_whitespace_only_pieces": True, **LLAMA},
    ),
    ids=("default", "llama", "no prefix", "identity", "user-defined", "runs of blanks"),
)
def test_models_encode_as_sentencepiece_does(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    data = trained(kind, **options)
    (tmp_path / "m.model").write_bytes(data)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    ours = Tokenizer.load(tmp_path / "m.model")
    assert ours.type == kind and ours.vocabulary.size == 500
    assert (ours.vocabulary.unk, ours.vocabulary.bos, ours.vocabulary.eos) == (0, 1, 2)
    draw = random.Random(0)
    alphabet = [*"abcdetheing  .,é▁\t\n☃½北京12'", "the ", "import ", "<s>", "<x>", "  "]
    texts = ["".join(draw.choice(alphabet) for _ in range(draw.randrange(25))) for _ in range(200)]
    for text, ids in zip(texts, ours.encode_batch(texts), strict=True):
        assert ids.tolist() == theirs.encode(text), text
        back = ours.decode(ids)
        assert "<0x" not in back
        if ours.losses == ["▁ becomes a blank"]:
            assert back == text.replace("▁", " ")


def test_a_model_like_t5s_gets_its_sentinels(tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(trained("unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.vocabulary.size == 600 and tokenizer.vocabulary.sentinels.tolist() == list(range(599, 499, -1))
    assert tokenizer.token(599) == "<extra_id_0>"


def test_words_reach_over_blanks_where_the_model_says_so() -> None:
    """Pieces such as "▁of▁the" are used, and nothing is looked up by words then."""
    pieces = [Piece("<unk>", 0, UNKNOWN), Piece("</s>", 0, CONTROL)]
    pieces += [Piece(p, -k, NORMAL) for k, p in enumerate(["▁of▁the", "▁of", "▁the", "▁", *"ofthe"], 1) if p]
    pieces = list({p.text: p for p in pieces}.values())
    tokenizer = Tokenizer(build(Model(pieces)).to_str())
    assert [tokenizer.token(i) for i in tokenizer.encode("of the of")] == [" of the", " of"]


def test_damaged_models_are_refused(tmp_path: Path) -> None:
    data = trained("bpe")
    for broken in (data[: len(data) // 2 + 1], b"\x0a\x05hello", b"not a model at all", b"", b"\xff" * 40):
        (tmp_path / "m.model").write_bytes(broken)
        with pytest.raises(UserError, match=r"m\.model: this is no SentencePiece model"):
            Tokenizer.load(tmp_path / "m.model")
    for kind in ("word", "char"):
        with pytest.raises(UserError, match="unigram and bpe models can be loaded"):
            read_model(trained(kind, hard_vocab_limit=False))
    with pytest.raises(UserError, match="marks blanks behind words"):
        read_model(trained("bpe", treat_whitespace_as_suffix=True))
    with pytest.raises(UserError, match="no unknown piece"):
        build(Model([Piece("a", 0.0)]))


# ---------------------------------------------------------------- llama2.c


def write_llama2c(path: Path, entries: list[tuple[bytes, float]]) -> None:
    rows = (struct.pack("<fi", score, len(raw)) + raw for raw, score in entries)
    path.write_bytes(struct.pack("<i", max(len(raw) for raw, _ in entries)) + b"".join(rows))


def entries_of(path: Path) -> list[tuple[bytes, float]]:
    data, at, out = path.read_bytes(), 4, []
    while at < len(data):
        score, size = struct.unpack_from("<fi", data, at)
        out.append((data[at + 8 : at + 8 + size], score))
        at += 8 + size
    return out


def run_c(entries: list[tuple[bytes, float]], text: str) -> list[int]:
    """The encoder of llama2.c's run.c, in Python: join the best-scored neighbours until none makes an entry."""
    number = {raw: i for i, (raw, _) in enumerate(entries)}
    ids = [number[b" "]] if text else []
    for character in text:
        raw = character.encode()
        ids += [number[raw]] if raw in number else [byte + 3 for byte in raw]
    while True:
        pairs = [(entries[a][0] + entries[b][0], k) for k, (a, b) in enumerate(itertools.pairwise(ids))]
        known = [(-entries[number[whole]][1], k, number[whole]) for whole, k in pairs if whole in number]
        if not known:
            return ids
        _, k, joined = min(known)
        ids[k : k + 2] = [joined]


@pytest.mark.shared
def test_llama2c_encodes_as_run_c_does(shared_data: Path) -> None:
    file = shared_data / "stories260k/tok512.bin"
    tokenizer, entries = from_llama2c(file), entries_of(file)
    vocabulary = tokenizer.vocabulary
    assert (vocabulary.size, vocabulary.unk, vocabulary.bos, vocabulary.eos) == (512, 0, 1, 2)
    draw = random.Random(0)
    alphabet = ["Once", " upon", " a", " time", "  ", "\n", "é", "😀", "…", "“", "x", "the", ",", "aaaa", "12"]
    texts = ["".join(draw.choice(alphabet) for _ in range(draw.randrange(12))) for _ in range(200)]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert ids.tolist() == run_c(entries, text), text
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("<s> a </s>").tolist() == run_c(
        [(b"", 0.0) if i < 3 else e for i, e in enumerate(entries)], "<s> a </s>"
    )


def test_llama2c_files_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "tok.bin"
    base = [
        (b"<unk>", 0.0),
        (b"\n<s>\n", 0.0),
        (b"\n</s>\n", 0.0),
        *((f"<0x{b:02X}>".encode(), 0.0) for b in range(256)),
    ]
    write_llama2c(file, [*base, (b" ", -1.0), (b"a", -2.0), (b" a", -3.0)])
    tokenizer = from_llama2c(file)
    assert tokenizer.encode("a a\n").tolist() == [261, 261, 13] and tokenizer.token(13) == "\\n"
    assert tokenizer.encode_with_specials("<s>").tolist()[-1] == 1
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"tok\.bin: this is no tokenizer file of llama2\.c"):
        from_llama2c(file)
    write_llama2c(file, base[:100])
    with pytest.raises(UserError, match=r"entries 3 to 258 are the bytes"):
        from_llama2c(file)
    with pytest.raises(UserError, match=r"cannot read the tokenizer"):
        from_llama2c(tmp_path / "absent.bin")


# ---------------------------------------------------------------- directories and refusals


def test_a_directory_is_searched_in_order(tmp_path: Path) -> None:
    write_gpt2(tmp_path)
    gpt2 = Tokenizer.load(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(BERT), encoding="utf-8")
    assert Tokenizer.load(tmp_path).type == "wordpiece"
    gpt2.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path).fingerprint == gpt2.fingerprint


def test_refusals_are_one_sentence_that_says_what_and_where(tmp_path: Path) -> None:
    def refused(path: Path, message: str) -> None:
        with pytest.raises(UserError, match=message) as caught:
            Tokenizer.load(path)
        assert "\n" not in str(caught.value) and str(path) in str(caught.value)

    empty = tmp_path / "empty"
    empty.mkdir()
    refused(empty, r"holds no tokenizer\.json, vocab\.txt, vocab\.json, encoder\.json and no \.model file")
    (empty / "a.model").write_bytes(b"")
    (empty / "b.model").write_bytes(b"")
    refused(empty, "holds 2 .model files: name one")
    write_gpt2(tmp_path)
    refused(tmp_path / "merges.txt", "merges alone")
    refused(tmp_path / "vocab.jsom", r"cannot read the tokenizer.*did you mean 'vocab\.json'\?$")
    shutil.copy(tmp_path / "vocab.json", empty / "vocab.json")
    refused(empty / "vocab.json", "needs its merges.txt")
    write_gpt2(tmp_path, "t h\nq z z\n")
    refused(tmp_path / "vocab.json", "holds 'q z z', which is no pair")
    write_gpt2(tmp_path, "t h\nq z\n")
    refused(tmp_path / "vocab.json", "do not belong together")
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1}))
    refused(tmp_path / "vocab.json", "neither GPT-2's kind")
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    refused(tmp_path / "vocab.txt", r"no line \[UNK\]")
    (tmp_path / "vocab.txt").write_bytes(b"[UNK]\n\xff\xfe\n")
    refused(tmp_path / "vocab.txt", "no UTF-8 text")
    (tmp_path / "t.json").write_text("{")
    refused(tmp_path / "t.json", "no JSON")
    (tmp_path / "t.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": 3}}))
    refused(tmp_path / "t.json", "no tokenizer.json that the tokenizers library reads")
