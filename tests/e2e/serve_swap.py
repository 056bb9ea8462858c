"""tern serve with two models of which one fits, under a crowd that asks for both and often leaves: for a race or a leak
in what opens and closes them to show, which is what the sanitizers' builds run it for.

TERN_TEST_SECONDS: how long, all rounds together (9)   SEED: of everything that is drawn (1; the day's seconds where a
time is given)
"""
import os
import signal
import socket
import time

from serve_lib import MODEL, Crowd, Server, check, finish, quiet, reset_on_close, same, status_of, wire

TEXT = os.environ["MODEL"]
SECONDS = float(os.environ.get("TERN_TEST_SECONDS", "9"))
SEED = int(os.environ.get("SEED", time.time() if "TERN_TEST_SECONDS" in os.environ else 1))
CLIENTS = 10
OPTIONS = ("--parallel", "3", "--queue", "30", "--ctx", "512", "--calibration", "off", "--cache-ram", "1M", "--drain", "20")
SURE = {"prompt": "hello", "max_tokens": 10, "ignore_eos": True, "temperature": 0, "logprobs": 1}

OTHERS = [
    ("/v1/completions", {"prompt": "the quick brown fox", "max_tokens": 60, "stream": True, "ignore_eos": True}),
    ("/v1/completions", {"prompt": "the quick", "max_tokens": 3}),
    ("/api/generate", {"prompt": "hello", "options": {"num_predict": 4}, "keep_alive": 0}),
    ("/api/generate", {"prompt": "", "keep_alive": 0}),
    ("/api/generate", {"prompt": "", "keep_alive": "10ms"}),
    ("/api/generate", {"prompt": "", "keep_alive": -1}),
    ("/v1/embeddings", {"input": "hello"}),
    ("/tokenize", {"content": "hello"}),
    ("/v1/completions", {"prompt": []}),
    ("/api/show", {}),
]
LOOKS = ["/metrics", "/ready", "/v1/models", "/api/ps", "/api/tags", "/v1/kv?model=a", "/v1/kv?model=b", "/v1/cache?model=b",
         "/tokenizer_info?model=b"]


class Askers(Crowd):
    def ask_sure(self, rng):
        model = rng.choice("ab")
        answer = self.server.post("/v1/completions", {**SURE, "model": model})
        if answer.status == 200:
            same(answer.json["choices"], self.want[model], "the model", model)
        else:
            check(answer.status in (429, 503), "an answer", answer.status, answer.body[:300])
        self.note("sure" if answer.status == 200 else "busy")

    def ask_other(self, rng):
        path, body = (rng.choice(LOOKS), None) if rng.random() < 0.3 else rng.choice(OTHERS)
        c = self.server.socket()
        try:
            c.sendall(wire(path, body if body is None else {**body, "model": rng.choice("ab")}))
            cut = rng.random() < 0.6
            if cut:
                c.settimeout(rng.choice((0.001, 0.01, 0.1, 0.5)))
            got = b""
            try:
                while (not cut or len(got) < 500) and (piece := c.recv(4096)):
                    got += piece
            except socket.timeout:
                check(cut, "no answer in two minutes")
            if not cut and not self.over.is_set():
                check(status_of(got) is not None, "an answer", path, got[:200])
            if cut and rng.random() < 0.5:  # a reset instead of a close
                reset_on_close(c)
            self.note("cut" if cut else "kept")
        finally:
            c.close()


def alone(path):
    with Server(*OPTIONS, model=path) as s:
        answer = s.post("/v1/completions", SURE)
        same(answer.status, 200, "alone", answer.body[:300])
        return answer.json["choices"]


print(f"SEED={SEED}", flush=True)
want = {"a": alone(TEXT), "b": alone(MODEL)}
total = {"for memory": 0, "for a client": 0}
rounds = [signal.SIGTERM, None, signal.SIGTERM]  # ends while they ask; comes to rest; ends
for n, how in enumerate(rounds):
    with Server("-m", f"b={MODEL}", "--memory", "20M", "--kv-memory", "10M", *OPTIONS, model=f"a={TEXT}") as s:
        crowd = Askers(s, SEED + n, want, CLIENTS)
        crowd.over.wait(SECONDS / len(rounds))
        if how is None:
            crowd.end()
            check(s.wait_idle(60), "the engines come to rest")
            check(s.metric("tern_memory_held_bytes") <= 20 << 20, "the budget holds")
            time.sleep(0.3)
            check(s.open_files() < 40, "descriptors", s.open_files())
        crowd.over.set()
        same(s.stop(signal.SIGTERM), 0, "the status", s.said()[-3000:])
        crowd.end()
        quiet(s)
        total["for memory"] += s.said().count("another one needs its memory")
        total["for a client"] += s.said().count("a client asked for that")
        total = {**total, **{k: v + total.get(k, 0) for k, v in crowd.done.items()}}
print(total, flush=True)
check(all(total[k] > 0 for k in ("for memory", "cut", "sure")), "models came and went", total)
finish()
