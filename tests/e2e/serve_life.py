"""tern serve: clients that leave, read slowly or come in crowds, and the end of the server.  Bounded in number and time,
and on 127.0.0.1 alone."""
import ctypes
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

from serve_lib import MODEL, TERN, TIMEOUT, Server, check, finish, same, status_of, wire

LONG = {"prompt": "hello", "max_tokens": 8000, "ignore_eos": True, "stream": True, "temperature": 0}

# AddressSanitizer keeps what was freed for a while and surrounds what is in use: sizes then say nothing.
SANITIZED = bool(os.environ.get("TERN_TEST_SANITIZED"))
# Attention to long prompts takes a sanitizer's build most of its time, and shows it nothing that shorter ones do not.
WORDS = 700 if SANITIZED else 3000


def request(path, body, more=b""):
    data = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n".encode() + more + b"\r\n" + data)


def stops(s, name, seconds=2.0):
    """The engine has nothing to do soon after a client left."""
    began = time.time()
    ok = s.wait_idle(30)
    check(ok and time.time() - began < seconds, name, "stops the work, took", round(time.time() - began, 2))


def half_closed(c, data):
    """All that comes back to a client that closes its side behind its request."""
    c.settimeout(TIMEOUT)
    c.sendall(data)
    c.shutdown(socket.SHUT_WR)
    got = b""
    while piece := c.recv(65536):
        got += piece
    c.close()
    return got


def test_half_closed(s):
    """nc -N: whoever sends no more may still read."""
    body = {"prompt": "hello", "max_tokens": 300, "temperature": 0, "ignore_eos": True, "logit_bias": {"65": 500}}
    before = s.metric("tern_http_disconnects_total")
    for data in (wire("/v1/completions", body), wire("/v1/completions", body).replace(b"Connection: close\r\n", b"")):
        got = half_closed(s.socket(), data)
        got = got.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        head, _, text = got.partition(b"\r\n\r\n")
        check(head.startswith(b"HTTP/1.1 200 ") and b"\r\nConnection: close" in head, "an answer", got[:300])
        same(json.loads(text)["choices"][0]["text"], "A" * 300, "which is whole")
    got = half_closed(s.socket(), wire("/v1/completions", {**body, "stream": True}))
    check(got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), "a stream", got[-200:])
    for _ in range(20):
        check(b'"status"' in half_closed(s.socket(), wire("/health")), "an answer at once")
    at = time.monotonic()
    got = half_closed(s.socket(), wire("/v1/completions", body).replace(b"Connection: close\r\n", b"") + b"\r\n")
    check(b"A" * 300 in got and time.monotonic() - at < 20, "an empty line behind the body", got[:200])
    got = half_closed(s.socket(), b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 300 + b"GET /x")
    same(got.count(b"HTTP/1.1 200 OK"), 300, "what stands in front of half a request")
    got = half_closed(s.socket(), (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + wire("/v1/completions", body)) * 2)
    same((got.count(b"HTTP/1.1 200 OK"), got.count(b"AAAA" * 75)), (2, 1), "requests that were sent ahead, up to Connection: close")
    same(s.metric("tern_http_disconnects_total"), before, "nobody has left")
    with tempfile.TemporaryDirectory() as d, Server("--unix", os.path.join(d, "socket"), port=False) as unix:
        def ask(data, sends_no_more):
            c = socket.socket(socket.AF_UNIX)
            c.connect(unix.path)
            if sends_no_more:
                return half_closed(c, data)
            c.sendall(data)
            c.close()
        check(ask(wire("/v1/completions", body), True).startswith(b"HTTP/1.1 200 "), "by a Unix socket")
        ask(request("/v1/completions", {**LONG, "stream": False}), False)
        for _ in range(100):
            left = re.search(rb"tern_http_disconnects_total(?:{[^}]*})? (\d+)", ask(wire("/metrics"), True))
            if left and int(left[1]):
                break
            time.sleep(0.05)
        check(left and int(left[1]) == 1, "who leaves there is noticed", left)


