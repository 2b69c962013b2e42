"""Chromium by the DevTools protocol over pipes: no port, no driver, no library."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE_S

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
FREE_FD = 10
"""Below are those that Chromium has for the protocol."""

DEADLINE_S = 60.0
KEY_CODES = {"Escape": 27, "ArrowUp": 38, "ArrowDown": 40}
OPTIONS = (
    *("--headless", "--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage", "--disable-breakpad"),
    *("--disable-crash-reporter", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-extensions", "--remote-debugging-pipe"),
)


class BrowserFailure(Exception):
    """Chromium refused a command, or did not answer."""


@dataclass
class Browser:
    """One process of Chromium.

    Attributes:
        problems: Console messages, exceptions, refused resources and requests since the page was opened.
    """

    profile: Path
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        ours, theirs = _pipe(), _pipe()
        # Chromium reads file descriptor 3 and writes 4; bash, for sh may know numbers of one digit alone.
        command = ["bash", "-c", f'exec "$0" "$@" 3<&{ours[0]} 4>&{theirs[1]}', str(CHROMIUM), *OPTIONS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={self.profile}", "about:blank"],
            pass_fds=(ours[0], theirs[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._out, self._in = ours[1], theirs[0]
        self._number, self._unread = 0, b""
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def version(self) -> str:
        """Name and version of the browser."""
        return str(self.call("Browser.getVersion")["product"])

    def open(self, path: Path, *, width: int = 1280, scheme: str = "light", ready: str = "") -> None:
        """Opens a file and waits until a piece of JavaScript is true."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.problems.clear()
        self.requests.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for(ready or "document.readyState === 'complete'")

    def wait_for(self, script: str) -> None:
        """Waits until a piece of JavaScript is true."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.run(script):
            if time.monotonic() > deadline:
                raise BrowserFailure(f"never true: {script}; {self.problems}")
            time.sleep(0.02)

    def run(self, script: str) -> Any:  # whatever the page has
        """The value of a piece of JavaScript, of a promise once it is kept."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise BrowserFailure(found["exceptionDetails"]["exception"]["description"])
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Presses and releases a key."""
        more = {"text": key} if len(key) == 1 else {"windowsVirtualKeyCode": KEY_CODES[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path) -> None:
        """A screenshot, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """One call of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session and not method.startswith("Browser."):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise BrowserFailure(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def close(self) -> None:
        """Ends the process."""
        try:
            self.call("Browser.close")
            self._process.wait(PATIENCE_S)
        except (BrowserFailure, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            os.close(self._out)
            os.close(self._in)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            if not select.select([self._in], [], [], DEADLINE_S)[0]:
                raise BrowserFailure("no answer")
            if not (more := os.read(self._in, 1 << 20)):
                raise BrowserFailure("Chromium has ended")
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(json.dumps(parameters["args"])[:500])
        elif method == "Log.entryAdded":
            self.problems.append(parameters["entry"]["text"][:500])


def _pipe() -> tuple[int, int]:
    """A pipe whose ends have high numbers."""
    low = os.pipe()
    reads, writes = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, FREE_FD) for end in low)
    for end in low:
        os.close(end)
    return reads, writes
