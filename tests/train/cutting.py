"""Real runs, cut by signals: `python cutting.py OUT PLAN.json` trains the run in OUT in many lives, then to its end.

PLAN holds the command's words and the lives: which signal, after how many updates, and what to wait for then ("save": a
half-written checkpoint; a number: so many seconds). The imports are paid once: each life is a forked process that
calls the command line, as the shell does. Prints a JSON line for each life, then one for the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

PATIENCE = 900.0
"""Seconds that a life may take until it is where it is cut."""


def main() -> None:
    import torch

    import unmask.run  # noqa: F401  (what a life would import)
    from unmask.cli import main as command

    out, plan = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    torch.set_num_threads(1)
    os.fsync = lambda handle: None  # a disk that other tests keep busy; no test can show what it guards against
    words = [*plan["words"], f"out={out}", "resume=auto"]
    for life in plan["lives"]:
        child = _born(command, words, out / "said.txt")
        inside = _wait(child, out, life)
        os.kill(child, getattr(signal, life["signal"]))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({**life, "exit": code, "updates": updates(out), "writing": inside}), flush=True)
    child = _born(command, words, out / "said.txt")
    print(json.dumps({"exit": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}), flush=True)


def _born(command: Any, words: list[str], said: Path) -> int:
    """A life of the run; what it says is added to a file."""
    child = os.fork()
    if child:
        return child
    said.parent.mkdir(parents=True, exist_ok=True)
    with open(said, "a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 2)
        os.dup2(file.fileno(), 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    sys.argv = ["unmask", "pretrain", *words]
    code: Any = 1
    try:
        command()
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # a fork that ends by _exit would keep it to itself
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(int(code or 0))


def _wait(child: int, out: Path, life: dict[str, Any]) -> bool:
    """Until the life is where it is to be cut; whether a checkpoint was half-written then."""
    until = time.monotonic() + PATIENCE
    while updates(out) < life["updates"]:
        _alive(child, until)
        time.sleep(0.01)  # a short nap would take the time of the run itself on a busy machine
    if life["then"] == "save":
        while not _writing(out):
            _alive(child, until)
            time.sleep(0.0005)
        time.sleep(life["late"])
    else:
        time.sleep(life["then"])
    return _writing(out)


def _alive(child: int, until: float) -> None:
    if os.waitpid(child, os.WNOHANG) != (0, 0):
        raise SystemExit("the run ended before it was cut")
    if time.monotonic() > until:
        os.kill(child, signal.SIGKILL)
        raise SystemExit("the run did not come to where it was to be cut")


def _writing(out: Path) -> bool:
    return any((out / "checkpoints").glob(".writing-*"))


def updates(out: Path) -> int:
    """Lines of metrics so far."""
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


if __name__ == "__main__":
    main()
