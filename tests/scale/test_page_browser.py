"""The page of a ladder in a real browser: phone, dark, keyboard, contrast, no complaint and no request."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from compare.browser import Browser, program
from compare.test_browser import CONTRAST, FOCUS, UNFOLD, WIDE
from unmask.scale.report import results, write
from unmask.scale.study import Asked, study

from .helpers import ladder

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = program()
    if found is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with Browser(found) as started:
        yield started


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    found = study(ladder(0.003, seed=1), Asked(holdout="largest", budgets=(1e22, 1e23), resamples=100))
    write(found, folder, results(found, "unmask scale fit points.jsonl"))
    return folder / "report.html"


@pytest.mark.parametrize("width", [320, 360, 768, 1200])
def test_it_fits_and_says_nothing_to_the_console(browser: Browser, file: Path, width: int) -> None:
    browser.open(file, width=width)
    browser.run(UNFOLD)
    wide, inner = browser.run(WIDE)
    assert inner == width and wide <= width
    assert browser.complaints() == [] and browser.requests() == []
    assert browser.run("[...document.querySelectorAll('.chart')].every((c) => c.checkVisibility())")


def test_on_a_phone_words_are_large_enough_and_names_stand_apart(browser: Browser, file: Path) -> None:
    browser.open(file, width=360)
    sizes = browser.run("""[...document.querySelectorAll("body *:not(.unseen)")].filter((e) => e.checkVisibility())
        .map((e) => parseFloat(getComputedStyle(e).fontSize))""")
    assert min(sizes) >= 12
    for k in range(4):
        places = browser.run(f"""[...document.querySelectorAll(".chart")[{k}].querySelectorAll(".name")]
            .map((e) => e.getBoundingClientRect()).map((r) => [r.top, r.bottom, r.right])""")
        order = sorted(places)
        assert all(b[0] >= a[1] - 3 for a, b in itertools.pairwise(order))
        assert max(p[2] for p in places) <= 360
        ticks = browser.run(f"""[...document.querySelectorAll(".chart")[{k}].querySelectorAll(".x")]
            .map((e) => e.getBoundingClientRect()).map((r) => [r.left, r.right])""")
        assert all(b[0] >= a[1] for a, b in itertools.pairwise(sorted(ticks))), k


@pytest.mark.parametrize("dark", [False, True])
def test_contrast_is_enough(browser: Browser, file: Path, dark: bool) -> None:
    browser.open(file, dark=dark)
    browser.run(UNFOLD)
    found = browser.run(CONTRAST)
    assert len(found) > 300 and [f for f in found if f["ratio"] < 4.5] == []


def test_keyboard_and_screen_reader(browser: Browser, file: Path) -> None:
    browser.open(file)
    for _ in range(8):
        browser.press("Tab")
        focus = browser.run(FOCUS)
        assert focus["ring"] == "solid" and float(focus["wide"].removesuffix("px")) >= 2, focus
    spoken = browser.spoken()
    images = [n["name"] for n in spoken if n["role"] == "image"]
    assert len(images) == 4 and images[0].startswith("Loss by size for each budget.")
    assert {"Held-out larger runs", "Best N and D"} <= {n["name"] for n in spoken if n["role"] == "table"}
    back = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(back)
    browser.run("document.getElementById('theme').focus()")
    browser.press("Enter")
    assert browser.run(back) != light
