"""tern serve with several models: loaded when they are asked for, unloaded when their memory is needed; each answers as
it does alone."""
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from serve_lib import MODEL, TERN, Server, check, finish, same

TEXT = os.environ["MODEL"]
LONG = {"prompt": "hello", "max_tokens": 8000, "ignore_eos": True, "n": 4, "temperature": 0}
ASK = {"prompt": "hello", "max_tokens": 24, "ignore_eos": True, "temperature": 0, "logprobs": 2}
work = tempfile.mkdtemp()
large = os.path.join(work, "large.gguf")  # more than a moment to load: its keys are calibrated
BIAS = os.path.join(work, "bias.gguf")  # other weights, and the vocabulary of the first
for option, path in (("--large", large), ("--bias", BIAS)):
    subprocess.run([os.environ["MAKE_TEXT_MODEL"], option, path], check=True)


def request(path, body):
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def choices(answer):
    same(answer.status, 200, "an answer:", answer.body[:300])
    return answer.json["choices"]


def alone(path, *options):
    with Server(*options, model=path) as s:
        return choices(s.post("/v1/completions", ASK))


def states(s):
    return {m["id"]: m["state"] for m in s.get("/v1/models").json["data"]}


def wait_for(what, *about, seconds=30):
    end = time.time() + seconds
    while time.time() < end:
        if what():
            return
        time.sleep(0.02)
    check(False, "in time:", *about)


class Busy:
    """Requests to the first model, one after the other, that take a minute or more together."""

    def __init__(self, s):
        self.sockets = [s.socket() for _ in range(20)]
        for c in self.sockets:
            c.sendall(request("/v1/completions", LONG))
        wait_for(lambda: s.metric("tern_requests_running", "a") > 0, "a request to a")

    def close(self):
        for c in self.sockets:
            c.close()


def held(s):
    return s.metric("tern_memory_held_bytes")


want = {"a": alone(TEXT), "b": alone(MODEL), "c": alone(BIAS), "large": alone(large, "--calibration", "off")}
check(all(want[x] != want[y] for x in want for y in want if x < y), "the models differ")


# ---- names -----------------------------------------------------------------------------------------------------------

def test_names():
    with Server("-m", f"b={MODEL}", "-m", f"org/c={BIAS}", "--alias", "first", model=f"a={TEXT}") as s:
        same(states(s), {"a": "loaded", "b": "unloaded", "org/c": "unloaded", "first": "loaded"}, "at the start")
        same([m["name"] for m in s.get("/api/tags").json["models"]], ["a", "b", "org/c"], "tags")
        same([m["name"] for m in s.get("/api/ps").json["models"]], ["a"], "ps")
        for name, of in (("a", "a"), (None, "a"), ("default", "a"), ("first", "a"), ("b", "b"), ("org/c", "c"),
                         ("b:latest", "b")):
            answer = s.post("/v1/completions", {**ASK, **({"model": name} if name else {})})
            same(choices(answer), want[of], name)
            same(answer.json["model"], "org/c" if of == "c" else of, "which it was")
        same(set(states(s).values()), {"loaded"}, "after that")
        same(s.get("/v1/models/org/c").json["state"], "loaded", "one of them")
        bad = "the model \"x\" is not here; there are \"a\", \"b\", \"org/c\""
        for path, body, where in (("/v1/completions", {"prompt": "a"}, lambda j: j["error"]["message"]),
                                  ("/v1/chat/completions", {"messages": []}, lambda j: j["error"]["message"]),
                                  ("/v1/responses", {"input": "a"}, lambda j: j["error"]["message"]),
                                  ("/v1/embeddings", {"input": "a"}, lambda j: j["error"]["message"]),
                                  ("/tokenize", {"content": "a"}, lambda j: j["error"]["message"]),
                                  ("/v1/messages", {"messages": []}, lambda j: j["error"]["message"]),
                                  ("/v1/messages/count_tokens", {"messages": []}, lambda j: j["error"]["message"]),
                                  ("/api/chat", {"messages": []}, lambda j: j["error"]),
                                  ("/api/generate", {"prompt": "a"}, lambda j: j["error"]),
                                  ("/api/embed", {"input": "a"}, lambda j: j["error"]),
                                  ("/api/show", {}, lambda j: j["error"])):
            answer = s.post(path, {**body, "model": "x"})
            same((answer.status, where(answer.json)), (404, bad), path)
        same(s.complete(model="x").json["error"]["code"], "model_not_found", "its code")
        same(s.get("/v1/models/x").status, 404, "no such model")
        same(s.complete(model=5).json["error"]["param"], "model", "a name that is no text")
        # Figures say whose they are.
        for path in ("/v1/kv", "/v1/cache"):
            same(s.get(path).json["model"], "a", path)
            same(s.get(path + "?model=b").json["model"], "b", path)
            same(s.get(path + "?model=org%2Fc").json["model"], "org/c", path)
            same(s.get(path + "?model=x").status, 404, path)
        check(s.get("/v1/kv?model=b").json["generated_tokens"] > 0, "tokens of b")
        same(s.metric("tern_model_loaded", "b"), 1, "metrics")
        same([m["model"] for m in s.get("/ready").json["models"]], ["a", "b", "org/c"], "ready")
        same(s.get("/tokenizer_info?model=b").json["model"], "b", "tokenizer")
        ids = s.post("/tokenize", {"content": "hello", "model": "b"}).json["tokens"]
        same(s.post("/detokenize", {"tokens": ids, "model": "b"}).json["content"], "hello", "ids")


