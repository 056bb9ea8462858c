"""tern serve without memory: one call for memory fails, or many in a row, wherever it is in the server.  The answer is
the whole one or an error, or the connection ends; nothing gets stuck, and afterwards everything is as before.

BAD_WORLD_LIBRARY: support/bad_world.c; without it (sanitizers) the test counts as skipped.  TERN_TEST_LONG=1: each call
that a request makes fails once, and all rows of failures."""
import http.client
import json
import mmap
import os
import random
import re
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time

from serve_lib import Server, check, complaints, finish, same

LIBRARY = os.environ.get("BAD_WORLD_LIBRARY")
LONG = os.environ.get("TERN_TEST_LONG")
SEED = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
SECONDS = 3600 if LONG else 11  # for all sweeps together
STUCK_S = 20
if not LIBRARY:
    sys.exit(77)

work = tempfile.mkdtemp()


class Memory:
    """struct memory of bad_world.c."""

    def __init__(self):
        self.path = os.path.join(work, "switch")
        with open(self.path, "wb") as f:
            f.write(b"-" + bytes(47))
        with open(self.path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 48)

    def fail(self, first, last, every=0):
        struct.pack_into("<QQQQQ", self.map, 8, 0, first, last, every, 0)
        self.map[0:1] = b"M"

    def fine(self):
        """Calls since fail(), and how many of them failed."""
        self.map[0:1] = b"-"
        calls, _, _, _, failed = struct.unpack_from("<QQQQQ", self.map, 8)
        return calls, failed


memory = Memory()

# ---- what is asked ---------------------------------------------------------------------------------------------------

TOOLS = [{"type": "function", "function": {"name": "look", "description": "looks", "parameters": {
    "type": "object", "properties": {"where": {"type": "string"}}}}}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"],
          "additionalProperties": False}
TURNS = [{"role": "user", "content": "hello"}]
PLAIN = {"temperature": 0, "max_tokens": 6}
LATIN = "the quick brown fox jumps over the lazy dog"

