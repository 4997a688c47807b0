"""A headless Chromium, spoken to through two pipes in its own protocol: no driver and no package in between."""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time

import pytest

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Where a browser must be there, as in .ci/run, its absence is an error and no reason to skip.
needed = pytest.mark.skipif(
    PROGRAM is None and os.environ.get("BIEQNO_BROWSER_TESTS") != "required",
    reason="there is no Chromium on this machine",
)
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--enable-unsafe-swiftshader",  # WebGL without a graphics card, for figures in three dimensions
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
_ADVICE = ("willReadFrequently", "GPU stall due to ReadPixels")  # how Plotly's WebGL could be faster, not what is wrong
PATIENCE = 60.0  # seconds for an answer; a start on a busy machine takes some


class Chromium:
    """One browser with one page. `events` holds all that the browser told by itself: requests, exceptions, messages."""

    def __init__(self, profile):
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # Chromium reads from 3 and writes to 4; a shell puts the pipes there without disturbing what Python uses.
        start = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", start, PROGRAM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out, self._buffer = ours_in, ours_out, b""
        self._numbers = itertools.count(1)
        self._session = None
        self.events = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Send a command and wait for its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _receive(self):
        while b"\0" not in self._buffer:
            assert select.select([self._in], [], [], PATIENCE)[0], "the browser does not answer"
            more = os.read(self._in, 1 << 16)
            assert more, "the browser is gone"
            self._buffer += more
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, path, *, width, height, theme, scripts=True):
        """Load a page from disk as a screen of that size and theme shows it, and wait until its script has run."""
        self.events.clear()
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[
                {"name": "prefers-color-scheme", "value": theme},
                {"name": "prefers-reduced-motion", "value": "reduce"},
            ],
        )
        self.call("Page.navigate", url=path.as_uri())
        ready = "'complete'" if not scripts else "'complete' && document.documentElement.dataset.ready === 'yes'"
        self.wait(f"location.protocol === 'file:' && document.readyState === {ready}")

    def wait(self, condition):
        """Wait until an expression in the page is true."""
        deadline = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < deadline, f"not true in time: {condition}; {self.complaints()}"
            time.sleep(0.05)

    def run(self, script):
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def key(self, name):
        """Press a key where the focus is."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def mouse(self, kind, x, y, buttons=0):
        """Move or press the mouse at a place of the window."""
        button = "left" if buttons or kind == "mouseReleased" else "none"
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=buttons, clickCount=1)

    def requests(self):
        """Addresses that the page asked for, without those that it carries itself."""
        asked = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith("data:")]

    def complaints(self):
        """Exceptions, and messages of the console that are errors or warnings."""
        found = []
        for event in self.events:
            told = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(
                    told["exceptionDetails"].get("exception", {}).get("description", told["exceptionDetails"]["text"])
                )
            if event.get("method") == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
                found.append(told["args"])
            if event.get("method") == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                found.append(told["entry"]["text"])
        return [one for one in found if not any(words in str(one) for words in _ADVICE)]

    def screenshot(self, path, *, full=True):
        """A picture of the page."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=full)["data"]))

    def picture(self, element):
        """What is seen of an element, given by an expression, as PNG."""
        area = self.run(
            f"(({{x, y, width, height}}) => ({{x, y: y + scrollY, width, height}}))({element}.getBoundingClientRect())"
        )
        return self.call("Page.captureScreenshot", captureBeyondViewport=True, clip={**area, "scale": 1})["data"]

    def close(self):
        """End the browser."""
        with contextlib.suppress(OSError):
            os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        self._process.wait(timeout=PATIENCE)