def test_disconnect(s):
    for name, body, wait in (("in decode, streaming", LONG, 0.3), ("in decode, whole", {**LONG, "stream": False}, 0.3),
                             ("in prefill", {**LONG, "prompt": [65] * 6000}, 0.1),
                             ("in prefill, whole", {**LONG, "prompt": [65] * 6000, "stream": False}, 0.1),
                             ("at once", LONG, 0.0)):
        before = s.metric("tern_http_disconnects_total")
        c = s.socket()
        c.sendall(request("/v1/completions", body))
        time.sleep(wait)
        c.close()
        stops(s, name)
        end = time.time() + 5
        while s.metric("tern_http_disconnects_total") == before and time.time() < end:
            time.sleep(0.02)
        check(s.metric("tern_http_disconnects_total") > before, name, "is noticed")
    hard = s.socket()  # a reset instead of a close
    hard.sendall(request("/v1/completions", LONG))
    time.sleep(0.2)
    hard.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    hard.close()
    stops(s, "a reset")


def test_comments():
    """A stream that has nothing to say yet says so.  Another request has the only place, so no machine is too fast for it."""
    with Server("--parallel", "1") as s:
        busy = s.socket()
        busy.sendall(request("/v1/completions", LONG))
        busy.recv(1)
        leaves = threading.Timer(1.5, busy.close)
        leaves.start()
        comments, events = s.events("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "x " * WORDS}], "max_tokens": 1, "stream": True})
        leaves.join()
    check(comments and all(c.startswith(": prefill ") for c in comments), "comments while the prompt waits", comments)
    same(events[-1][1], "[DONE]", "and then the answer")


def test_prompts(s):
    """Many prompts at once; what a stream says while they are read is how far its own is."""
    others = [s.socket() for _ in range(2 if SANITIZED else 16)]
    for i, c in enumerate(others):  # nothing that one of them computes helps another
        c.sendall(request("/v1/completions", {**LONG, "prompt": [65 + i] * (1000 if SANITIZED else 4000)}))
    comments, events = s.events("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "x " * WORDS}], "max_tokens": 1, "stream": True})
    for c in others:
        c.close()
    done = [int(re.fullmatch(r": prefill (\d+)/\d+", c)[1]) for c in comments]
    same(done, sorted(done), "comments while the prompt is read")
    same(events[-1][1], "[DONE]", "an answer after many prompts")
    s.wait_idle()


def test_slow_reader(s):
    """A reader that takes nothing is cut off, and others do not feel it."""
    slow = s.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    # Several choices fill the buffers with fewer steps.
    slow.sendall(request("/v1/completions", {**LONG, "logprobs": 20, "n": 4 if SANITIZED else 1}))
    time.sleep(0.2)
    began = time.time()
    same(s.complete(max_tokens=4).status, 200, "others go on")
    check(time.time() - began < 5, "at once")
    check(s.wait_idle(60), "the stream of a reader that takes nothing ends")
    slow.close()


def crowd(s, n, seed):
    """n connections, half of them cut at a random moment."""
    rng = random.Random(seed)
    bodies = [("/v1/completions", {"prompt": "a", "max_tokens": 4, "stream": True}),
              ("/v1/chat/completions", {"messages": [{"role": "user", "content": "b"}], "max_tokens": 4}),
              ("/v1/completions", {"prompt": [65] * 300, "max_tokens": 40, "stream": True}),
              ("/tokenize", {"content": "hello"})]
    whole = answered = 0
    pending = []
    for _ in range(n):
        path, body = rng.choice(bodies)
        data = request(path, body, b"Connection: close\r\n")
        c = s.socket()
        if rng.random() < 0.5:
            c.sendall(data[:rng.randrange(len(data) + 1)])
            pending.append((c, True))
        else:
            c.sendall(data)
            pending.append((c, False))
            whole += 1
        while len(pending) > 50:
            answered += settle(*pending.pop(0), rng)
    for c, cut in pending:
        answered += settle(c, cut, rng)
    return whole, answered


def settle(c, cut, rng):
    """1 when the answer came and was complete."""
    if cut:
        time.sleep(rng.random() * 0.002)
        c.close()
        return 0
    got = b""
    while piece := c.recv(65536):
        got += piece
    c.close()
    ok = status_of(got) in (200, 429) and (b"chunked" not in got or got.endswith(b"0\r\n\r\n"))
    check(ok, "a whole answer in a crowd", got[-200:])
    return int(ok)


def test_crowd(s):
    crowd(s, 200, 1)  # what is allocated once
    s.wait_idle()
    time.sleep(0.5)
    files, memory = s.open_files(), s.memory()
    seed = int(os.environ.get("SEED", "7"))
    whole, answered = crowd(s, 200 if SANITIZED else 1000, seed)
    same(answered, whole, f"all whole requests are answered (SEED={seed})")
    check(s.wait_idle(), "the engine comes to rest")
    time.sleep(1.0)
    check(s.open_files() <= files + 2, "descriptors leak:", files, s.open_files())
    grown = (s.memory() - memory) / 2**20
    check(grown < 8 or SANITIZED, "memory grows by", round(grown, 1), "MiB")
    held, kept = s.get("/v1/kv").json["bytes"], s.metric("tern_cache_bytes")
    check(kept <= s.metric("tern_cache_limit_bytes"), "the prefix cache keeps", kept)
    check(held < kept + 2**20, "KV memory in use at rest", held, "of it in the prefix cache", kept)


def test_batch(s):
    """What a request gets does not depend on what else runs."""
    asks = [{"prompt": [65 + i] * (3 + 40 * i), "max_tokens": 30, "temperature": i % 2, "seed": i, "n": 1 + i % 3,
             "logprobs": 2} for i in range(16)]
    alone = [s.post("/v1/completions", a).json["choices"] for a in asks]
    together = [None] * len(asks)

    def one(i):
        together[i] = s.post("/v1/completions", asks[i]).json["choices"]

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(asks))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, (a, b) in enumerate(zip(alone, together)):
        same(b, a, "request", i, "in a batch")


def test_idle(s):
    """Connections that wait cost little."""
    memory = s.memory()
    waiting = [s.socket() for _ in range(500)]
    for c in waiting:
        c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for c in waiting:
        check(c.recv(4096).startswith(b"HTTP/1.1 200"), "one of many is answered")
    grown = (s.memory() - memory) / 2**20
    check(grown < 5 or SANITIZED, "500 idle connections take", round(grown, 1), "MiB")
    for c in waiting:
        c.close()


class Stopped:
    """The one thread of a process that computes most, held by ptrace: `with Stopped(pid)`."""

    SEIZE, INTERRUPT, DETACH, ANY_THREAD = 0x4206, 0x4207, 17, 0x40000000

    def __init__(self, pid):
        def ticks(tid):
            with open(f"/proc/{pid}/task/{tid}/stat", encoding="ascii") as f:
                return int(f.read().rsplit(")", 1)[1].split()[11])

        before = {t: ticks(t) for t in os.listdir(f"/proc/{pid}/task")}
        time.sleep(0.5)
        self.tid = int(max(before, key=lambda t: ticks(t) - before[t]))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes, libc.ptrace.restype = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p], ctypes.c_long
        self.ptrace = libc.ptrace
        self.works = self.tid != pid and self.ptrace(self.SEIZE, self.tid, None, None) == 0

    def __enter__(self):
        if self.works:
            same(self.ptrace(self.INTERRUPT, self.tid, None, None), 0, "a thread is stopped")
            os.waitpid(self.tid, self.ANY_THREAD)
        return self

    def __exit__(self, *_):
        if self.works:
            self.ptrace(self.DETACH, self.tid, None, None)