def test_refused():
    equals = os.path.join(work, "x=y.gguf")
    shutil.copy(TEXT, equals)
    same(alone(equals), want["a"], "a path with an equals sign")
    with Server("-m", f"n={equals}") as s:
        same(choices(s.post("/v1/completions", {**ASK, "model": "n"})), want["a"], "behind a name, too")
    for options, status, word in (
            (["-m", "=" + MODEL], 2, "the name is missing"), (["-m", "a="], 2, "the file is missing"), (["-m", ""], 2, "empty"),
            (["-m", "a=" + TEXT, "-m", "a=" + MODEL], 2, "two models are called"), (["-m", "b=" + work + "/none"], 1, "/none"),
            (["-m", work + "/none=b"], 1, "b: "), (["-m", "default=" + TEXT], 2, "always means the first"),
            (["-m", "*=" + TEXT], 2, "--alias"), (["-m", "a\nb=" + TEXT], 2, "control characters"),
            (["-m", "x" * 200 + "=" + TEXT], 2, "at most"), (["-m", "b=" + TEXT, "--alias", "b"], 2, "--alias b"),
            (["-m", "b=" + TEXT, "--packed", work + "/p"], 2, "--packed"), (["--memory", "5X"], 2, "--memory"),
            (["--memory", "1M"], 1, "--memory is 1048576"), (["--models-dir", work], 2, "-m NAME=FILE"),
            (["--models-max", "4"], 2, "--memory"), (["--no-models-autoload"], 2, "when a request names it")):
        run = subprocess.run([TERN, "serve", "-m", MODEL, "--port", "0"] + options, capture_output=True, text=True,
                             timeout=60)
        same((run.returncode, run.stdout, run.stderr.count("\n"), word in run.stderr), (status, "", 1, True), options,
             run.stderr)
    config = os.path.join(work, "tern.conf")
    with open(config, "w", encoding="ascii") as f:
        f.write(f"model = a={TEXT}\nmodel = b={MODEL}\nmemory = 200M\n")
    run = subprocess.Popen([TERN, "serve", "--config", config, "--port", "0"], stdout=subprocess.PIPE, text=True)
    port = int(run.stdout.readline().rsplit(":", 1)[1])
    c = http.client.HTTPConnection("127.0.0.1", port)
    c.request("GET", "/v1/models")
    same([m["id"] for m in json.loads(c.getresponse().read())["data"]], ["a", "b"], "--config")
    run.send_signal(signal.SIGTERM)
    same(run.wait(60), 0, "status")


