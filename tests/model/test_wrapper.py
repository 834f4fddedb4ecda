"""Our generated classes under the library's customs: losses over several batches, and arguments they do not know."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from unmask.batch import Head
from unmask.model.bundle import auto_classes, export_own
from unmask.model.transformer import Transformer
from unmask.model.verify import trusted

from .helpers import model_of, tokens_of
from .test_bundle import MODELS

IDS = {"pad": 0, "bos": 1, "eos": 2}
KINDS = {"causal": "modern-decoder", "masked": "unilm", "pairs": "encdec"}


@pytest.fixture(autouse=True)
def _own_code() -> Iterator[None]:
    with trusted():
        yield


def exported(name: str, path: Path, auto: str | None = None, **more: Any) -> tuple[Transformer, Any]:
    model = model_of(torch.float32, **{**MODELS[name], **more})
    export_own(model, path, IDS)
    kind = getattr(transformers, auto or auto_classes(path)[-1])
    return model, kind.from_pretrained(path, trust_remote_code=True, dtype=torch.float64).eval()


def rows(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Four rows, whose labels count 9, 2, 5 and 0 times but for the first place."""
    ids = torch.from_numpy(tokens_of(4, 10, seed)).long()
    labels = ids.clone()
    for row, count in enumerate((9, 2, 5, 0)):
        labels[row, 1 + count :] = -100
    labels[:, 0] = -100
    return ids, labels


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_four_batches_are_those_of_one(kind: str, tmp_path: Path) -> None:
    """As the library's trainer gathers them: the number of labels of all batches goes to each."""
    _, model = exported(KINDS[kind], tmp_path)
    ids, labels = rows()
    assert model.accepts_loss_kwargs is True

    def gradients(size: int) -> tuple[float, list[Tensor]]:
        model.zero_grad()
        count = labels.ne(-100).sum()
        assert int(count) == 16
        loss = 0.0
        for begin in range(0, 4, size):
            part = slice(begin, begin + size)
            out = model(ids[part], labels=labels[part], num_items_in_batch=count)
            out.loss.backward()
            loss += float(out.loss.detach())
        return loss, [p.grad.clone() for p in model.parameters()]

    (whole, want), (parts, found) = gradients(4), gradients(1)
    assert whole == pytest.approx(parts, rel=1e-6)  # losses are taken in fp32
    assert whole == pytest.approx(float(model(ids, labels=labels).loss.detach()), rel=1e-6)
    for a, b in zip(want, found, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)
    assert float(model(ids, labels=labels, num_items_in_batch=32).loss.detach()) == pytest.approx(whole / 2, rel=1e-6)


