"""Sources that mix: shares, epochs of each source, and what a run makes of them."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask import keyed
from unmask.batch import starts
from unmask.config import CorpusConfig, TokenizerConfig
from unmask.data.loader import Loader
from unmask.data.prepare import prepare
from unmask.data.sampling import BLOCK, InTurn, Mixture, Order, Pieces, counts_in_block, shares
from unmask.data.shards import Source
from unmask.errors import UserError
from unmask.objectives import Causal
from unmask.objectives.show import Toy
from unmask.recipe import load_recipe, load_text

BYTE = TokenizerConfig(type="byte", sentinels=3)


def quiet(_: str) -> None:
    pass


# ---------------------------------------------------------------- shares


def corpus(mix: str = "weight", temperature: float = 3.333, **weights: float) -> CorpusConfig:
    sources = {name: {"path": f"{name}.txt", "weight": weight} for name, weight in weights.items()}
    return CorpusConfig.model_validate({"sources": sources, "mix": mix, "temperature": temperature})


def test_shares_by_weight_size_and_temperature() -> None:
    assert shares(corpus(a=3, b=1), [5, 50_000]).tolist() == [0.75, 0.25]
    assert shares(corpus("proportional", a=3, b=1), [30, 10]).tolist() == [0.75, 0.25]
    assert shares(corpus("temperature", temperature=1, a=3, b=9), [30, 10]).tolist() == [0.75, 0.25]
    flat = shares(corpus("temperature", temperature=1 / 0.3, a=1, b=1, c=1), [1000, 100, 1])
    raw = [1000**0.3, 100**0.3, 1.0]  # mT5's alpha = 0.3
    assert flat == pytest.approx([x / sum(raw) for x in raw], rel=1e-12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30))
def test_counts_in_a_block_are_within_one_sample_of_the_shares(weights: list[float]) -> None:
    share = np.array(weights) / sum(weights)
    counts = np.array(counts_in_block(share))
    assert counts.sum() == BLOCK and counts.min() >= 1
    lent = int((np.floor(share * BLOCK) == 0).sum())  # tiny sources get one sample, which larger ones lend
    error = np.abs(counts - share * BLOCK)
    assert error[share * BLOCK >= 1].max(initial=0) < 1 + lent and error[share * BLOCK < 1].max(initial=0) <= 1


def test_a_mixture_of_too_many_sources_is_a_named_error() -> None:
    assert set(counts_in_block(np.full(BLOCK, 1 / BLOCK))) == {1}
    with pytest.raises(UserError, match=r"1,025 sources cannot be sampled: at most 1,024"):
        counts_in_block(np.full(BLOCK + 1, 1 / (BLOCK + 1)))


# ---------------------------------------------------------------- order


def slow(mixture: Mixture, samples: int) -> list[tuple[int, int, int]]:
    """(source, its epoch, piece) of the first samples: a loop that keeps what `Mixture` computes."""
    owners = list(itertools.chain.from_iterable([k] * n for k, n in enumerate(mixture.counts)))
    size = len(owners)
    first = np.cumsum(mixture.counts) - mixture.counts
    begin = np.cumsum(mixture.sizes) - mixture.sizes
    out = []
    for number in range(samples):
        block, place = divmod(number, size)
        key = keyed.row_keys(mixture.seed, block, 0, "mixture")
        place = int(keyed.permuted(np.array([place]), size, key)[0])
        source = owners[place]
        nth = block * mixture.counts[source] + place - int(first[source])
        epoch, piece = divmod(nth, mixture.sizes[source])
        within = Order(mixture.sizes[source], mixture.seed)
        if source:
            key = keyed.row_keys(mixture.seed, epoch, source, "order")
            piece = int(keyed.permuted(np.array([piece]), within.size, key)[0])
        else:
            piece = int(within.piece(np.array([nth]))[0])  # the first source's order is that of a lone source
        out.append((source, epoch, int(begin[source]) + piece))
    return out


MIXTURES = [
    Mixture((7, 100, 1), (3, 9, 4), 5),
    Mixture((3000, 40), (717, 307), 0),
    Mixture((5,), (16,), 1),
    Mixture((2, 2, 2), (1, 1, 1), 9),
]


@pytest.mark.parametrize("mixture", MIXTURES, ids=str)
def test_the_order_is_that_of_a_slow_loop(mixture: Mixture) -> None:
    n = 2 * sum(mixture.counts) + 5
    expected = slow(mixture, n)
    epoch, piece = mixture._placed(np.arange(n))
    assert piece.tolist() == [p for _, _, p in expected] and epoch.tolist() == [e for _, e, _ in expected]
    keys = [int(keyed.row_keys(mixture.seed, e, p, "noise")) for _, e, p in expected]
    assert mixture.find(np.arange(n))[1].tolist() == keys


@pytest.mark.parametrize("mixture", MIXTURES, ids=str)
def test_shares_are_exact_in_every_block_and_every_piece_comes_once_an_epoch(mixture: Mixture) -> None:
    block, blocks = sum(mixture.counts), 60
    piece = mixture.piece(np.arange(block * blocks))
    source = np.searchsorted(np.cumsum(mixture.sizes), piece, "right")
    for one in source.reshape(blocks, block):
        assert np.bincount(one, minlength=len(mixture.sizes)).tolist() == list(mixture.counts)
    epoch = mixture._placed(np.arange(block * blocks))[0]
    for number, size in enumerate(mixture.sizes):
        mine, of = piece[source == number], epoch[source == number]
        whole = of < len(mine) // size
        seen = np.stack([of[whole], mine[whole]])
        assert np.unique(seen, axis=1).shape[1] == seen.shape[1] == len(mine) // size * size
        shown = [mine[of == e].tolist() for e in range(min(3, len(mine) // size))]
        assert size < 5 or len(shown) < 2 or shown[0] != shown[1]


def test_where_the_sources_stand_in_a_block_differs_from_block_to_block_and_from_seed_to_seed() -> None:
    a, b = (Mixture((50, 50), (BLOCK // 2, BLOCK // 2), seed).piece(np.arange(2 * BLOCK)) < 50 for seed in (0, 1))
    assert 0.4 < np.mean(a[:BLOCK] == a[BLOCK:]) < 0.6 and 0.4 < np.mean(a == b) < 0.6
    runs = np.diff(np.flatnonzero(np.diff(a[:BLOCK].astype(int))))
    assert runs.max() < 20  # no source is away for long


def test_an_index_means_the_same_alone_and_in_any_company() -> None:
    mixture = MIXTURES[0]
    index = np.random.default_rng(0).integers(0, 10**12, 200)
    assert [mixture.piece(np.array([i]))[0] for i in index] == mixture.piece(index).tolist()
    assert [mixture.find(np.array([i]))[1][0] for i in index] == mixture.find(index)[1].tolist()


def test_o28_noise_differs_from_epoch_to_epoch_and_source_to_source() -> None:
    keys = [k for seed in range(4) for k in Mixture((6, 9), (5, 3), seed).find(np.arange(200))[1].tolist()]
    assert len(set(keys)) == len(keys)


def test_unshuffled_sources_take_turns_and_each_piece_comes_once() -> None:
    order = InTurn((600, 30, 1), 0)
    piece = order.piece(np.arange(631))
    assert sorted(piece.tolist()) == list(range(631))
    for beginning in (21, 210, 421):
        source = np.searchsorted([600, 630, 631], piece[:beginning], "right")
        assert np.abs(np.bincount(source, minlength=3) - beginning * np.array([600, 30, 1]) / 631).max() < 1.1
    for number in (0, 1):  # and in the order of the text
        low = number * 600
        mine = piece[(piece >= low) & (piece < low + (600, 30)[number])]
        assert (np.diff(mine) == 1).all()
    assert np.array_equal(InTurn((50,), 3).piece(np.arange(70)), Order(50, 3, shuffle=False).piece(np.arange(70)))
    assert np.array_equal(InTurn((50,), 3).find(np.arange(70))[1], Order(50, 3, shuffle=False).find(np.arange(70))[1])


# ---------------------------------------------------------------- the loader


class Text:
    def __init__(self, *lengths: int) -> None:
        self.documents = starts(lengths)
        self.tokens = (np.arange(self.documents[-1]) % 80 + 5).astype(np.uint16)


def mixed(mix: CorpusConfig | None, sources: tuple[int, ...] = (0, 30), **more: object) -> Loader:
    text = Text(*[10] * 30, *[10] * 10, 25)
    settings = {"rows": 4, "seed": 0, "sources": sources, "mix": mix, **more}
    return Loader(text, Causal(), Toy(size=100), Causal().shape(16), **settings)  # type: ignore[arg-type]


def test_pieces_are_counted_by_source() -> None:
    pieces = Pieces.cut(starts([4, 0, 9, 2, 0, 7]), 3)
    assert pieces.of_sources([0]).tolist() == [len(pieces)]
    assert pieces.of_sources([0, 2, 4]).tolist() == [2, 4, 3]
    assert pieces.of_sources([0, 1, 2]).tolist() == [2, 0, 7]


def test_proportional_is_the_order_of_the_sources_as_if_concatenated() -> None:
    one, many, none = mixed(None, (0,)), mixed(corpus("proportional", a=1, b=5)), mixed(None)
    index = np.arange(300)
    for loader in (many, none):
        assert loader.order == one.order
        assert np.array_equal(loader.order.piece(index), one.order.piece(index))


def test_weights_reach_the_batches_and_any_step_alone_is_the_same() -> None:
    loader = mixed(corpus(a=1, b=3))
    assert loader.sizes == (30, 12)
    steps = BLOCK // loader.per_step
    drawn = np.concatenate([loader.order.piece(b.samples.index) for s in range(steps) for b in loader(s)])
    assert np.mean(drawn >= 30) == pytest.approx(0.75, abs=0.01)
    again = mixed(corpus(a=1, b=3))
    for step in (17, 3, 40):
        (a,), (b,) = loader(step), again(step)
        assert np.array_equal(a.stream.tokens, b.stream.tokens) and np.array_equal(a.samples.index, b.samples.index)


def test_what_each_source_gets_is_said() -> None:
    loader = mixed(corpus(wiki=7, books=3))
    epochs = 100 * loader.per_step * Fraction(307, 1024) / 12
    assert loader.mixture(["wiki", "books"]) == "mixture: wiki 70.0% of samples; books 30.0% of samples"
    assert f"books 30.0% of samples, {float(epochs):.2g} epochs" in loader.mixture(["wiki", "books"], 100)


def test_the_held_out_side_shows_each_piece_once_whatever_the_weights() -> None:
    loader = mixed(corpus(a=1, b=1000), shuffle=False)
    index = np.concatenate([b.samples.index for b in loader.once()])
    assert sorted(loader.order.piece(index).tolist()) == list(range(42))
    few = np.concatenate([loader.order.piece(b.samples.index) for b in loader.once(limit=14)])
    assert (few >= 30).sum() == 4 and len(few) == 14  # both sources, in proportion


# ---------------------------------------------------------------- preparing


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    wiki, books = tmp_path / "wiki.jsonl", tmp_path / "books.txt"
    wiki.write_text("\n".join(json.dumps({"text": f"Article {i} is about {i * i}."}) for i in range(80)))
    books.write_text("\n".join(f"chapter {i}: it was a dark and stormy night" for i in range(40)))
    return {"wiki": str(wiki), "books": str(books)}


def both(sources: dict[str, str], **more: object) -> CorpusConfig:
    books = {"path": sources["books"], "document": "line", **more}
    return CorpusConfig.model_validate({"sources": {"wiki": sources["wiki"], "books": books}, "valid_fraction": 0.1})


def test_documents_of_a_source_stand_together_and_a_share_of_each_is_held_out(
    sources: dict[str, str], tmp_path: Path
) -> None:
    made = prepare(both(sources), None, BYTE, tmp_path / "c", quiet)
    assert set(made.counts) == {"wiki", "books"} and made.counts["books"].documents == 40
    for side in (made.train, made.valid):
        wiki, books = side.sources
        assert (wiki.name, wiki.first, books.name) == ("wiki", 0, "books") and side.first == (0, wiki.documents)
        texts = [made.tokenizer.decode(side.document(i)) for i in range(len(side))]
        assert all(t.startswith("Article") for t in texts[: books.first])
        assert all(t.startswith("chapter") for t in texts[books.first :]) and books.documents
    assert len(made.train) + len(made.valid) == 120
    summary = made.summary()
    assert summary["train"]["wiki"]["tokens"] + summary["train"]["books"]["tokens"] == len(made.train.tokens)
    assert summary["train"]["books"]["bytes_per_token"] == 1.0


def test_shares_and_places_of_sources_do_not_encode_anew_but_names_and_settings_do(
    sources: dict[str, str], tmp_path: Path
) -> None:
    said: list[str] = []
    made = prepare(both(sources), None, BYTE, tmp_path / "c", quiet)
    moved = tmp_path / "moved.txt"
    moved.write_bytes(Path(sources["books"]).read_bytes())
    for config in (
        both(sources, weight=5),
        both(sources).model_copy(update={"mix": "temperature", "temperature": 2.0}),
        both({**sources, "books": str(moved)}),
    ):
        assert prepare(config, None, BYTE, tmp_path / "c", said.append).directory == made.directory
    assert sum("re-using" in s for s in said) == 3
    for config in (
        both(sources, document="file"),
        CorpusConfig(sources=dict(reversed(both(sources).sources.items())), valid_fraction=0.1),
        both({**sources, "books": sources["wiki"]}),
    ):
        assert prepare(config, None, BYTE, tmp_path / "c", quiet).directory != made.directory


def test_a_mixture_may_be_the_held_out_side(sources: dict[str, str], tmp_path: Path) -> None:
    single = CorpusConfig(path=sources["wiki"])
    made = prepare(single, both(sources), BYTE, tmp_path / "c", quiet)
    assert made.train.sources == (Source("", 0, 80),)
    assert made.valid.sources == (Source("wiki", 0, 80), Source("books", 80, 40))
    assert made.valid_counts is not None and set(made.valid_counts) == {"wiki", "books"}
    turned = prepare(both(sources), single, BYTE, tmp_path / "c", quiet)
    assert [s.documents for s in turned.train.sources] == [80, 40] and len(turned.valid) == 80


def test_few_documents_of_one_source_are_split_by_position_which_names_it(
    sources: dict[str, str], tmp_path: Path
) -> None:
    said: list[str] = []
    made = prepare(both(sources, document="file"), None, BYTE, tmp_path / "c", said.append)
    assert any(s.startswith("books: 1 document only") for s in said)
    assert [s.documents for s in made.valid.sources][1] == 1
    assert [s.documents for s in made.train.sources][1] == 1


def test_a_source_without_training_text_is_a_named_error(sources: dict[str, str], tmp_path: Path) -> None:
    Path(sources["books"]).write_text("x")
    with pytest.raises(UserError, match=r"training part of .*books\.txt is empty"):
        prepare(both(sources).model_copy(update={"valid_fraction": 0.9}), None, BYTE, tmp_path / "c", quiet)


def test_a_source_that_encodes_to_nothing_is_a_named_error(sources: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(tokenizer_without_unknowns())
    with pytest.raises(UserError, match="the training part of books has no token"):
        prepare(both(sources), None, TokenizerConfig(file=str(tmp_path / "t.json")), tmp_path / "c", quiet)


def tokenizer_without_unknowns() -> str:
    """Of a capital A alone; what it lacks is dropped."""
    vocab = {"A": 0}
    return tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [])).to_str()


# ---------------------------------------------------------------- recipes


def test_sources_from_the_command_line(sources: dict[str, str]) -> None:
    given = [
        f"corpus.sources.wiki={sources['wiki']}",
        f"corpus.sources.books.path={sources['books']}",
        "corpus.sources.books.weight=2",
        "corpus.sources.wiki.weight=1e-1",
        "corpus.sources.2024=2024",
        "corpus.mix=weight",
    ]
    corpus = load_text(given).corpus
    assert {name: (s.path, s.weight) for name, s in corpus.sources.items()} == {
        "wiki": (sources["wiki"], 0.1),
        "books": (sources["books"], 2.0),
        "2024": ("2024", 1.0),
    }
    assert load_recipe("encoder-small", given).corpus == corpus
    assert load_text([*reversed(given[:4]), *given[4:]]).corpus.sources["books"].weight == 2


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["corpus.sources.a=x", "corpus.sources.a.wieght=2"], r"unknown key 'corpus.sources.a.wieght' .*mean 'weight'"),
        (["corpus.sources.a=x", "corpus.sources.a.weight=heavy"], r"corpus.sources.a.weight='heavy' in .*number"),
        (["corpus.sources.a=x", "corpus.sources.a.weight=0"], r"corpus.sources.a.weight=0 in .*greater than 0"),
        (["corpus.sources.a.weight=2"], r"the source 'a' has no path"),
        (["corpus=x", "corpus.sources.a=y"], "give a path, or sources"),
        (["corpus.sources=x"], r"corpus.sources='x' in .* names no sources: write corpus.sources.NAME=PATH"),
        (["corpus.sources.a=x", "corpus.mix=wieght"], r"corpus.mix='wieght' in .*'weight'"),
        (["corpus.sources.a=x", "corpus.sources.a.filter.min_charcters=2"], "mean 'min_characters'"),
        (["corpus.sources.a=x", "corpus.sources.a.document=regex"], r"corpus.sources.a: document=regex and separator"),
        (["corpus.soruces.a=x"], "mean 'sources'"),
        (["valid=x"], "no corpus"),
    ],
)
def test_errors_of_mixtures_are_one_sentence(given: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load_text(given)
    with pytest.raises(UserError, match=sentence):
        load_recipe("encoder-small", given)


def test_the_command_line_replaces_a_recipes_mixture_by_a_path_and_a_path_by_a_mixture(tmp_path: Path) -> None:
    recipe = yaml.safe_load(Path(str(Path(__file__).parents[2] / "src/unmask/recipes/encoder-small.yaml")).read_text())
    mixture, single = tmp_path / "mixture.yaml", tmp_path / "single.yaml"
    mixture.write_text(yaml.safe_dump({**recipe, "corpus": {"sources": {"a": "x"}, "mix": "weight", "strict": True}}))
    single.write_text(yaml.safe_dump({**recipe, "corpus": "x"}))
    corpus = load_recipe(str(mixture), ["corpus=y"]).corpus
    assert (corpus.path, corpus.sources, corpus.strict) == ("y", {}, True)
    corpus = load_recipe(str(single), ["corpus.sources.b=y"]).corpus
    assert corpus.path == "" and list(corpus.sources) == ["b"]
    given = ["corpus.strict=true", "corpus.sources.b=y", "corpus.sources.c.path=z", "corpus.sources.c.strict=false"]
    corpus = load_recipe(str(single), given).corpus
    assert [s.strict for s in corpus.sources.values()] == [True, False]
    assert list(load_recipe(str(mixture), ["corpus.sources.b=y"]).corpus.sources) == ["a", "b"]