# ---- memory ----------------------------------------------------------------------------------------------------------

def test_budget():
    """One model fits: others take its place, the one that was not used for longest goes first."""
    with Server("-m", f"b={MODEL}", "-m", f"c={BIAS}", "--memory", "40M", "--kv-memory", "15M", "--cache-ram", "1M",
                model=f"a={TEXT}") as s:
        for name, loaded in (("a", "a"), ("b", "ab"), ("a", "ab"), ("c", "ac"), ("b", "bc"), ("b", "bc"), ("a", "ab")):
            same(choices(s.post("/v1/completions", {**ASK, "model": name})), want[name], name)
            same("".join(n for n, state in states(s).items() if state == "loaded"), loaded, "loaded after", name)
            check(held(s) <= 40 << 20, "more than the budget", held(s))
        check(s.metric("tern_model_unloads_total") == 3 and s.metric("tern_model_loads_total") == 5, "counted")
        check(s.metric("tern_generated_tokens_total", "c") == 24, "counters outlive models")
    with Server("-m", f"b={MODEL}", "--memory", "20M", model=f"a={TEXT}") as s:  # shares come from it
        for name in "abab":
            same(choices(s.post("/v1/completions", {**ASK, "model": name})), want[name], name)
            check(held(s) <= 20 << 20, "more than the budget", held(s))
    with Server("-m", f"large={large}", "--memory", "30M", "--kv-memory", "8M", "--cache-ram", "1M", "--packed", "off",
                model=f"a={TEXT}") as s:
        answer = s.complete(model="large")
        check(answer.status == 500 and "--memory is 31457280" in answer.json["error"]["message"], "never fits", answer.body)
        same((states(s)["a"], choices(s.post("/v1/completions", ASK))), ("loaded", want["a"]), "the other one stays")


def test_alternating():
    """Requests in turn and at once, with room for one model: slow, but every one is answered."""
    turns, crowd = (16, 40) if "TERN_TEST_SANITIZED" in os.environ else (60, 140)  # half a second for each time one is loaded
    with Server("-m", f"b={MODEL}", "--memory", "20M", "--kv-memory", "10M", "--cache-ram", "1M", model=f"a={TEXT}") as s:
        for i in range(turns):
            name = "ab"[i % 2]
            same(choices(s.post("/v1/completions", {**ASK, "model": name})), want[name], i, name)
        rng, lock, left, wrong, most = random.Random(3), threading.Lock(), list(range(crowd)), [], []

        def client():
            while True:
                with lock:
                    if not left:
                        return
                    left.pop()
                    name = rng.choice("ab")
                answer = s.post("/v1/completions", {**ASK, "model": name})
                if answer.status != 200 or answer.json["choices"] != want[name]:
                    wrong.append((name, answer.status, answer.body[:300]))

        threads = [threading.Thread(target=client) for _ in range(8)]
        for t in threads:
            t.start()
        while any(t.is_alive() for t in threads):
            most.append(held(s))
            time.sleep(0.05)
        for t in threads:
            t.join()
        same(wrong, [], "answers at once")
        check(max(most) <= 20 << 20, "more than the budget", max(most))
        same(s.stop(signal.SIGTERM), 0, "status")


