from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from unmask.batch import Batch
from unmask.cli import app
from unmask.errors import UserError
from unmask.evaluation.inputs import stream_of
from unmask.loading import import_run, load
from unmask.model.llama2c import find_llama2c, load_llama2c
from unmask.run import evaluate

HEADER = (24, 40, 2, 6, 3, 17, 12)  # dim, hidden, layers, heads, kv heads, vocabulary, length
Weights = dict[str, np.ndarray]


def random_weights(header: tuple[int, ...], tied: bool) -> Weights:
    """The tensors of a llama2.c file in its order, all random."""
    dim, hidden, layers, heads, groups, vocab, length = header
    size = dim // heads
    shapes = {
        "embedding": (vocab, dim), "att": (layers, dim), "wq": (layers, dim, dim), "wk": (layers, groups * size, dim),
        "wv": (layers, groups * size, dim), "wo": (layers, dim, dim), "ffn": (layers, dim),
        "w1": (layers, hidden, dim), "w2": (layers, dim, hidden), "w3": (layers, hidden, dim), "final": (dim,),
        "freq": (2, length, size // 2), **({} if tied else {"wcls": (vocab, dim)}),
    }  # fmt: skip
    random, ones = np.random.default_rng(0), ("att", "ffn", "final")
    return {k: (0.3 * random.standard_normal(s) + (k in ones)).astype("<f4") for k, s in shapes.items()}


def write(file: Path, header: tuple[int, ...], weights: Weights) -> Path:
    signed = (*header[:5], -header[5] if "wcls" in weights else header[5], header[6])
    file.write_bytes(struct.pack("<7i", *signed) + b"".join(w.tobytes() for w in weights.values()))
    return file


def logits_of_run_c(header: tuple[int, ...], w: Weights, tokens: list[int]) -> np.ndarray:
    """(T, V): run.c's forward(), one position at a time, its rotation of adjacent pairs included, in float64."""
    dim, _, layers, heads, groups, _, _ = header
    size, w = dim // heads, {k: v.astype(np.float64) for k, v in w.items()}

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return weight * x / np.sqrt((x * x).mean() + 1e-5)

    def turn(x: np.ndarray, position: int) -> np.ndarray:
        out = x.copy()
        for i in range(0, len(x), 2):
            angle = position / 10000.0 ** ((i % size) / size)
            out[i] = x[i] * np.cos(angle) - x[i + 1] * np.sin(angle)
            out[i + 1] = x[i] * np.sin(angle) + x[i + 1] * np.cos(angle)
        return out

    keys: list[list[np.ndarray]] = [[] for _ in range(layers)]
    values: list[list[np.ndarray]] = [[] for _ in range(layers)]
    out = []
    for position, token in enumerate(tokens):
        x = w["embedding"][token].copy()
        for n in range(layers):
            h = norm(x, w["att"][n])
            q = turn(w["wq"][n] @ h, position)
            keys[n].append(turn(w["wk"][n] @ h, position))
            values[n].append(w["wv"][n] @ h)
            mixed = np.zeros(dim)
            for head in range(heads):
                here = slice(head * size, (head + 1) * size)
                group = head // (heads // groups)
                theirs = slice(group * size, (group + 1) * size)
                scores = np.array([q[here] @ k[theirs] for k in keys[n]]) / np.sqrt(size)
                p = np.exp(scores - scores.max())
                mixed[here] = (p / p.sum()) @ np.array([v[theirs] for v in values[n]])
            x = x + w["wo"][n] @ mixed
            h = norm(x, w["ffn"][n])
            gate = w["w1"][n] @ h
            x = x + w["w2"][n] @ (gate / (1 + np.exp(-gate)) * (w["w3"][n] @ h))
        out.append(w.get("wcls", w["embedding"]) @ norm(x, w["final"]))
    return np.array(out)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_those_of_run_c(tied: bool, tmp_path: Path) -> None:
    weights = random_weights(HEADER, tied)
    model = load_llama2c(write(tmp_path / "model.bin", HEADER, weights))
    assert model.config.tied_head is tied and model.config.max_position == 12
    tokens = [1, 5, 16, 3, 3, 9, 0, 12]
    with torch.no_grad():
        states = model(Batch(stream_of([tokens], "causal"), {}, {}))["stream"][0]
        head = model.heads["lm"]
        logits = head.project(head.features(states[:, None]))  # type: ignore[operator, attr-defined]
    np.testing.assert_allclose(logits.numpy(), logits_of_run_c(HEADER, weights, tokens), rtol=1e-4, atol=1e-5)


def test_damaged_and_foreign_files_are_said(tmp_path: Path) -> None:
    weights = random_weights(HEADER, True)
    good = write(tmp_path / "model.bin", HEADER, weights).read_bytes()
    bad = tmp_path / "bad.bin"
    later = struct.pack("<7i", 0x616B3432, 1, 24, 40, 2, 6, 3) + good[28:]
    odd = struct.pack("<7i", 24, 40, 2, 5, 5, 17, 12) + good[28:]
    for content, says in (
        (good[:20], "it has 20 bytes, fewer than the header's 28"),
        (good[:-4], r"the file is incomplete, or it is no llama2\.c model"),
        (good + b"more", "its header asks for"),
        (b"\0" * 100, "its header says"),
        (b"not a model at all, but text long enough", "is no llama2.c model"),
        (later, "is version 1 of llama2.c's format, and only version 0"),
        (odd, "num_heads=5 does not divide"),
    ):
        bad.write_bytes(content)
        with pytest.raises(UserError, match=says):
            load_llama2c(bad)
    with pytest.raises(UserError, match=r"cannot read .*absent"):
        load_llama2c(tmp_path / "absent.bin")


def test_the_model_and_its_tokenizer_are_found(tmp_path: Path) -> None:
    for name in ("model.bin", "tok512.bin"):
        (tmp_path / name).write_bytes(b"")
    assert find_llama2c(tmp_path) == (tmp_path / "model.bin", [tmp_path / "tok512.bin"])
    assert find_llama2c(tmp_path / "model.bin") == (tmp_path / "model.bin", [tmp_path / "tok512.bin"])
    (tmp_path / "tok1.bin").write_bytes(b"")
    with pytest.raises(UserError, match=r"2 tokenizers lie beside .*model\.bin: .*\(tok1\.bin, tok512\.bin\)"):
        import_run(tmp_path / "model.bin", tmp_path / "run", format="llama2c")
    with pytest.raises(UserError, match=r"absent\.bin does not exist"):
        import_run(tmp_path / "absent.bin", tmp_path / "run", format="llama2c")
    (tmp_path / "other.bin").write_bytes(b"")
    with pytest.raises(UserError, match=r"holds 2 models of llama2\.c"):
        find_llama2c(tmp_path)
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "model.bin").write_bytes(b"")
    with pytest.raises(UserError, match="no tokenizer lies beside"):
        import_run(tmp_path / "alone", tmp_path / "run", format="llama2c")
    with pytest.raises(UserError, match=r"format=llama2 is none of hf, llama2c; did you mean 'llama2c'"):
        import_run(tmp_path, tmp_path / "run", format="llama2")
    with pytest.raises(UserError, match="brings its own tokenizer"):
        import_run(tmp_path, tmp_path / "run", tokenizer="x")


