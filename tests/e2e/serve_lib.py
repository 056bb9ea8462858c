"""A running `tern serve` for the tests, and small helpers; the standard library of Python alone.

Everything goes to 127.0.0.1 or a Unix socket, and ends with the test.
"""
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

TERN = os.environ["TERN"]
MODEL = os.environ["TOOLS_MODEL"]  # a template with tools and reasoning
TIMEOUT = 120

# Ids of that model which are whole texts (tests/support/make_text_model.c).
CALL, THINK, HALF_CALL, DONE, CONTROL = 300, 301, 302, 303, 298

checks = 0
complaints = []


def check(ok, *what):
    global checks
    checks += 1
    if not ok:
        text = " ".join(str(w) for w in what)
        complaints.append(text)
        print("FAILED:", text[:2000], flush=True)


def same(a, b, *what):
    check(a == b, *what, f": {a!r} is not {b!r}")


def finish():
    print(f"{checks} checks, {len(complaints)} complaints")
    sys.exit(1 if complaints or not checks else 0)


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)


class Server:
    """`with Server("--option", ...) as s:`"""

    def __init__(self, *options, model=MODEL, port=True, env={}):
        self.errors = tempfile.TemporaryFile("w+")
        command = [TERN, "serve", "-m", model, "-t", "2", "--ping", "0.2"] + (["--port", "0"] if port else [])
        self.process = subprocess.Popen(command + list(options), env={**os.environ, **env}, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True)
        line = self.process.stdout.readline()
        match = re.match(r"listening on (https?|unix):(?://127\.0\.0\.1:)?(\S+)$", line.strip())
        check(match, "the server says where it listens:", line, self.said() if not match else "")
        if not match:
            finish()
        self.port = int(match[2]) if match[1] != "unix" else None
        self.path = match[2]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop(signal.SIGTERM)

    def said(self):
        self.errors.seek(0)
        return self.errors.read()

    def stop(self, sig):
        """Sends the signal and returns the exit status."""
        self.process.send_signal(sig)
        try:
            return self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            check(False, "the server did not end after a signal:", self.said())
            return None

    def socket(self):
        s = socket.create_connection(("127.0.0.1", self.port), TIMEOUT)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def ask(self, method, path, body=None, headers=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        data = body if isinstance(body, (bytes, str, type(None))) else json.dumps(body)
        c.request(method, path, data, headers or {})
        r = c.getresponse()
        answer = Answer(r.status, r.headers, r.read())
        c.close()
        return answer

    def get(self, path, **headers):
        return self.ask("GET", path, headers=headers)

    def post(self, path, body, headers=None):
        return self.ask("POST", path, body, headers)

    def chat(self, text="hello", **more):
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8, **more}
        return self.post("/v1/chat/completions", body)

    def complete(self, prompt="hello", **more):
        return self.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 8, **more})

    def events(self, path, body):
        """The events of a stream: (comments, [(event or None, data)])."""
        answer = self.post(path, body)
        same(answer.status, 200, path, answer.body)
        comments, out = [], []
        for block in answer.body.decode().split("\n\n"):
            event = data = None
            for line in block.split("\n"):
                if line.startswith(":"):
                    comments.append(line)
                elif line.startswith("event: "):
                    event = line[7:]
                elif line.startswith("data: "):
                    data = line[6:]
                else:
                    same(line, "", "a line of a stream")
            if data is not None:
                out.append((event, data))
        return comments, out

    def metric(self, name, model=None):
        """Of all models together, or of one."""
        found = []
        for line in self.get("/metrics").body.decode().split("\n"):
            match = re.match(re.escape(name) + r'(?:\{model="((?:[^"\\]|\\.)*)"\})? (\S+)$', line)
            if match and model in (None, match[1]):
                found.append(float(match[2]))
        check(found, "there is no metric", name)
        return sum(found)

    def wait_for(self, running, waiting, seconds=30):
        """True once the engine has so many requests."""
        end = time.time() + seconds
        while time.time() < end:
            if self.metric("tern_requests_running") == running and self.metric("tern_requests_waiting") == waiting:
                return True
            time.sleep(0.02)
        return False

    def wait_idle(self, seconds=30):
        """True once the engine has nothing to do."""
        return self.wait_for(0, 0, seconds)

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def memory(self):
        """Resident bytes."""
        with open(f"/proc/{self.process.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def raw(server, data, wait=5.0):
    """Sends bytes and returns all that comes back until the server closes or `wait` seconds pass."""
    s = server.socket()
    s.settimeout(wait)
    out = b""
    try:
        s.sendall(data)
        while True:
            piece = s.recv(65536)
            if not piece:
                break
            out += piece
    except (socket.timeout, ConnectionError):
        pass
    s.close()
    return out


def status_of(data):
    match = re.match(rb"HTTP/1\.1 (\d+) ", data)
    return int(match[1]) if match else None


def wire(path, body=None):
    """A request as bytes, on a connection of its own: GET without a body, POST with one."""
    if body is None:
        return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


class Crowd:
    """Clients that ask until `over` is set: 30 of 100 times what has a sure answer (ask_sure), else something else
    (ask_other).  A crowd of a test's own says both."""

    def __init__(self, server, seed, want, clients):
        self.server, self.seed, self.want = server, seed, want
        self.over, self.lock = threading.Event(), threading.Lock()
        self.done = {"kept": 0, "cut": 0, "sure": 0, "busy": 0}
        self.threads = [threading.Thread(target=self.client, args=(i,)) for i in range(clients)]
        for t in self.threads:
            t.start()

    def note(self, what):
        with self.lock:
            self.done[what] += 1

    def client(self, i):
        rng = random.Random(self.seed * 1000 + i)
        while not self.over.is_set():
            try:
                if rng.random() < 0.3:
                    self.ask_sure(rng)
                else:
                    self.ask_other(rng)
            except OSError as problem:
                if not self.over.is_set():  # when the server ends, connections end
                    check(False, "a connection broke", problem)
                    return

    def end(self):
        self.over.set()
        for t in self.threads:
            t.join(150)
            check(not t.is_alive(), "a client hangs")


def reset_on_close(c):
    """The socket ends by a reset instead of a close."""
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def quiet(server):
    """Nothing was said but lines of the server's own."""
    said = server.said()
    for word in ("Sanitizer", "runtime error", "assertion", "SUMMARY"):
        check(word not in said, "it says:", said[-6000:])
