"""tern serve in a world that fails: its disk tier on a disk that is full, broken, slow or gone, on another clock; no
descriptors left; signals that people's shells and terminals send; crowds that come and leave together.  A fault is a miss
and at most a few lines: every answer is what it would have been.

BAD_WORLD_LIBRARY: support/bad_world.c; without it (sanitizers) what needs it is left out."""
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from serve_lib import MODEL, TERN, Server, check, finish, same

LIBRARY = os.environ.get("BAD_WORLD_LIBRARY")
CROWD = 16 if os.environ.get("TERN_TEST_SANITIZED") else 64
TEXT = "the quick brown fox jumps over the lazy dog, " * 30
LONG = {"prompt": "hello", "max_tokens": 8000, "ignore_eos": True, "stream": True, "temperature": 0}

work = tempfile.mkdtemp()
switch = os.path.join(work, "switch")


def world(mode):
    fd = os.open(switch, os.O_WRONLY | os.O_CREAT, 0o600)  # not emptied first: it is mapped
    os.write(fd, mode.encode())
    os.close(fd)


class Faulty(Server):
    """A server whose disk tier lies in `folder` of a world that may fail."""

    def __init__(self, folder, *more):
        os.environ.update(LD_PRELOAD=LIBRARY, BAD_WORLD=switch, BAD_DISK=folder)
        try:
            super().__init__("--cache-disk", folder, "--cache-disk-gb", "0.2", "--cache-disk-min-free", "0", *more)
        finally:
            del os.environ["LD_PRELOAD"]


def request(path, body):
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def text_of(answer):
    same(answer.status, 200, "an answer", answer.body[:300])
    return answer.json["choices"][0]["text"]


def cached(answer):
    return answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def prompt(i):
    return f"{i} " + TEXT


def cold_texts(n):
    with Server("--cache-ram", "0") as s:
        return [text_of(s.complete(prompt(i))) for i in range(n)]


# ---- the disk --------------------------------------------------------------------------------------------------------

def test_disk(cold):
    for mode, name in (("F", "no room"), ("W", "EIO in writing"), ("R", "EIO in reading"), ("S", "a megabyte a second")):
        folder = os.path.join(work, "disk" + mode)
        world("-")
        with Faulty(folder) as s:  # what was there before
            same(text_of(s.complete(prompt(0))), cold[0], name, "before")
        world(mode)
        with Faulty(folder) as s:
            for i in (0, 1, 2, 0, 1):
                same(text_of(s.complete(prompt(i))), cold[i], name)
            c = s.get("/v1/cache").json["disk"]
            same(c["damaged"], 0, name, "is no damage", c)
            if mode in "FWR":
                end = time.time() + 20
                while s.get("/v1/cache").json["disk"]["errors"] == 0 and time.time() < end:
                    time.sleep(0.05)
                check(s.get("/v1/cache").json["disk"]["errors"] > 0, name, "was noticed", s.get("/v1/cache").json)
            same(s.get("/ready").status, 200, name, "ready")
            said = s.said()
            same(s.stop(signal.SIGTERM), 0, name, "status")
            lines = [x for x in said.splitlines() if x.startswith("tern: cache:") or " cache: " in x]
            check(len(lines) <= 8 and (mode == "S" or lines), name, "a few lines", said)
        world("-")
        with Faulty(folder) as s:
            for i in range(3):
                same(text_of(s.complete(prompt(i))), cold[i], name, "afterwards")
            c = s.get("/v1/cache").json["disk"]
            same((c["damaged"], c["errors"]), (0, 0), name, "left nothing behind", c)
        left = [f for f in os.listdir(folder) if f == "new" or f.startswith("aside")]
        same(left, [], name, "leaves nothing half written")


def test_clock(cold):
    """Set back between runs and in one; then right again."""
    folder = os.path.join(work, "clock")
    for mode in ("-", "T", "-"):
        world(mode)
        with Faulty(folder) as s:
            first = s.complete(prompt(0))
            same(text_of(first), cold[0], "clock", mode)
            check(cached(first) > 0 or mode == "-", "found again on another clock")
            world("T" if mode == "-" else "-")
            same(text_of(s.complete(prompt(1))), cold[1], "the clock jumps")
            check(cached(s.complete(prompt(1))) > 0, "and what was kept is found")
            same(s.get("/v1/cache").json["disk"]["damaged"], 0, "nothing is damaged")
            same(s.get("/ready").status, 200, "ready")
    world("-")


def test_folder(cold):
    """Removed while it is in use; made a file; full of other things."""
    folder = os.path.join(work, "gone")
    options = ("--cache-disk", folder, "--cache-disk-gb", "0.2", "--cache-disk-min-free", "0")
    with Server(*options, "--cache-ram", "1M") as s:
        same(text_of(s.complete(prompt(0))), cold[0], "before")
        while os.path.exists(folder):  # what is written just now may come after its neighbours have gone
            shutil.rmtree(folder, ignore_errors=True)
        for i in (0, 1, 2, 0):
            same(text_of(s.complete(prompt(i))), cold[i], "without its folder")
        same(s.stop(signal.SIGTERM), 0, "status")
    with Server(*options) as s:
        same(text_of(s.complete(prompt(0))), cold[0], "made again")
    for i in range(20000):
        with open(os.path.join(folder, f"stranger-{i}"), "w", encoding="ascii"):
            pass
    os.symlink("/etc/passwd", os.path.join(folder, "link"))
    os.mkfifo(os.path.join(folder, "fifo"))
    began = time.time()
    with Server(*options) as s:
        check(time.time() - began < 30, "many strange files do not hold the start up", time.time() - began)
        check(cached(s.complete(prompt(0))) > 0, "found among strangers")
    check(os.path.lexists(os.path.join(folder, "stranger-19999")) and os.path.lexists(os.path.join(folder, "link")),
          "what is not its own stays")
    spoiled = os.path.join(work, "file")
    with open(spoiled, "w", encoding="ascii"):
        pass
    run = subprocess.run([TERN, "serve", "-m", MODEL, "--port", "0", "--cache-disk", spoiled], capture_output=True, text=True,
                         timeout=60)
    same((run.returncode, run.stdout, spoiled in run.stderr), (1, "", True), "a file for a folder", run.stderr)


