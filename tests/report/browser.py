"""Chromium without a window, driven through a pipe by its DevTools protocol: what a user sees, clicks and types."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--remote-debugging-pipe",
)  # fmt: skip
# Chromium listens on descriptor 3 and answers on 4
AS_3_AND_4 = (
    "import os,sys; r,w=map(int,sys.argv[1:3]); os.dup2(r,3); os.dup2(w,4); os.execvp(sys.argv[3],sys.argv[3:])"
)
SECONDS = 30
KEYS = {
    "Tab": 9, "Enter": 13, "Escape": 27, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
}  # fmt: skip


def find():
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def browser(profile):
    """A running Chromium with one tab; it is closed whatever happens."""
    commands, answers = os.pipe(), os.pipe()
    theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands[0], answers[1])]
    for end in (commands[0], answers[1]):
        os.close(end)
    start = [sys.executable, "-c", AS_3_AND_4, *map(str, theirs), find(), *FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(start, pass_fds=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for end in theirs:
        os.close(end)
    with os.fdopen(commands[1], "wb") as to, os.fdopen(answers[0], "rb") as back:
        try:
            yield Tab(to, back)
        finally:
            process.kill()
            process.wait(SECONDS)


class Tab:
    """A tab: what it logged and requested, and how to use it."""

    def __init__(self, to, back):
        self.to, self.back, self.number, self.session = to, back, 0, None
        self.errors, self.requests, self.unread = [], [], b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        self.to.write(json.dumps(message).encode() + b"\0")
        self.to.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _next(self):
        while b"\0" not in self.unread:
            more = self.back.read1(1 << 16)
            assert more, "the browser has gone"
            self.unread += more
        message, _, self.unread = self.unread.partition(b"\0")
        answer = json.loads(message)
        self._note(answer.get("method"), answer.get("params"))
        return answer

    def _note(self, event, what):
        if event == "Runtime.exceptionThrown":
            self.errors.append(what["exceptionDetails"].get("exception", {}).get("description", str(what)))
        elif event == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.errors.append(str([argument.get("value") for argument in what["args"]]))
        elif event == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.errors.append(what["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])

    def open(self, place, width=1280, height=900, theme="light"):
        self.errors.clear()
        self.requests.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.call("Page.navigate", url=place if isinstance(place, str) else place.as_uri())
        self.wait("document.readyState === 'complete' && !!window.cascadice")
        self.settle()

    def settle(self):
        """Wait for two frames, so that everything is drawn."""
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def wait(self, condition):
        script = (
            f"new Promise(done => {{ const look = () => ({condition}) ? done(true) : setTimeout(look, 20); look(); }})"
        )
        assert self.js(script)

    def js(self, expression):
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self, selector):
        return self.js(f"document.querySelector({json.dumps(selector)}).textContent")

    def click(self, selector):
        """Click the middle of the element with the mouse."""
        find_it = f"document.querySelector({json.dumps(selector)})"
        self.js(f"{find_it}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        self.settle()
        box = self.js(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({find_it}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)
        self.settle()

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            more = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=KEYS[key], **more)
        self.settle()

    def write(self, text):
        self.call("Input.insertText", text=text)
        self.settle()

    def screenshot(self, path, whole=True):
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))