# ---------------------------------------------------------------- a real model


def unmask(*words: str | Path) -> str:
    """What a command prints."""
    done = CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False)
    assert done.exit_code == 0 and done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def stories(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("stories") / "run"
    printed = unmask("import", shared_data / "stories260k", run, "--format", "llama2c", "--json")
    assert json.loads(printed) == {"run": str(run), "source": str(shared_data / "stories260k"), "format": "llama2c"}
    return run


@pytest.mark.shared
def test_the_documented_greedy_text_is_written_word_for_word(stories: Path, shared_data: Path) -> None:
    """stories260K.md: ./run stories260K.bin -z tok512.bin -t 0.0, which takes 256 steps from an empty prompt."""
    note = (shared_data / "stories260k" / "stories260K.md").read_text()
    (expected,) = re.findall(r"-t 0\.0\n(.*?)\n```", note, re.DOTALL)
    assert unmask("generate", stories, "--max-tokens", "256") == expected + "\n"
    begin = "Once upon a time, there was a little girl named Lily."
    rest = unmask("generate", stories, begin, "--max-tokens", "40").removesuffix("\n")
    assert expected.startswith(rest) and len(rest) > len(begin) + 60


@pytest.mark.shared
def test_a_story_ends_where_run_c_ends_it(stories: Path) -> None:
    """run.c stops at the next [BOS], which parts the texts the model was trained on."""
    (line,) = unmask("generate", stories, "--max-tokens", "600", "--json").splitlines()
    assert json.loads(line)["stopped"] == "end" and json.loads(line)["text"].endswith('You are a good friend."')


@pytest.mark.shared
def test_a_file_and_its_tokenizer_may_be_named(stories: Path, shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "stories260k"
    import_run(folder / "stories260K.bin", tmp_path / "run", "llama2c", folder / "tok512.bin")
    assert load(tmp_path / "run", device="cpu").score("a cat") == load(stories, device="cpu").score("a cat")
    other = write(tmp_path / "model.bin", HEADER, random_weights(HEADER, True))
    with pytest.raises(UserError, match=r"tok512\.bin has 512 entries but .*model\.bin 17"):
        import_run(other, tmp_path / "other", "llama2c", folder / "tok512.bin")


@pytest.mark.shared
def test_an_imported_model_is_scored_measured_exported_and_reloaded(stories: Path, tmp_path: Path) -> None:
    lm = load(stories, device="cpu")
    text = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    s = lm.score(text, end=True)[0]
    assert s.start == "<s>" and s.event == "log p(text <s> | <s>)"  # [BOS] parts the stories
    assert -s.logprob / s.tokens < 1.3
    document = tmp_path / "story.txt"
    document.write_text(text)
    bits = evaluate(stories, "bpb", document)
    assert bits["value"] == pytest.approx(-s.logprob / np.log(2) / len(text), rel=1e-5)
    report = lm.export(tmp_path / "hf")
    assert report["difference"] < 1e-4
    settings = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert settings["architectures"] == ["LlamaForCausalLM"] and settings["eos_token_id"] == 1
    again = load(tmp_path / "hf", device="cpu")
    assert again.score(text, end=True)[0].each == pytest.approx(s.each, rel=1e-4, abs=1e-5)
    assert again.score(text, end=True)[0].event == s.event
    assert again.generate("", max_tokens=30) == lm.generate("", max_tokens=30)
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert theirs.encode(text, add_special_tokens=False) == lm.tokenizer.encode(text).tolist()  # type: ignore[union-attr]
    with pytest.raises(UserError, match="already exists"):
        import_run(stories, stories, format="llama2c")