# ---- descriptors, signals --------------------------------------------------------------------------------------------

def cpu_seconds(s):
    with open(f"/proc/{s.process.pid}/stat", encoding="ascii") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_descriptors():
    """None left: connections wait, nothing spins, and it goes on afterwards."""
    with Server() as s:
        same(s.complete().status, 200, "before")
        soft, hard = resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (s.open_files() + 3, hard))
        waiting = [s.socket() for _ in range(40)]
        time.sleep(0.3)
        before = cpu_seconds(s)
        time.sleep(1.5)
        check(cpu_seconds(s) - before < 0.5, "it does not spin, in 1.5 s it took", cpu_seconds(s) - before)
        resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        for c in waiting:
            c.close()
        end = time.time() + 20
        ok = False
        while not ok and time.time() < end:
            try:
                ok = s.complete().status == 200
            except OSError:
                time.sleep(0.1)
        check(ok, "it takes connections again")


def test_many_connections():
    """10,000 that never say anything, one after the other."""
    with Server("--max-connections", "100") as s:
        held = []
        for _ in range(10000):
            held.append(s.socket())
            if len(held) == 200:
                for c in held[:100]:
                    c.close()
                del held[:100]
        same(s.complete().status, 200, "an answer beside them")
        for c in held:
            c.close()
        time.sleep(0.3)
        check(s.open_files() < 150, "descriptors", s.open_files())


def stream(s, body=None):
    c = s.socket()
    c.sendall(request("/v1/completions", body or {**LONG, "max_tokens": 300}))
    return c


def rest(c):
    got = b""
    while piece := c.recv(65536):
        got += piece
    c.close()
    return got


def test_signals():
    with Server() as s:  # a terminal that closes
        c = stream(s)
        c.recv(100)
        s.process.send_signal(signal.SIGHUP)
        check(b"[DONE]" in rest(c), "a stream is ended after SIGHUP")
        same(s.process.wait(60), 0, "status after SIGHUP")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with Server() as s:
        s.process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        same(s.complete().status, 200, "under nohup it stays")
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with Server("--drain", "1") as s:  # while prompts are read
        waiting = [stream(s, {**LONG, "prompt": [65 + i] * 5000}) for i in range(8)]
        time.sleep(0.1)
        same(s.stop(signal.SIGTERM), 0, "status after SIGTERM in prefill")
        for c in waiting:
            c.close()
    with Server() as s:  # nobody reads what it says any more
        s.process.stdout.close()
        s.process.send_signal(signal.SIGPIPE)
        same(s.complete().status, 200, "after SIGPIPE")


# ---- crowds ----------------------------------------------------------------------------------------------------------

def test_crowds():
    with Server("--parallel", "32", "--queue", "300") as s:
        short = {"prompt": "hello", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        want = text_of(s.post("/v1/completions", short))
        got = [None] * CROWD
        long = [stream(s, {**LONG, "prompt": [65 + i % 40] * 1500, "max_tokens": 4}) for i in range(CROWD)]

        def one(i):
            got[i] = s.post("/v1/completions", short)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(CROWD)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for a in got:
            same(text_of(a), want, "a short one beside long prompts")
        for c in long:
            c.settimeout(60)
            got_all = b""
            while b"[DONE]" not in got_all and (piece := c.recv(65536)):
                got_all += piece
            check(b"[DONE]" in got_all, "a long one", got_all[-200:])
            c.close()
        check(s.wait_idle(60), "the engine comes to rest")
        crowd = [stream(s, LONG) for _ in range(100)]  # all leave at once
        time.sleep(0.3)
        began = time.time()
        for c in crowd:
            c.close()
        check(s.wait_idle(30) and time.time() - began < 10, "all cancelled at once", time.time() - began)
        same(text_of(s.post("/v1/completions", short)), want, "and the next one is right")


def test_slow_reader_among_others():
    """One that takes nothing, 31 that read: those get all of their texts."""
    with Server("--parallel", "32") as s:
        body = {"prompt": "hello", "max_tokens": 120, "temperature": 0, "ignore_eos": True, "stream": True}
        slow = s.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.sendall(request("/v1/completions", {**LONG, "logprobs": 20}))
        got = [None] * 31

        def one(i):
            got[i] = [json.loads(d)["choices"][0]["text"] for _, d in s.events("/v1/completions", body)[1] if d != "[DONE]"]

        threads = [threading.Thread(target=one, args=(i,)) for i in range(31)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        texts = {"".join(g) for g in got}
        same(len(texts), 1, "31 streams say the same")
        slow.close()
        check(s.wait_idle(60), "the engine comes to rest")


texts = cold_texts(3)
if LIBRARY:
    test_disk(texts)
    test_clock(texts)
test_folder(texts)
for test in (test_descriptors, test_many_connections, test_signals, test_crowds, test_slow_reader_among_others):
    test()
shutil.rmtree(work)
finish()
