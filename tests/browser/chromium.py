"""A headless Chromium, controlled over the DevTools protocol: mouse, keys, touch and pixels.

Messages are JSON texts, each followed by a zero byte, over a pair of pipes
(--remote-debugging-pipe); see https://chromedevtools.github.io/devtools-protocol/.
"""

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TIMEOUT = 60.0
LAUNCH = 'exec "${@:3}" 3<&"$1" 4>&"$2"'
"""Starts Chromium in bash with the pipes on descriptors 3 (commands) and 4 (answers)."""
TYPED = {"Enter": "\r"}


@contextmanager
def chromium(profile: Path) -> Iterator["Browser"]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "install Debian's chromium"
    commands, answers = os.pipe(), os.pipe()
    options = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
        *("--no-first-run", "--hide-scrollbars", f"--user-data-dir={profile}"),
    ]
    process = subprocess.Popen(
        ["bash", "-c", LAUNCH, "bash", str(commands[0]), str(answers[1]), program, *options],
        pass_fds=(commands[0], answers[1]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands[0])
    os.close(answers[1])
    browser = Browser(commands[1], answers[0])
    try:
        yield browser
        browser.call("Browser.close")
    finally:
        os.close(commands[1])
        os.close(answers[0])
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Browser:
    def __init__(self, send_to: int, read_from: int) -> None:
        self.send_to, self.read_from = send_to, read_from
        self.number = 0
        self.rest = b""
        self.events: list[dict[str, Any]] = []
        self.pages: list[Page] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        content = memoryview(json.dumps(message).encode() + b"\0")
        while content:
            content = content[os.write(self.send_to, content) :]
        while (answer := self._read()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.read_from], [], [], deadline - time.monotonic())
            assert ready, "the browser does not answer"
            content = os.read(self.read_from, 1 << 20)
            assert content, "the browser has ended"
            self.rest += content
        message, _, self.rest = self.rest.partition(b"\0")
        return dict(json.loads(message))

    def open(self, url: str, **options: Any) -> "Page":
        self.pages.append(Page(self, url, **options))
        return self.pages[-1]

    def close(self, count: int) -> None:
        """Close all pages but the first ``count``: a page that is open computes on."""
        for page in self.pages[count:]:
            self.call("Target.closeTarget", targetId=page.target)
        del self.pages[count:]
        left = {page.session for page in self.pages}
        self.events = [event for event in self.events if event.get("sessionId") in left]


class Page:
    def __init__(
        self, browser: Browser, url: str, *, size=(1280, 800), dark=False, phone=False
    ) -> None:
        self.browser, self.url = browser, url
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(*size, phone=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        sizes = {"width": width, "height": height, "deviceScaleFactor": 2}
        self.call("Emulation.setDeviceMetricsOverride", mobile=phone, **sizes)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def events(self, *methods: str) -> list[dict[str, Any]]:
        self.evaluate("0")  # events that were sent earlier have arrived when this is answered
        return [
            event["params"]
            for event in self.browser.events
            if event.get("sessionId") == self.session and event["method"] in methods
        ]

    def console_messages(self) -> list[dict[str, Any]]:
        return self.events("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")

    def requests(self) -> list[str]:
        """Return the requested addresses, without the page's own and without data URIs."""
        sent = [event["request"]["url"] for event in self.events("Network.requestWillBeSent")]
        return [url for url in sent if url != self.url and not url.startswith("data:")]

    def evaluate(self, expression: str) -> Any:
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"never true: {condition}"
            time.sleep(0.02)

    def print_on(self, width: int) -> None:
        """Show the page as it is printed on paper of this width, in CSS pixels."""
        self.call("Emulation.setEmulatedMedia", media="print")
        self.resize(width, 1000)

    def overflow(self) -> int:
        root = "document.documentElement"
        return int(self.evaluate(f"{root}.scrollWidth - {root}.clientWidth"))

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def tap(self, x: float, y: float) -> None:
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key: str) -> None:
        typed = TYPED.get(key, key)
        text = {"text": typed} if len(typed) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