def quick(s, path):
    """The answer to GET, None when there is none soon."""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=5)
    try:
        c.request("GET", path)
        r = c.getresponse()
        return r.status, json.loads(r.read())
    except TimeoutError:
        return None
    finally:
        c.close()


def seen_hanging(s):
    """With a thread of the engine stopped: True once all was seen, False when it was stopped in the middle of something
    that the server's own thread waits for."""
    end = time.time() + 20
    while time.time() < end and (a := quick(s, "/ready")) and a[0] == 200:
        time.sleep(0.1)
    for path in ("/ready", "/health"):
        if not (a := quick(s, path)):
            return False
        check(a[0] == 503 and "does not step" in a[1]["reason"] and a[1]["engine_idle_s"] > 1, path, a)
    check((a := quick(s, "/v1/models")) and a[0] == 200, "the rest of the server answers")
    return True


def test_hang():
    """An engine that does not come back is not ready."""
    with Server("-t", "1", "--stall", "1", "--cache-ram", "0", "--chunk", "2048") as s:
        clients = []
        for attempt in range(5):
            for i in range(40):  # prompts, whose steps are long
                clients.append(s.socket())
                clients[-1].sendall(request("/v1/completions", {"prompt": [66 + i] * 8000, "max_tokens": 1}))
            end = time.time() + 20
            while s.metric("tern_requests_running") == 0 and time.time() < end:
                time.sleep(0.02)
            before = s.get("/ready")
            check(before.status == 200 and before.json["running"] > 0, "it steps", before.body)
            with Stopped(s.process.pid) as stopped:
                if not stopped.works:
                    print("no thread can be stopped here: /ready of an engine that hangs is not tested")
                    return
                seen = seen_hanging(s)
            end = time.time() + 20
            while s.get("/ready").status != 200 and time.time() < end:
                time.sleep(0.1)
            a = s.get("/ready")
            check(a.status == 200 and a.json["steps"] > before.json["steps"], "it steps again", a.body)
            if seen:
                break
        check(seen, "an engine that hangs was seen in", attempt + 1, "attempts")
        for c in clients:
            c.close()