def test_together():
    """Both in memory, and both at work."""
    with Server("-m", f"b={MODEL}", "--memory", "200M", model=f"a={TEXT}") as s:
        got = {}

        def client(i):
            got[i] = choices(s.post("/v1/completions", {**ASK, "model": "ab"[i % 2]}))

        threads = [threading.Thread(target=client, args=(i,)) for i in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for i in range(16):
            same(got.get(i), want["ab"[i % 2]], "request", i)
        same(s.metric("tern_model_loads_total", "b"), 1, "loaded once")


def test_busy():
    """A model that answers is not unloaded; who waits for its memory gets it in the end, or leaves."""
    with Server("-m", f"b={MODEL}", "--memory", "20M", "--kv-memory", "10M", "--cache-ram", "1M", "--parallel", "4", model=f"a={TEXT}") as s:
        busy = Busy(s)
        waiting = s.socket()
        waiting.sendall(request("/v1/completions", {**ASK, "model": "b", "stream": True}))
        waiting.settimeout(20)
        got = b""
        while b": loading waiting" not in got and b": loading 0 %" not in got:
            got += waiting.recv(4096)
        same((states(s)["a"], states(s)["b"]), ("loaded", "loading"), "while a is busy")
        same(s.get("/ready").status, 200, "ready")
        waiting.close()
        wait_for(lambda: states(s)["b"] == "unloaded", "nobody waits for b any more")
        same(states(s)["a"], "loaded", "a stays")
        busy.close()
        check(s.wait_idle(), "a comes to rest")
        # b is let in when those who are busy leave; new requests to a come after that.
        busy = Busy(s)
        answers = []
        threads = [threading.Thread(target=lambda name=name: answers.append(
            (name, choices(s.post("/v1/completions", {**ASK, "model": name}))))) for name in "ba"]
        threads[0].start()
        wait_for(lambda: states(s)["b"] == "loading", "b is wanted")
        time.sleep(6)  # b has waited long enough: a takes no more
        threads[1].start()
        time.sleep(0.5)
        same(answers, [], "both wait")
        busy.close()
        for t in threads:
            t.join()
        same(sorted(answers), [("a", want["a"]), ("b", want["b"])], "both are answered")


# ---- loading ---------------------------------------------------------------------------------------------------------

def test_failing():
    broken, gone = os.path.join(work, "broken.gguf"), os.path.join(work, "gone.gguf")
    with open(broken, "wb") as f:
        f.write(open(TEXT, "rb").read(100000))
    shutil.copy(MODEL, gone)
    with Server("-m", f"broken={broken}", "-m", f"gone={gone}", model=f"a={TEXT}") as s:
        os.unlink(gone)
        for name in ("broken", "gone", "broken"):
            for path, body, where in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]},
                                       lambda j: j["error"]["message"]),
                                      ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3},
                                       lambda j: j["error"]["message"]),
                                      ("/api/generate", {"prompt": "a"}, lambda j: j["error"])):
                answer = s.post(path, {**body, "model": name})
                text = where(answer.json)
                check(answer.status == 500 and f'"{name}" could not be loaded' in text and work not in text, name, path,
                      answer.status, text)
            same(choices(s.post("/v1/completions", ASK)), want["a"], "the server goes on")
        check(f"{broken}: " in s.said() and f"model gone could not be loaded: " in s.said(), "and says why", s.said())
        shutil.copy(BIAS, gone)
        same(choices(s.post("/v1/completions", {**ASK, "model": "gone"})), want["c"], "it is there again")
        same(s.metric("tern_model_load_failures_total", "gone"), 3, "counted")