KINDS = {
    "completion": ("/v1/completions", {**PLAIN, "prompt": LATIN * 3, "logprobs": 2, "echo": True}),
    "two completions": ("/v1/completions", {**PLAIN, "prompt": [LATIN, [65, 66, 67]], "n": 2, "stop": ["zz"]}),
    "best completion": ("/v1/completions", {**PLAIN, "prompt": LATIN, "best_of": 3, "seed": 1, "temperature": 1}),
    "completion stream": ("/v1/completions", {**PLAIN, "prompt": LATIN, "stream": True, "logprobs": 1}),
    "chat": ("/v1/chat/completions", {**PLAIN, "messages": TURNS, "logprobs": True, "top_logprobs": 2}),
    "chat stream": ("/v1/chat/completions", {**PLAIN, "messages": TURNS, "stream": True,
                                             "stream_options": {"include_usage": True}}),
    "call": ("/v1/chat/completions", {"messages": TURNS, "temperature": 0, "max_tokens": 60, "tools": TOOLS,
                                      "tool_choice": "required"}),
    "call stream": ("/v1/chat/completions", {"messages": TURNS, "temperature": 0, "max_tokens": 60, "tools": TOOLS,
                                             "tool_choice": "required", "stream": True}),
    "schema": ("/v1/chat/completions", {"messages": TURNS, "temperature": 0, "max_tokens": 40, "response_format": {
        "type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}),
    "message": ("/v1/messages", {**PLAIN, "messages": TURNS, "system": [{"type": "text", "text": "be brief"}]}),
    "message stream": ("/v1/messages", {**PLAIN, "messages": TURNS, "stream": True}),
    "message call": ("/v1/messages", {"messages": TURNS, "temperature": 0, "max_tokens": 60, "tool_choice": {"type": "any"},
                                      "tools": [{"name": "look", "input_schema": SCHEMA}]}),
    "message tokens": ("/v1/messages/count_tokens", {"messages": TURNS}),
    "response": ("/v1/responses", {"input": "hello", "temperature": 0, "max_output_tokens": 6}),
    "response stream": ("/v1/responses", {"input": "hello", "temperature": 0, "max_output_tokens": 6, "stream": True}),
    "embedding": ("/v1/embeddings", {"input": ["hello", "you"]}),
    "embedding as text": ("/v1/embeddings", {"input": "hello", "encoding_format": "base64", "pooling": "mean"}),
    "ollama chat": ("/api/chat", {"messages": TURNS, "options": {"temperature": 0, "num_predict": 6}}),
    "ollama chat, whole": ("/api/chat", {"messages": TURNS, "options": {"temperature": 0, "num_predict": 6},
                                         "stream": False, "format": SCHEMA}),
    "ollama generate": ("/api/generate", {"prompt": "hello", "options": {"temperature": 0, "num_predict": 6}}),
    "ollama embedding": ("/api/embed", {"input": "hello"}),
    "ollama show": ("/api/show", {"model": "default"}),
    "tokenize": ("/tokenize", {"content": LATIN, "with_pieces": True}),
    "detokenize": ("/detokenize", {"tokens": list(range(65, 90))}),
    "template": ("/apply-template", {"messages": TURNS}),
    "ollama tags": ("/api/tags", None),
    "models": ("/v1/models", None),
    "kv": ("/v1/kv", None),
    "cache": ("/v1/cache", None),
    "metrics": ("/metrics", None),
    "ready": ("/ready", None),
    "page": ("/", None),
    "nothing there": ("/v1/nothing", None),
    "a wrong field": ("/v1/completions", {"prompt": 5}),
}
FIGURES = {"kv", "cache", "metrics", "ready", "models", "ollama tags"}  # of the moment: their names count

# Of one answer, or of a time.
OWN = re.compile(r"(^|_)(id|ids|created|created_at|duration|cached_tokens|modified_at|cache_read_input_tokens)$|^input_tokens$")


def bare(value):
    if isinstance(value, dict):
        return {k: bare(v) for k, v in value.items() if not OWN.search(k)}
    return [bare(v) for v in value] if isinstance(value, list) else value


def names(value):
    if isinstance(value, dict):
        return {k: names(v) for k, v in value.items()}
    return [names(v) for v in value] if isinstance(value, list) else None


class Ended(Exception):
    """The connection did."""


def ask(server, kind):
    """The status, and the answer in pieces: one, or those of a stream.  whole: the answer came to its end."""
    path, body = KINDS[kind]
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=STUCK_S)
    whole = True
    try:
        c.request("POST" if body else "GET", path, json.dumps(body) if body else None)
        r = c.getresponse()
        try:
            data = r.read()
        except http.client.IncompleteRead as e:
            data, whole = e.partial, False
        head = sorted(k.lower() for k, _ in r.getheaders())
        return r.status, head, data, whole
    except (ConnectionError, http.client.BadStatusLine) as e:
        raise Ended from e
    finally:
        c.close()


def pieces(kind, data, whole):
    """What counts of an answer, a list; an error within a stream is {"error": True}."""
    text = data.decode()
    if kind == "metrics":
        return sorted({line.split("{")[0].split(" ")[0] for line in text.split("\n") if line and line[0] != "#"})
    if kind == "page":
        return [text]
    if text.startswith(("data:", "event:", ":")):
        blocks = text.split("\n\n")
        check(blocks[-1] == "" or not whole, kind, "a stream ends in the middle of a piece:", text[-300:])
        rows = [re.search("^data: (.*)$", b, re.M) for b in blocks[:-1] if not b.startswith(":")]
        rows = [m[1] for m in rows if m]
    else:
        rows = text.split("\n")
        rows = [x for x in (rows if whole else rows[:-1]) if x]
    out = []
    for x in rows:
        value = x if x == "[DONE]" else json.loads(x)
        if isinstance(value, dict) and (value.get("error") or value.get("type") in ("error", "response.failed")):
            value = {"error": True}
        out.append(names(value) if kind in FIGURES else bare(value))
    return out


def is_error(path, status, data):
    try:
        e = json.loads(data)["error"]
    except (ValueError, KeyError, TypeError):
        return False
    message = e if isinstance(e, str) and path.startswith("/api/") else e["message"]  # of a head that was not read: as OpenAI's
    return status in (500, 503) and isinstance(message, str) and "memory" in message.lower() or "allocate" in message


def judge(kind, good, server, first, last, every=0):
    """One request while memory fails; true: some call did."""
    what = (kind, "calls", first, "to", last, "each", every or 1, "seed", SEED)
    memory.fail(first, last, every)
    try:
        status, head, data, whole = ask(server, kind)
    except Ended:
        return memory.fine()[1] > 0
    except socket.timeout:
        check(False, *what, "the request is stuck")
        return True
    finally:
        failed = memory.fine()[1]
    try:
        got = pieces(kind, data, whole)
    except ValueError:
        check(not whole, *what, "an answer that is no JSON", data[:300])
        return failed > 0
    stopped = {"error": True} in got
    if status != good[0]:
        check(is_error(KINDS[kind][0], status, data), *what, "is an error that says why:", status, data[:300])
    elif whole and not (stopped and status == 200):
        same((head, got), good[1:], *what)
    else:
        given = [x for x in got if x != {"error": True}]
        same(given, good[2][:len(given)], *what, "what came before the end")
    return failed > 0


def good_answer(server, kind):
    status, head, data, whole = ask(server, kind)
    check(whole, kind, "is whole")
    return status, head, pieces(kind, data, whole)


def at_rest(server):
    check(server.wait_idle(), "the engine comes to rest")
    kv = server.get("/v1/kv").json
    time.sleep(0.1)  # until it has noticed that this connection is closed
    return {"descriptors": server.open_files(), "reserved": kv["reserved_bytes"], "running": kv["running"]}


def sweep(server, kinds, seconds, dice):
    goods = {kind: good_answer(server, kind) for kind in kinds}
    for kind in kinds:  # again: what is known by now stays known
        same(good_answer(server, kind)[1:], goods[kind][1:], kind, "twice")
    end, n = time.time() + seconds, 0
    for left, kind in zip(range(len(kinds), 0, -1), kinds):
        memory.fail(1 << 40, 0)
        ask(server, kind)
        calls = memory.fine()[0]
        cases = [(i, i, 0) for i in range(calls)]
        cases += [(i, i + dice.choice((1, 3, 20, 1000)), 0) for i in range(0, calls, 4)]
        cases += [(i, 1 << 40, k) for k in (2, 3, 7, 50) for i in range(k)] + [(0, 1 << 40, 0)]
        dice.shuffle(cases)
        until = time.time() + (end - time.time()) / left
        for case in cases:
            if time.time() > until:
                break
            judge(kind, goods[kind], server, *case)
            n += 1
            if server.process.poll() is not None:
                check(False, kind, case, "seed", SEED, "the server ended:", server.process.returncode, server.said()[-2000:])
                return n
            if len(complaints) > 20:
                return n
        same(good_answer(server, kind)[1:], goods[kind][1:], kind, "afterwards")
    return n


def run(kinds, seconds, *options):
    dice = random.Random(SEED)
    os.environ.update(LD_PRELOAD=LIBRARY, BAD_WORLD=memory.path, BAD_DISK="/nowhere")
    try:
        server = Server("--parallel", "4", *options)
    finally:
        del os.environ["LD_PRELOAD"]
    with server as s:
        for kind in kinds:
            ask(s, kind)
        before = at_rest(s)
        n = sweep(s, kinds, seconds, dice)
        if s.process.poll() is not None:
            return
        end = time.time() + 10  # connections that linger
        while at_rest(s) != before and time.time() < end:
            time.sleep(0.1)
        same(at_rest(s), before, "all is given back")
        began = time.time()
        same(s.stop(signal.SIGTERM), 0, "the status")
        check(time.time() - began < 10 and "cut off" not in s.said(), "no job is left", s.said()[-500:])
        print(f"{n} requests without memory, {options}", flush=True)


print("seed", SEED, flush=True)
chosen = os.environ.get("KINDS")
run([k for k in KINDS if not chosen or re.search(chosen, k)], SECONDS)
if not chosen:
    folder = os.path.join(work, "disk")
    # Of several pages, and all of them do not fit into the cache together.
    LONG_ONES = {f"long {i}": ("/v1/completions", {**PLAIN, "prompt": f"{i} " + LATIN * 20}) for i in range(3)}
    KINDS.update(LONG_ONES)
    run(list(LONG_ONES), SECONDS / 4, "--cache-disk", folder, "--cache-disk-gb", "0.1", "--cache-disk-min-free", "0",
        "--cache-ram", "256K")
    # Loaded for each request, and closed behind it.
    KINDS["another model"] = ("/api/generate", {"model": "b", "prompt": "hello", "keep_alive": 0, "stream": False,
                                                "options": {"temperature": 0, "num_predict": 6}})
    run(["another model", "completion"], SECONDS / 4, "-m", f"b={os.environ['MODEL']}", "--calibration", "off")
shutil.rmtree(work)
finish()
