"""A real browser, driven over its debugging pipe (Chrome DevTools Protocol) with the standard library alone.

Debian's package: `apt-get install chromium`. Real key presses, media and sizes; what it writes to its console is kept.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
KEYS = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


def program() -> str | None:
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Browser:
    """One headless browser with one page."""

    def __init__(self, executable: str) -> None:
        self.folder = tempfile.mkdtemp(prefix="unmask-browser-")
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        low, high = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 30) for fd in (theirs_in, theirs_out))

        def pipes() -> None:
            os.dup2(low, 3)
            os.dup2(high, 4)

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        quiet = ["--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage"]
        self.process = subprocess.Popen(
            [executable, *flags, *quiet, f"--user-data-dir={self.folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=pipes,
        )
        for fd in (low, high, theirs_in, theirs_out):
            os.close(fd)
        self.reads, self.writes, self.held, self.number = ours_in, ours_out, b"", 0
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.session = None
        try:
            self.call("Browser.close")
            self.process.wait(10)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.reads)
        os.close(self.writes)
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method: str, **settings: Any) -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": settings}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writes, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _next(self, limit: float = 30.0) -> dict[str, Any]:
        until = time.monotonic() + limit
        while b"\0" not in self.held:
            if not select.select([self.reads], [], [], max(0.0, until - time.monotonic()))[0]:
                raise RuntimeError("the browser does not answer")
            more = os.read(self.reads, 1 << 20)
            if not more:
                raise RuntimeError("the browser has ended")
            self.held += more
        message, _, self.held = self.held.partition(b"\0")
        return json.loads(message)

    def open(
        self, file: Path, *, width: int = 1200, dark: bool = False, script: bool = True, print_: bool = False
    ) -> None:
        self.events.clear()
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.resize(width)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="print" if print_ else "screen", features=[scheme])
        self.call("Page.navigate", url=file.resolve().as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._next())

    def resize(self, width: int, height: int = 900) -> None:
        phone = width < 500
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1 + phone, mobile=phone
        )

    def run(self, code: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:500])
        return answer["result"].get("value")

    def press(self, key: str, shift: bool = False) -> None:
        code = KEYS[key]
        held = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        text = {"text": {" ": " ", "Enter": "\r"}[key]} if key in (" ", "Enter") else {}
        for kind in ("keyDown", "keyUp"):
            extra = text if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, modifiers=8 * shift, **held, **extra)

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and refused loads since the page was opened."""
        self.run("1")  # whatever came before it has arrived
        found = []
        for event in self.events:
            kind, said = event.get("method"), event.get("params", {})
            if kind == "Runtime.exceptionThrown" or (
                kind == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert")
            ):
                found.append(json.dumps(said)[:300])
            elif kind == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
                found.append(said["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """What the page asked for, the page itself aside."""
        sent = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in sent[1:] if not url.startswith("data:")]

    def picture(self, file: Path, whole: bool = True) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))

    def paper(self) -> bytes:
        """The page as a PDF."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def spoken(self) -> list[dict[str, Any]]:
        """What assistive technology is told: role and name of each node that it does not pass over."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            {"role": n["role"]["value"], "name": n.get("name", {}).get("value", "")}
            for n in nodes
            if not n.get("ignored")
        ]
