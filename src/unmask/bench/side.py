"""The child process of a row's side: python -m unmask.bench.side ROW SIDE FOLDER (`turns`)."""

from __future__ import annotations

import sys
from pathlib import Path

from unmask.bench.base import Figure
from unmask.bench.rows import row
from unmask.bench.turns import Baton, tell

if __name__ == "__main__":
    name, side, folder = sys.argv[1:]
    sys.stdout = sys.stderr  # what libraries print must not stand between the answers
    one = row(name)
    if isinstance(one, Figure):
        tell(one.sides[side](Path(folder)))
    else:
        worker = one.sides[side](Path(folder))
        baton = Baton(worker.tokens, worker.about)
        worker.run(baton.tick)