def test_end():
    with Server() as s:  # what runs may end
        c = s.socket()
        c.sendall(request("/v1/completions", {"prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True}))
        got = c.recv(4096)
        s.process.send_signal(signal.SIGTERM)
        while piece := c.recv(65536):
            got += piece
        check(b"[DONE]" in got and got.endswith(b"0\r\n\r\n"), "a stream is ended after SIGTERM", got[-200:])
        same(s.process.wait(60), 0, "status")
        try:
            s.socket()
            check(False, "a server that is gone takes connections")
        except OSError:
            pass
    for first, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):  # a second signal does not wait
        with Server() as s:
            c = s.socket()
            c.sendall(request("/v1/completions", LONG))
            c.recv(1000)
            s.process.send_signal(first)
            time.sleep(0.3)
            same(s.process.poll(), None, "it waits for what runs")
            same(s.stop(first), status, "status after two signals")
            c.close()
    with Server("--drain", "0.5") as s:  # nor does it wait for ever
        c = s.socket()
        c.sendall(request("/v1/completions", LONG))
        c.recv(1000)
        began = time.time()
        same(s.stop(signal.SIGTERM), 0, "status after --drain")
        check(time.time() - began < 20, "within --drain", time.time() - began)
        c.close()


def test_refused():
    """What the command line cannot have."""
    with Server() as s, tempfile.TemporaryDirectory() as d:
        empty = os.path.join(d, "empty")
        with open(empty, "w", encoding="ascii"):
            os.chmod(empty, 0o600)
        for options, status, word in ((["--port", str(s.port)], 1, "in use"), (["-m", MODEL], 2, "two models are called"),
                                      (["--ctx", "9", "--ctx-size", "9"], 2, "--ctx-size"),
                                      (["--unix", "/dev/null"], 1, "no socket"), (["--unix", d + "/no/s"], 1, "--unix"),
                                      (["--api-key-file", "/dev/zero"], 1, "/dev/zero"), (["--api-key", ""], 2, "empty"),
                                      (["--api-key-file", empty], 1, "no API key"), (["--port", "70000"], 2, "--port"),
                                      (["--max-body", "5X"], 2, "--max-body"), (["--log-prompts"], 2, "--log-format"),
                                      (["--config", d + "/none"], 1, "/none"), (["--host", "0.0.0.0"], 1, "--insecure")):
            run = subprocess.run([TERN, "serve", "-m", MODEL, "--port", "0"] + options, capture_output=True, text=True,
                                 timeout=60)
            same((run.returncode, run.stdout, run.stderr.count("\n"), word in run.stderr), (status, "", 1, True), options,
                 run.stderr)


def test_config():
    """Options from a file, and what is said as JSON."""
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "tern.conf")

        def write(text):
            with open(path, "w", encoding="ascii") as f:
                f.write(text)

        write("# a comment\n\nctx = 300\nalias one\nlog-format=json\n max-num-seqs 3 \ninsecure = false\nverbose")
        with Server("--config", path, "--ctx", "200", "--alias", "two", "--turbo-kv-bits", "8") as s:
            plan = s.get("/v1/kv").json
            same((plan["ctx"], plan["spec"]), (200, "turbo8v8"), "the command line comes after the file")
            names = {m["id"] for m in s.get("/v1/models").json["data"]}
            check({"one", "two"} <= names, "of lists all count", names)
            a = s.chat("a secret of mine")
            same((a.status, s.chat(max_tokens=-5).status), (200, 400), "requests")
            same(s.stop(signal.SIGTERM), 0, "status")
            lines = [json.loads(line) for line in s.said().splitlines() if line.startswith("{")]
            done = [x for x in lines if x["event"] == "request"]
            same([(x["path"], x["status"]) for x in done], [("/v1/chat/completions", 200), ("/v1/chat/completions", 400)],
                 "each request leaves a line")
            same(done[0]["prompt_tokens"], a.json["usage"]["prompt_tokens"], "with figures")
            check("max_tokens" in done[1]["error"] and "secret" not in s.said(), "and no texts", s.said())
            check(any("shutting down" in x.get("message", "") for x in lines), "messages are JSON, too", lines)
        with Server("--log-format", "json", "--log-prompts") as s:
            s.chat("a secret of mine")
            same(s.stop(signal.SIGTERM), 0, "status")
            check("a secret of mine" in s.said(), "--log-prompts")
        for text, line, word in (("ctx 5\nnonsense 3\n", 2, "nonsense"), ("port = 70000", 1, "--port"), ("\n\nctx", 3, "no value"),
                                 ("--ctx 5", 1, "dashes"), ("insecure maybe", 1, "true or false"), ("config x", 1, "command line")):
            write(text)
            run = subprocess.run([TERN, "serve", "-m", MODEL, "--config", path], capture_output=True, text=True, timeout=60)
            same((run.returncode, run.stdout, run.stderr.count("\n"), f"{path}:{line}: " in run.stderr, word in run.stderr),
                 (2, "", 1, True, True), text, run.stderr)


def test_limits():
    with Server("--parallel", "1", "--queue", "2") as s:
        busy = [s.socket() for _ in range(3)]
        for i, c in enumerate(busy):
            c.sendall(request("/v1/completions", LONG))
            check(s.wait_for(1, i), "one runs, the others wait", i)
        a = s.complete()
        same((a.status, int(a.headers["Retry-After"]) >= 1), (429, True), "a full queue", a.body)
        same(a.json["error"]["type"], "rate_limit_error", "its type")
        for c in busy:
            c.close()
        check(s.wait_idle(), "the queue empties")
        same(s.complete().status, 200, "and takes requests again")
    with Server("--parallel", "3", "--queue", "2") as s: # who can begin at once does not wait
        busy = [s.socket() for _ in range(5)]
        for c in busy:
            c.sendall(request("/v1/completions", LONG))
        check(s.wait_for(3, 2), "three run, two wait")
        same(s.complete().status, 429, "beyond them")
        a = s.post("/v1/embeddings", {"input": ["a", "b", "c"]})
        same((a.status, "--queue" in a.json["error"]["message"]), (400, True), "a list that can never wait", a.body)
        for c in busy:
            c.close()
        check(s.wait_idle(), "the queue empties")
        same(s.post("/v1/embeddings", {"input": ["a", "b"]}).status, 200, "a list that can")
    with Server("--timeout", "0.3") as s:
        began = time.time()
        a = s.post("/v1/completions", {**LONG, "stream": False})
        check(a.status == 504 and time.time() - began < 10, "--timeout", a.status, a.body[:200])
        same((a.json["error"]["code"], a.headers["x-should-retry"]), ("timeout", "false"), "says so")
        _, events = s.events("/v1/completions", LONG)
        same(json.loads(events[-1][1])["error"]["code"], "timeout", "in a stream, too")
    with Server("--max-connections", "20") as s:
        idle = [s.socket() for _ in range(60)]
        same(s.get("/health").status, 200, "the oldest idle connection makes room")
        for c in idle:
            c.close()


with Server() as server:
    for test in (test_half_closed, test_disconnect, test_prompts, test_slow_reader, test_batch, test_crowd, test_idle):
        test(server)
    same(server.stop(15), 0, "status after SIGTERM")
test_comments()
test_refused()
test_config()
test_limits()
if not SANITIZED:  # which is slow enough to look like it
    test_hang()
test_end()
finish()
