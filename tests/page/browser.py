"""A browser without a window, driven over its own protocol (CDP), and servers to look at."""

import base64
import json
import os
import subprocess
import tempfile
import time
import urllib.request

from websockets.sync.client import connect

PATIENCE = 30


def until(what, condition):
    """Waits until `condition()` gives something; fails with `what` otherwise."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(what() if callable(what) else what)


class Server:
    """A server with the page."""

    def __init__(self, *arguments, port="0", http="0"):
        environment = dict(os.environ, HEADWATER_LOG_LEVEL="info")
        self.process = subprocess.Popen(
            [os.environ["HEADWATER"], "serve", "--port", port, "--http-port", http, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        )
        for line in self.process.stdout:
            if line.startswith("HTTP on "):
                self.http = line.split()[-1]
            if " ready on " in line:
                self.port = int(line.rsplit(":", 1)[1])
                break
        else:
            raise AssertionError(f"the server ended before it was ready: {self.process.wait()}")

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Browser:
    """Chromium, with one page at a time."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [os.environ["CHROMIUM"], "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--remote-debugging-port=0", "--no-first-run", "--disable-background-networking", "--disable-component-update",
             f"--user-data-dir={self.folder.name}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for line in self.process.stderr:
            if "DevTools listening on " in line:
                self.port = int(line.split(":")[-1].split("/")[0])
                break

    def open(self, url, **how):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/json/new?about:blank", method="PUT")
        target = json.load(urllib.request.urlopen(request, timeout=PATIENCE))
        return Tab(target["webSocketDebuggerUrl"], url, **how)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        self.folder.cleanup()


class Tab:
    """One page: what it shows, what it has asked for, and what it has complained of."""

    def __init__(self, address, url, width=1280, height=900, dark=False):
        self.socket = connect(address, max_size=None, open_timeout=PATIENCE)
        self.number = 0
        self.requests, self.complaints = [], []
        self.expected = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        until("the page does not load", lambda: self.eval("document.readyState") == "complete")

    def call(self, method, **parameters):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv(timeout=PATIENCE))
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]
            self.hear(message)

    def hear(self, message):
        parameters = message.get("params", {})
        if message["method"] == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif message["method"] == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        elif message["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(parameters["args"]))
        elif message["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"] + " " + parameters["entry"].get("url", ""))
        elif message["method"] == "Page.javascriptDialogOpening":
            self.number += 1
            self.socket.send(json.dumps({"id": self.number, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}))

    def eval(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def text(self):
        return self.eval("document.body.innerText")

    def sees(self, text):
        until(lambda: f"{text!r} is not in:\n{self.text()}", lambda: text in (self.text() or ""))

    def click(self, selector):
        found = f"document.querySelector({json.dumps(selector)})"
        until(f"there is no {selector}", lambda: self.eval(f"!!{found} && !{found}.disabled"))
        # Not awaited: it may open a dialog.
        self.eval(f"void setTimeout(() => {found}.click())")

    def type(self, selector, text):
        until(f"there is no {selector}", lambda: self.eval(f"!!document.querySelector({json.dumps(selector)})"))
        self.eval(f"document.querySelector({json.dumps(selector)}).focus(), document.querySelector({json.dumps(selector)}).value = ''")
        self.call("Input.insertText", text=text)

    def press(self, key, code=None, modifiers=0):
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
        text = {"Enter": "\r", " ": " "}.get(key)
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key,
                      windowsVirtualKeyCode=codes[key], modifiers=modifiers, **more)

    def go(self, fragment):
        self.eval(f"location.hash = {json.dumps(fragment)}")

    def picture(self, name):
        folder = os.environ.get("SCREENSHOTS")
        if folder:
            os.makedirs(folder, exist_ok=True)
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 3000), "scale": 1}
            taken = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
            with open(os.path.join(folder, f"{name}.png"), "wb") as file:
                file.write(base64.b64decode(taken["data"]))

    def is_clean(self, own):
        """Nothing was asked of elsewhere, and nothing was complained of but what the test expects."""
        self.eval("1")
        elsewhere = [url for url in self.requests if not url.startswith((f"http://{own}/", "data:", "blob:", "about:"))]
        assert elsewhere == []
        left = [it for it in self.complaints if not any(known in it for known in self.expected)]
        assert left == []

    def is_accessible(self, what):
        """No violation that axe-core finds."""
        axe = os.environ.get("AXE")
        if not axe:
            return
        with open(axe) as file:
            # Evaluated from outside: the page's own policy would let no such script in.
            self.eval(file.read() + ";1")
        found = self.eval("axe.run(document, {resultTypes: ['violations']}).then(it => JSON.stringify("
                          "it.violations.map(v => [v.id, v.help, v.nodes.map(n => n.html + ' ' + n.failureSummary)])))")
        assert json.loads(found) == [], f"{what}: {found}"

    def close(self):
        self.socket.close()
