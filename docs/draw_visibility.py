"""Draw docs/visibility.svg: what each pattern lets a query see, computed by the rule itself.

python docs/draw_visibility.py
"""

from pathlib import Path

import numpy as np

from unmask.batch import INFINITY, same_block, visible

CELL, GAP, TOP = 13, 34, 46


def panels() -> list[tuple[str, str, np.ndarray]]:
    """(title, reveal and horizon, matrix) of each pattern: rows are queries, columns keys."""
    i, one = np.arange(6), np.ones(6, int)
    block = np.array([1, 1, 1, 2, 2, 2])
    within = np.array([0, 1, 2, 0, 1, 2])
    order = np.maximum(i - 3 + 1, 0)
    rank = np.array([1, 2, 0])
    reveal, horizon = np.r_[rank, [INFINITY] * 3], np.r_[rank, rank - 1]
    return [
        ("bidirectional", "0", visible(one, 0 * i, one, 0 * i)),
        ("causal", "i", visible(one, i, one, i)),
        ("prefix LM, p = 3", "max(i − p + 1, 0)", visible(one, order, one, order)),
        ("two packed texts", "causal, blocks 1 and 2", visible(block, within, block, within)),
        ("cross-attention", "block equality alone", same_block(block, np.array([1, 1, 2, 2, 2, 2]))),
        ("XLNet, order 2 0 1", "content r · queries ∞, r − 1", visible(one, horizon, one, reveal)),
    ]


def draw() -> str:
    """The picture as SVG, readable on light and dark pages."""
    width = 6 * CELL + GAP
    drawn = panels()
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width * len(drawn)} {TOP + 6 * CELL + 34}" '
        'font-family="system-ui, sans-serif" role="img" aria-label="Which keys each query sees, by pattern">',
        "<style>text{fill:#24292f}.t{font-size:10px;font-weight:600}.s{font-size:7.5px}.on{fill:#0969da}"
        ".off{fill:none;stroke:#8c959f;stroke-width:.5}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.on{fill:#4493f8}}</style>",
        f'<text class="s" x="4" y="{TOP + 6 * CELL + 22}">row: query · column: key · filled: '
        "block[q] = block[k] and reveal[k] ≤ horizon[q]</text>",
    ]
    for n, (title, vectors, seen) in enumerate(drawn):
        x = n * width + 4
        out.append(f'<text class="t" x="{x}" y="16">{title}</text><text class="s" x="{x}" y="30">{vectors}</text>')
        for (q, k), on in np.ndenumerate(seen):
            kind = "on" if on else "off"
            left, top = x + k * CELL, TOP + q * CELL
            out.append(f'<rect class="{kind}" x="{left}" y="{top}" width="{CELL - 2}" height="{CELL - 2}" rx="2"/>')
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_name("visibility.svg").write_text(draw(), encoding="utf-8")