def test_classes_without_a_loss_do_not_ask_for_a_count(tmp_path: Path) -> None:
    """Nor is there a catch-all argument, by which the trainer would take them for ones that do."""
    heads = [Head("lm"), Head("rtd", over="binary")]
    export_own(model_of(torch.float32, heads, visibility="bidirectional"), tmp_path, IDS)
    for auto in ("AutoModel", "AutoModelForPreTraining"):
        model = getattr(transformers, auto).from_pretrained(tmp_path, trust_remote_code=True)
        assert model.accepts_loss_kwargs is False
        taken = inspect.signature(model.forward).parameters.values()
        assert all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in taken)


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("name", "auto"),
    [
        ("modern-decoder", "AutoModelForCausalLM"),
        ("unilm", "AutoModelForMaskedLM"),
        ("encdec", "AutoModelForSeq2SeqLM"),
        ("encdec", "AutoModel"),
        ("unilm", "AutoModel"),
    ],
)
def test_an_unknown_argument_raises(name: str, auto: str, tmp_path: Path) -> None:
    _, model = exported(name, tmp_path, auto)
    ids, mask = rows()[0], torch.ones(4, 10)
    for wrong in ({"attnetion_mask": mask}, {"inputs_embeds": mask}, {"head_mask": mask}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            model(ids, **wrong)


@pytest.mark.parametrize("shape", [(4, 1, 10, 10), (4, 10, 10), (4, 9), (1, 10)])
def test_masks_of_another_shape_are_refused_in_a_sentence(shape: tuple[int, ...], tmp_path: Path) -> None:
    _, model = exported("modern-decoder", tmp_path)
    with pytest.raises(ValueError, match=r"attention_mask .* must be \(rows, tokens\)"):
        model(rows()[0], attention_mask=torch.ones(shape))


@pytest.mark.parametrize("name", ["modern-decoder", "prefix", "unilm", "alibi", "deberta"])
def test_position_ids_part_packed_texts(name: str, tmp_path: Path) -> None:
    """As the library does it: a new text begins where positions do not count on, if no mask says otherwise."""
    _, model = exported(name, tmp_path, convolution=0)
    ids = rows()[0][:1]
    packed = torch.cat([torch.arange(4), torch.arange(6)])[None]
    together = model(ids, position_ids=packed).logits[0]
    assert torch.allclose(together[4:], model(ids[:, 4:]).logits[0], atol=1e-6)
    assert torch.allclose(together[:4], model(ids[:, :4]).logits[0], atol=1e-6)
    masked = model(ids, position_ids=packed, attention_mask=torch.ones_like(ids)).logits[0]
    assert not torch.allclose(masked[4:], together[4:], atol=1e-3)  # one text, placed so


def test_position_ids_place_tokens(tmp_path: Path) -> None:
    """Learned positions are looked up where they are given; those given as they count anyway change nothing."""
    _, model = exported("glm", tmp_path, visibility="causal", positions2=0)
    ids = rows()[0][:2]
    plain = model(ids).logits
    assert torch.allclose(model(ids, position_ids=torch.arange(10)[None]).logits, plain, atol=1e-9)
    moved = model(ids, position_ids=torch.arange(10, 20)[None]).logits
    with torch.no_grad():
        table = model.model.stack.positions.weight
        table[:10] = table[10:20].clone()
    assert torch.allclose(model(ids).logits, moved, atol=1e-9) and not torch.allclose(moved, plain, atol=1e-3)


QUERIES = {"visibility": "bidirectional", "query_vector": True}


def test_a_permuted_model_is_asked_by_queries(tmp_path: Path) -> None:
    """What stands where the query does, nobody reads; labels stand at the queries."""
    model, theirs = exported("unilm", tmp_path, **QUERIES)
    ids = torch.from_numpy(tokens_of(2, 8)).long()
    blind, asked = torch.zeros(2, 8, 8), torch.zeros(2, 1, 8)
    blind[:, :, 3], asked[:, 0, 3] = 1, 1
    out = theirs(ids, perm_mask=blind, target_mapping=asked, labels=ids[:, 3:4])
    assert out.logits.shape == (2, 1, model.config.vocab_size)
    changed = torch.where(torch.arange(8) == 3, (ids + 1) % 50, ids)
    assert torch.equal(theirs(changed, perm_mask=blind, target_mapping=asked).logits, out.logits)
    others = torch.arange(8) != 3
    assert torch.equal(
        theirs(changed, perm_mask=blind).logits[:, others], theirs(ids, perm_mask=blind).logits[:, others]
    )
    expected = torch.nn.functional.cross_entropy(out.logits[:, 0], ids[:, 3])
    assert float(out.loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_queries_need_their_vector(tmp_path: Path) -> None:
    _, theirs = exported("unilm", tmp_path)
    with pytest.raises(ValueError, match="no query vector"):
        theirs(torch.zeros(1, 4, dtype=torch.long), target_mapping=torch.eye(4)[None, :1])


def test_generate_goes_on_in_the_second_axis_and_in_given_positions(tmp_path: Path) -> None:
    """GLM's answers stand where the [MASK] does, with or without a mask of padding; other positions count on."""
    _, theirs = exported("modern-decoder", tmp_path / "glm", visibility="prefix", positions="learned", positions2=20)
    ids = torch.from_numpy(tokens_of(1, 6)).long()
    places, inside = torch.tensor([[0, 1, 2, 3, 4, 2]]), torch.tensor([[0, 0, 0, 0, 0, 1]])
    mask = torch.ones_like(ids)
    given = {"prefix_length": 5, "position_ids": places, "positions2": inside}
    written = theirs.generate(ids, **given, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    places, inside = torch.tensor([[0, 1, 2, 3, 4, 2, 2, 2, 2]]), torch.tensor([[0, 0, 0, 0, 0, 1, 2, 3, 4]])
    given = {"prefix_length": 5, "position_ids": places, "positions2": inside}
    logits = theirs(written[:, :-1], **given).logits
    assert torch.equal(logits, theirs(written[:, :-1], torch.ones_like(places), **given).logits)
    logits[..., 2] = -torch.inf  # the end, which is not written so early
    assert torch.equal(logits[:, 5:].argmax(-1), written[:, 6:])
    _, plain = exported("modern-decoder", tmp_path / "plain", positions="learned")
    far = torch.arange(6)[None] + 9
    written = plain.generate(ids, position_ids=far, attention_mask=mask, max_new_tokens=4, min_new_tokens=4)
    logits = plain(written[:, :-1], position_ids=torch.arange(9)[None] + 9).logits
    logits[..., 2] = -torch.inf
    assert torch.equal(logits[:, 5:].argmax(-1), written[:, 6:])


def test_types_without_a_table_are_refused(tmp_path: Path) -> None:
    _, model = exported("prefix", tmp_path / "a")
    _, pairs = exported("encdec", tmp_path / "b")
    ids = rows()[0]
    assert torch.equal(model(ids, token_type_ids=torch.zeros_like(ids)).logits, model(ids).logits)
    for wrong in (lambda: model(ids, token_type_ids=ids % 2), lambda: pairs(ids, ids % 2, ids % 2, labels=ids)):
        with pytest.raises(ValueError, match="no token types"):
            wrong()
    _, xlnet = exported("xlnet", tmp_path / "c")
    types = torch.tensor([[0] * 5 + [1] * 5]).expand(4, 10)
    assert not torch.allclose(xlnet(ids, token_type_ids=types).logits, xlnet(ids).logits, atol=1e-3)


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize("name", ["modern-decoder", "unilm", "deberta", "shared-layers"])
def test_hidden_states_of_every_depth(name: str, tmp_path: Path) -> None:
    ours, model = exported(name, tmp_path)
    ids = rows()[0]
    out = model(ids, output_hidden_states=True)
    assert len(out.hidden_states) == ours.config.num_layers + 1 and model(ids).hidden_states is None
    body = transformers.AutoModel.from_pretrained(tmp_path, trust_remote_code=True, dtype=torch.float64).eval()
    bare = body(ids, output_hidden_states=True)
    assert torch.equal(out.hidden_states[-1], bare.last_hidden_state)
    assert all(torch.equal(a, b) for a, b in zip(out.hidden_states, bare.hidden_states, strict=True))
    logits = model.answers(out.hidden_states[-1], "lm")
    assert torch.equal(logits, out.logits)
    assert torch.equal(model(ids, return_dict=False)[0], out.logits)


def test_hidden_states_of_two_stacks(tmp_path: Path) -> None:
    _, model = exported("encdec", tmp_path)
    ids = rows()[0]
    out = model(ids, labels=ids, output_hidden_states=True)
    assert len(out.encoder_hidden_states) == 2 and len(out.decoder_hidden_states) == 3
    assert torch.equal(out.encoder_hidden_states[-1], out.encoder_last_hidden_state)
    assert torch.equal(model.answers(out.decoder_hidden_states[-1], "lm"), out.logits)


def test_generate_reads_the_sources_types(tmp_path: Path) -> None:
    _, model = exported("encdec", tmp_path, token_types=2, max_position=40)
    ids = rows()[0]
    kind = {"max_new_tokens": 1, "do_sample": False, "pad_token_id": 0}
    kind |= {"return_dict_in_generate": True, "output_logits": True}
    start = torch.zeros(4, 1, dtype=torch.long)
    for types in (ids % 2, None):
        first = model.generate(ids, token_type_ids=types, **kind).logits[0].double()
        assert torch.allclose(first, model(ids, None, types, start).logits[:, -1], atol=1e-6)
    assert not torch.allclose(first, model(ids, None, ids % 2, start).logits[:, -1], atol=1e-3)


def test_the_vocabulary_is_changed_elsewhere(tmp_path: Path) -> None:
    _, model = exported("prefix", tmp_path)
    for change in (
        lambda: model.resize_token_embeddings(60),
        lambda: model.set_input_embeddings(torch.nn.Embedding(60, 32)),
    ):
        with pytest.raises(NotImplementedError, match="unmask convert"):
            change()