def test_replaced():
    """The file of a model that is not loaded may be another one the next time."""
    path, folder = os.path.join(work, "replaced.gguf"), os.path.join(work, "prompts")
    long = {**ASK, "prompt": "the quick brown fox " * 60}
    shutil.copy(MODEL, path)
    with Server("-m", f"b={path}", "--memory", "20M", "--kv-memory", "10M", "--cache-ram", "1M", "--cache-disk", folder,
                model=f"a={TEXT}") as s:
        first = {name: choices(s.post("/v1/completions", {**long, "model": name})) for name in "ab"}
        choices(s.post("/v1/completions", ASK))
        same(states(s)["b"], "unloaded", "b made room")
        again = s.post("/v1/completions", {**long, "model": "b"})
        same(choices(again), first["b"], "from the directory")
        check(again.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, "it was found there", again.json["usage"])
        choices(s.post("/v1/completions", ASK))
        shutil.copy(BIAS, path)
        other = s.post("/v1/completions", {**long, "model": "b"})
        same(other.json["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "of another model nothing is used")
        same(choices(s.post("/v1/completions", {**ASK, "model": "b"})), want["c"], "the other model")


def test_loading():
    slow = ("--calibration", "now", "--packed", "off")
    beside = large + ".ternkv"
    with Server("-m", f"large={large}", *slow, model=f"a={TEXT}") as s:
        # Two ask for it, it is loaded once; streams say how far it is.
        comments, answers = [], []

        def stream():
            said, events = s.events("/v1/completions", {**ASK, "model": "large", "stream": True})
            comments.extend(said)
            answers.append(events[-1][1])

        threads = [threading.Thread(target=stream) for _ in range(2)]
        for t in threads:
            t.start()
        wait_for(lambda: states(s)["large"] == "loading", "it is loaded")
        same(choices(s.post("/v1/completions", ASK)), want["a"], "others go on meanwhile")
        for t in threads:
            t.join()
        check(any(c.startswith(": loading ") for c in comments), "comments", comments[:3])
        same(answers, ["[DONE]", "[DONE]"], "and then the answers")
        same(s.metric("tern_model_loads_total", "large"), 1, "loaded once")
        events = s.events("/v1/messages", {"model": "large", "max_tokens": 2, "stream": True,
                                           "messages": [{"role": "user", "content": "a"}]})[1]
        same(events[0][0], "message_start", "another API")
    os.unlink(beside)
    if "TERN_TEST_SANITIZED" in os.environ:  # a minute for each time that it is loaded
        return
    with Server("-m", f"large={large}", *slow, "--queue", "3", model=f"a={TEXT}") as s:
        # Who leaves takes only his own request with him; more than the queue holds are refused.
        clients = [s.socket() for _ in range(3)]
        for c in clients:
            c.sendall(request("/v1/completions", {**ASK, "model": "large"}))
        wait_for(lambda: s.metric("tern_model_requests_loading") == 3, "three wait")
        answer = s.complete(model="large")
        check(answer.status in (200, 429), "beyond the queue", answer.status)
        clients[0].close()
        clients[2].close()
        clients[1].settimeout(60)
        got = b""
        while b'"usage"' not in got:
            piece = clients[1].recv(65536)
            if not piece:
                break
            got += piece
        check(b"HTTP/1.1 200" in got, "the one that stayed is answered", got[:200])
        clients[1].close()
        check(s.wait_idle(), "nothing is left")
    os.unlink(beside)
    with Server("-m", f"large={large}", *slow, "--timeout", "0.2", model=f"a={TEXT}") as s:
        answer = s.complete(model="large")
        same((answer.status, answer.json["error"]["code"]), (504, "timeout"), "--timeout counts from the beginning")
    if os.path.exists(beside):
        os.unlink(beside)


def test_end():
    for signals, status in ((1, 0), (2, 143)):  # while a model is loaded
        with Server("-m", f"large={large}", "--calibration", "now", "--packed", "off", model=f"a={TEXT}") as s:
            busy, c = Busy(s) if signals == 2 else None, s.socket()
            c.sendall(request("/v1/completions", {**ASK, "model": "large"}))
            wait_for(lambda: states(s)["large"] == "loading", "it is loaded")
            began = time.time()
            s.process.send_signal(signal.SIGTERM)
            c.settimeout(20)
            got = c.recv(65536)
            check(got.startswith(b"HTTP/1.1 503") and b"shutting" in got, "who waits is told", got[:300])
            c.close()
            if signals == 2:
                time.sleep(0.3)
                same(s.process.poll(), None, "it waits for what runs")
                s.process.send_signal(signal.SIGTERM)
            same(s.process.wait(60), status, "status")
            check(time.time() - began < 10, "in time", time.time() - began)
            if busy:
                busy.close()
        for left in (large + ".ternkv",):
            if os.path.exists(left):
                os.unlink(left)
    same([f for f in os.listdir(work) if ".part" in f or ".tmp" in f], [], "nothing half written is left")
    folder = os.path.join(work, "drained")
    prompt = "the quick brown fox " * 60
    options = ("-m", f"b={MODEL}", "--cache-disk", folder)
    with Server(*options, model=f"a={TEXT}") as s:  # what both know goes to files
        first = {name: choices(s.post("/v1/completions", {**ASK, "prompt": prompt, "model": name})) for name in "ab"}
        same(s.stop(signal.SIGTERM), 0, "status")
    with Server(*options, model=f"a={TEXT}") as s:
        for name in "ab":
            answer = s.post("/v1/completions", {**ASK, "prompt": prompt, "model": name})
            same(choices(answer), first[name], "after a restart", name)
            check(answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, "found", name, answer.json["usage"])


def test_keep_alive():
    with Server("-m", f"b={MODEL}", model=f"a={TEXT}") as s:
        def generate(keep, **more):
            return s.post("/api/generate", {"model": "b", "prompt": "hello", "stream": False, "keep_alive": keep,
                                            "options": {"num_predict": 2}, **more})

        for keep in (0, "0", "0s", 0.05, "50ms"):
            same(generate(keep).status, 200, keep)
            wait_for(lambda: states(s)["b"] == "unloaded", "keep_alive", keep)
        for keep in (-1, "-1", "5m", "1h30m", 300):
            same(generate(keep).status, 200, keep)
            time.sleep(0.3)
            same(states(s)["b"], "loaded", keep)
        rows = {m["name"]: m["expires_at"] for m in s.get("/api/ps").json["models"]}
        check(rows["a"].startswith("9999") and not rows["b"].startswith("9999"), "/api/ps tells it", rows)
        same(generate(0, prompt="").json["done_reason"], "unload", "without a prompt")
        wait_for(lambda: states(s)["b"] == "unloaded", "unloaded without a prompt")
        for keep in ("x", "5x", "", True, [], "5m3"):
            same((generate(keep).status, states(s)["b"] == "x"), (400, False), keep)
    with Server() as s:  # a server with one model, too
        same(s.post("/api/generate", {"keep_alive": 0}).status, 200, "unload")
        wait_for(lambda: set(states(s).values()) == {"unloaded"}, "the only one")
        same((s.get("/ready").status, s.get("/v1/kv").json["state"]), (200, "unloaded"), "without any model")
        same(s.get("/tokenizer_info").status, 503, "not loaded")
        same(choices(s.post("/v1/completions", ASK)), want["b"], "and back")


def test_drafts():
    base = os.environ["BASE_MODEL"]
    want["base"] = alone(base)
    with Server("-m", f"base={base}", "-m", f"c={BIAS}", "--draft", TEXT, model=f"a={TEXT}") as s:
        for name in ("a", "base", "c"):
            same(choices(s.post("/v1/completions", {**ASK, "model": name})), want[name], "with guesses", name)
        check(s.metric("tern_draft_tokens_total", "a") > 0 and s.metric("tern_draft_tokens_total", "c") > 0, "of a model")
        same(s.metric("tern_draft_tokens_total", "base"), 0, "base has another vocabulary")
        check("which has another vocabulary" in s.said(), "and that is said", s.said())


for test in (test_names, test_refused, test_budget, test_alternating, test_together, test_busy, test_failing, test_replaced,
             test_loading, test_end, test_keep_alive, test_drafts):
    began = time.time()
    test()
    print(test.__name__, round(time.time() - began, 1), "s", flush=True)
shutil.rmtree(work)
finish()
