"""The web page of tern serve in a real browser, headless.  Without Chromium the test counts as skipped.

    serve_page.py [FOLDER]      also writes screenshots there
"""
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
if not BROWSER:
    sys.exit(77)

from serve_lib import Server, check, finish, same  # noqa: E402  (starts nothing)


class Browser:
    """One page, over the pipe of Chromium's debugging protocol."""

    def __init__(self, size):
        self.home = tempfile.TemporaryDirectory()
        to_read, self.out = os.pipe()
        self.into, to_write = os.pipe()

        def pipes():
            high = [os.dup2(to_read, 200), os.dup2(to_write, 201)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={self.home.name}",
                   "--window-size=%d,%d" % size, "about:blank"]
        self.process = subprocess.Popen(command, preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.rest, self.next, self.session, self.events = b"", 0, None, []
        target = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"][0]
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def receive(self):
        while b"\0" not in self.rest:
            piece = os.read(self.into, 65536)
            if not piece:
                raise EOFError("the browser has gone")
            self.rest += piece
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.next += 1
        message = {"id": self.next, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.next:
                return answer.get("result", answer)
            if "method" in answer:
                self.events.append(answer)

    def js(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            check(False, expression, r["exceptionDetails"])
            return None
        return r["result"].get("value")

    def until(self, expression, what, seconds=30):
        end = time.time() + seconds
        while time.time() < end:
            if self.js(expression):
                return True
            time.sleep(0.05)
        check(False, what, "does not happen:", expression, self.js("document.body.innerText"))
        return False

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && !!document.getElementById('text')", "the page")

    def key(self, key, code, text=None, shift=False):
        base = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", **base, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **base)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def shot(self, name):
        if len(sys.argv) > 1:
            data = self.call("Page.captureScreenshot", format="png")["data"]
            with open(os.path.join(sys.argv[1], name), "wb") as f:
                f.write(base64.b64decode(data))

    def scheme(self, value):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def close(self):
        self.process.terminate()
        self.process.wait(30)
        os.close(self.out)
        os.close(self.into)
        self.home.cleanup()


TURNS = "[...document.querySelectorAll('.turn')].map(t => [t.classList[1], t.querySelector('.body').textContent])"
IDLE = "document.getElementById('stop').hidden && document.querySelectorAll('.turn.assistant').length > 0"


def test_chat(s, b):
    b.js("document.getElementById('max_tokens').value = 12; document.getElementById('temperature').value = 0")
    same(b.js("document.activeElement.id"), "text", "the message has the focus")
    b.type("hello")
    b.key("Enter", 13, "\r", shift=True)
    b.type("there")
    same(b.js("document.getElementById('text').value"), "hello\nthere", "Shift+Enter begins a line")
    b.key("Enter", 13, "\r")
    b.until(IDLE, "an answer")
    turns = b.js(TURNS)
    same([t[0] for t in turns], ["user", "assistant"], "two turns")
    whole = s.chat("hello\nthere", max_tokens=12).json["choices"][0]["message"]["content"]
    same(turns[1][1], whole, "the text of the API")
    b.js("[...document.querySelectorAll('button')].find(x => x.textContent === 'Regenerate').click()")
    b.until(IDLE, "an answer again")
    same(b.js(TURNS), turns, "the same at temperature 0")
    b.js("document.querySelectorAll('.turn.user button')[0].click()")
    same((b.js("document.getElementById('text').value"), b.js(TURNS)), ("hello\nthere", []), "edit takes the message back")
    b.js("document.getElementById('text').value = '<img src=x onerror=alert(1)> **bold** `code`'")
    b.key("Enter", 13, "\r")
    b.until(IDLE, "an answer to that")
    same(b.js("document.querySelectorAll('.turn img').length"), 0, "text stays text")


def test_stop(s, b):
    b.js("document.getElementById('max_tokens').value = 7000; document.getElementById('text').value = 'long'")
    b.js("document.getElementById('ask').requestSubmit()")
    b.until("document.querySelectorAll('.turn.assistant:last-child .body')[0]?.textContent.length > 20 "
            "&& !document.getElementById('stop').hidden", "a long answer")
    b.key("Escape", 27)
    b.until(IDLE, "its end")
    check(s.wait_idle(5), "Escape stops the work")
    b.js("document.getElementById('max_tokens').value = 12")


def test_kept(b, url):
    before = b.js("document.querySelectorAll('#list li').length")
    b.js("document.getElementById('new').click()")
    same(b.js(TURNS), [], "a new conversation is empty")
    b.go(url)
    same(b.js("document.querySelectorAll('#list li').length"), before, "conversations outlive the page")
    b.js("document.querySelector('#list .open').click()")
    check(len(b.js(TURNS)) >= 2, "and can be opened")


def test_panel(b):
    b.until("document.getElementById('kvspec').textContent === 't4'", "the plan")
    same(b.js("document.getElementById('plan').childElementCount"), 3, "a bar per layer")
    b.until("Number(document.getElementById('generated').textContent) > 10", "the tokens so far")
    check("x)" in b.js("document.getElementById('kvtoken').textContent"), "bytes against 16 bits")


def test_accessible(b):
    unnamed = b.js("""[...document.querySelectorAll('button, input, textarea, select')].filter(e => !(e.ariaLabel || e.textContent.trim()
        || (e.labels && e.labels.length))).map(e => e.outerHTML)""")
    same(unnamed, [], "controls without a name")


def test_models(s, b):
    """With several models the panel has a choice, and remembers it."""
    b.until("document.getElementById('model').childElementCount === 2 && !document.getElementById('models').hidden", "a choice")
    b.js("document.getElementById('max_tokens').value = 12; document.getElementById('temperature').value = 0")
    for name in ("second", "tools"):
        b.js(f"document.getElementById('model').value = '{name}'; document.getElementById('model').onchange();"
             "document.getElementById('new').click(); document.getElementById('text').value = 'hello'")
        b.key("Enter", 13, "\r")
        b.until(IDLE, "an answer of " + name)
        turns = b.js(TURNS)
        same(turns[-1][1], s.chat(model=name, max_tokens=12).json["choices"][0]["message"]["content"], "it is of", name)
        b.until("document.getElementById('modelnote').textContent === 'It is loaded.'", "its state")
    same(s.metric("tern_model_loads_total", "second"), 1, "the other one was loaded")
    test_accessible(b)


with Server() as server:
    URL = f"http://127.0.0.1:{server.port}/"
    a = server.get("/")
    same((a.status, a.headers["Content-Type"]), (200, "text/html; charset=utf-8"), "the page")
    check("'sha256-" in a.headers["Content-Security-Policy"] and b"http" not in
          a.body.replace(b"http://www.w3.org/2000/svg", b""), "nothing from elsewhere")
    browser = Browser((1280, 800))
    browser.go(URL)
    test_chat(server, browser)
    test_stop(server, browser)
    test_panel(browser)
    test_accessible(browser)
    browser.scheme("light")
    browser.shot("serve-light.png")
    browser.scheme("dark")
    browser.shot("serve-dark.png")
    test_kept(browser, URL)
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=780, deviceScaleFactor=1, mobile=True)
    browser.until("getComputedStyle(document.getElementById('side')).display === 'none'", "a phone hides the panel")
    check(browser.js("document.documentElement.scrollWidth <= 390"), "nothing is wider than a phone")
    browser.shot("serve-phone.png")
    wrong = [e["params"] for e in browser.events if e["method"] == "Runtime.exceptionThrown" or
             (e["method"] == "Log.entryAdded" and e["params"]["entry"]["level"] in ("warning", "error"))]
    same(wrong, [], "errors in the browser")
    asked = {e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"}
    same([u for u in asked if not u.startswith((URL, "data:", "about:"))], [], "requests to elsewhere")
    with Server("-m", "second=" + os.environ["MODEL"]) as several:
        browser.go(f"http://127.0.0.1:{several.port}/")
        test_models(several, browser)
    browser.close()
finish()
