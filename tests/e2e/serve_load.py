"""tern serve under a crowd that asks for everything at once and often leaves: for a race, a leak or a crash to show,
which is what the sanitizers' builds run it for.  Answers whose seed decides them must stay what they were.

TERN_TEST_SECONDS: how long, all rounds together (12)   SEED: of everything that is drawn (1; the day's seconds where
a time is given)
LOAD_MODEL: another model than the tests' own           TERN_TEST_KEEP: a folder that stays, for the disk tier
"""
import os
import shutil
import signal
import socket
import tempfile
import time

from serve_lib import MODEL, Crowd, Server, check, finish, quiet, reset_on_close, same, status_of, wire

SECONDS = float(os.environ.get("TERN_TEST_SECONDS", "12"))
SEED = int(os.environ.get("SEED", time.time() if "TERN_TEST_SECONDS" in os.environ else 1))
CLIENTS = 12
USER = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9},
                                           "s": {"type": "string", "maxLength": 5}},
          "required": ["n", "s"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
STORY = "the quick brown fox jumps over the lazy dog, and on it goes "

# What a request gets, whenever and beside whomever it comes.
SURE = [
    ("/v1/completions", {"prompt": STORY * 6, "max_tokens": 12, "temperature": 0, "logprobs": 2}),
    ("/v1/completions", {"prompt": STORY * 9, "max_tokens": 12, "temperature": 1, "seed": 5, "n": 2}),
    ("/v1/completions", {"prompt": STORY, "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}),
    ("/v1/completions", {"prompt": ["a", STORY], "max_tokens": 6, "temperature": 0.5, "seed": 1, "ignore_eos": True}),
    ("/v1/chat/completions", {"messages": USER * 3, "max_tokens": 10, "temperature": 0}),
    ("/v1/chat/completions", {"messages": USER, "max_tokens": 60, "temperature": 0, "guided_json": SCHEMA}),
    ("/v1/chat/completions", {"messages": USER, "max_tokens": 20, "temperature": 0, "guided_regex": "([a-c]{3} ){2,4}x"}),
    ("/v1/embeddings", {"input": [STORY, "b"]}),
    ("/tokenize", {"content": STORY}),
]

# What is asked for beside them, whatever comes of it.
OTHERS = [
    ("/v1/completions", {"prompt": [65] * 700, "max_tokens": 30, "stream": True, "ignore_eos": True}),
    ("/v1/completions", {"prompt": STORY, "max_tokens": 200, "stream": True, "ignore_eos": True, "logprobs": 3}),
    ("/v1/chat/completions", {"messages": USER, "max_tokens": 60, "stream": True, "n": 3, "temperature": 1.5}),
    ("/v1/chat/completions", {"messages": USER, "max_tokens": 60, "stream": True, "tools": [TOOL], "temperature": 1.5,
                              "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {"messages": USER, "max_tokens": 80, "stream": True, "temperature": 1.5,
                              "grammar": 'root ::= "[" [0-9]{1,9} ("," [0-9]{1,9}){0,9} "]"'}),
    ("/v1/chat/completions", {"messages": USER, "max_tokens": 40, "tools": [TOOL], "tool_choice": "required"}),
    ("/v1/responses", {"input": STORY, "max_output_tokens": 30, "stream": True}),
    ("/v1/messages", {"messages": USER, "max_tokens": 30, "stream": True}),
    ("/v1/messages/count_tokens", {"messages": USER}),
    ("/api/chat", {"messages": USER, "options": {"num_predict": 30}}),
    ("/api/generate", {"prompt": STORY, "options": {"num_predict": 20}}),
    ("/api/embed", {"input": ["a", "b"]}),
    ("/apply-template", {"messages": USER}),
    ("/detokenize", {"tokens": [65, 66, 67]}),
    ("/v1/chat/completions", {"messages": USER, "guided_regex": "(((("}),
    ("/v1/chat/completions", {"messages": "no list"}),
    ("/v1/completions", {"prompt": [65] * 100000}),
    ("/no/such/path", {}),
    *((path, None) for path in ("/health", "/ready", "/metrics", "/v1/models", "/v1/kv", "/v1/cache", "/", "/api/tags")),
]


def sure(answer):
    """What of an answer its request decides."""
    return {k: v for k, v in answer.items() if k not in ("id", "created", "usage", "system_fingerprint", "model")}


class Askers(Crowd):
    def ask_sure(self, rng):
        i = rng.randrange(len(SURE))
        path, body = SURE[i]
        answer = self.server.post(path, body)
        if answer.status in (429, 503):
            self.note("busy")
            return
        same(answer.status, 200, path, body, answer.body[:300])
        if answer.status == 200:
            same(sure(answer.json), self.want[i], path, body)
        self.note("sure")

    def ask_other(self, rng):
        path, body = rng.choice(OTHERS)
        data = wire(path, body)
        c = self.server.socket()
        try:
            if rng.random() < 0.1:  # half a request
                c.sendall(data[:rng.randrange(len(data))])
                time.sleep(rng.random() * 0.02)
                self.note("cut")
                return
            c.sendall(data)
            cut = rng.random() < 0.5
            self.read(c, rng.randrange(3000) if cut else None, rng)
            if cut and rng.random() < 0.5:  # a reset instead of a close
                reset_on_close(c)
            self.note("cut" if cut else "kept")
        finally:
            c.close()

    def read(self, c, most, rng):
        got = b""
        c.settimeout(0.2 + rng.random() if most is not None else 120)
        try:
            while (most is None or len(got) < most) and (piece := c.recv(rng.choice((100, 4096, 65536)))):
                got += piece
        except socket.timeout:
            check(most is not None, "no answer in two minutes")
            return
        if most is None and not self.over.is_set():
            check(status_of(got) is not None, "an answer", got[:200])
            check(b"chunked" not in got[:400] or got.endswith(b"0\r\n\r\n"), "a whole answer", got[-200:])


print(f"SEED={SEED}", flush=True)
folder = os.environ.get("TERN_TEST_KEEP") or tempfile.mkdtemp()
options = ("--parallel", "6", "--queue", "40", "--chunk", "64", "--cache-ram", "3M", "--cache-disk", folder,
           "--cache-disk-gb", "0.01", "--cache-disk-min-free", "0", "--drain", "20", "--ctx", "2048")
model = os.environ.get("LOAD_MODEL", MODEL)
with Server("--cache-ram", "0", "--ctx", "2048", model=model) as cold:
    answers = []
    for where, what in SURE:
        a = cold.post(where, what)
        same(a.status, 200, where, what, a.body[:300])
        answers.append(sure(a.json))

total = {}
rounds = [signal.SIGTERM, None, signal.SIGKILL, signal.SIGTERM]  # ends while they ask; comes to rest; is killed; ends
for n, how in enumerate(rounds):
    with Server(*options, model=model) as s:
        crowd = Askers(s, SEED + n, answers, CLIENTS)
        crowd.over.wait(SECONDS / len(rounds))
        if how is None:
            crowd.end()
            check(s.wait_idle(60), "the engine comes to rest")
            same(s.get("/v1/cache").json["disk"]["damaged"], 0, "damaged files")
            time.sleep(0.3)
            check(s.metric("tern_http_connections") <= 2, "connections are closed", s.metric("tern_http_connections"))
            check(s.open_files() < 60, "descriptors", s.open_files())
            how = signal.SIGTERM
        crowd.over.set()
        same(s.stop(how), 0 if how == signal.SIGTERM else -9, "status after signal", how, s.said()[-3000:])
        crowd.end()
        quiet(s)
        total = {k: v + total.get(k, 0) for k, v in crowd.done.items()}
print(total, flush=True)
check(total["sure"] > 0 and total["cut"] > 0, "there was a crowd", total)
if not os.environ.get("TERN_TEST_KEEP"):
    shutil.rmtree(folder)
finish()
