"""Cache files through HTTP: out of one server and into another, and everything that is refused on the way."""
import json
import os
import signal
import subprocess
import tempfile

from serve_lib import MODEL, TERN, Server, check, finish, same

TEXT = "the quick brown fox jumps over the lazy dog, " * 40
KEY = {"Authorization": "Bearer secret"}


def cached(answer):
    same(answer.status, 200, "an answer:", answer.body[:300])
    return answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def text(answer):
    return answer.json["choices"][0]["text"]


def refused(answer, status, *words):
    same(answer.status, status, "refused:", answer.body[:300])
    message = answer.json["error"]["message"]
    for word in words:
        check(word in message, word, "is in", message)


def content(path):
    with open(path, "rb") as f:
        return f.read()


work = tempfile.mkdtemp()
folder = os.path.join(work, "files")
os.mkdir(folder)
options = ("--cache-files", folder)
path = os.path.join(folder, "a.ternc")

with Server() as s:
    for what in ("export", "import"):
        refused(s.post("/v1/cache/" + what, {"prompt": TEXT, "file": "a.ternc"}), 404, "--cache-files")
    cold, longer = s.complete(TEXT), s.complete(TEXT + "and on")
    n = cold.json["usage"]["prompt_tokens"]
whole = n // 64 * 64

# ---- out -------------------------------------------------------------------------------------------------------------
with Server(*options) as s:
    answer = s.post("/v1/cache/export", {"prompt": TEXT, "file": "a.ternc"})
    same(answer.status, 200, "export", answer.body)
    same(answer.json["tokens"], whole, "whole pages")
    same(answer.json["bytes"], os.path.getsize(path), "bytes")
    same(os.stat(path).st_mode & 0o777, 0o600, "who may read it")
    s.complete(TEXT)
    s.post("/v1/cache/export", {"prompt": TEXT, "file": "b.ternc"})
    check(content(path) == content(os.path.join(folder, "b.ternc")), "the same bytes, computed or found")
    raw = s.post("/v1/cache/export", {"prompt": TEXT})
    same(raw.headers["Content-Type"], "application/octet-stream", "bytes")
    check(raw.body == content(path), "the same bytes over HTTP")
    chat = s.post("/v1/cache/export", {"messages": [{"role": "user", "content": TEXT}], "file": "chat.ternc"})
    same(chat.status, 200, "a conversation", chat.body)
    for name in ("../x.ternc", "/tmp/x.ternc", "x", ".x.ternc", ".ternc", "a/b.ternc", "x\n.ternc", "y" * 300 + ".ternc", ""):
        for what in ("export", "import"):
            refused(s.post("/v1/cache/" + what, {"prompt": TEXT, "file": name}), 400, "file")
    refused(s.post("/v1/cache/export", {"prompt": "short", "file": "c.ternc"}), 400, "whole pages of 64")
    refused(s.post("/v1/cache/export", {"file": "c.ternc"}), 400, "prompt")
    refused(s.post("/v1/cache/export", {"prompt": [TEXT, TEXT]}), 400, "one prompt")
    refused(s.post("/v1/cache/export", {"prompt": TEXT, "messages": []}), 400, "exclude")
    with open(os.path.join(folder, "letter.ternc"), "w") as f:
        f.write("a letter")
    same(s.post("/v1/cache/export", {"prompt": TEXT, "file": "letter.ternc"}).status // 100, 4, "somebody's letter")
    same(content(os.path.join(folder, "letter.ternc")), b"a letter", "what is no cache file stays")
    os.symlink(os.path.join(work, "outside"), os.path.join(folder, "link.ternc"))
    refused(s.post("/v1/cache/export", {"prompt": TEXT, "file": "link.ternc"}), 400, "link.ternc")
    check(not os.path.exists(os.path.join(work, "outside")), "nothing outside the directory")
with Server(*options, "--max-body", "64K") as s:
    refused(s.post("/v1/cache/export", {"prompt": TEXT}), 413, "--max-body", "name a file")
    same(s.post("/v1/cache/import", content(path)).status, 413, "a body that is too large")

# ---- what the program makes and reads --------------------------------------------------------------------------------
built = os.path.join(work, "built.ternc")
r = subprocess.run([TERN, "cache", "build", "-m", MODEL, "--raw", "--calibration", "off", "-p", TEXT, "-o", built],
                   capture_output=True, text=True)
same(r.returncode, 0, "build", r.stderr)
check(content(built) == content(path), "the bytes of tern cache build")
same(subprocess.run([TERN, "cache", "verify", path], capture_output=True).returncode, 0, "verify")

# ---- in --------------------------------------------------------------------------------------------------------------
for way in ({"file": "a.ternc"}, content(path)):
    with Server(*options) as s:
        answer = s.post("/v1/cache/import", way)
        same(answer.status, 200, "import", answer.body)
        same(answer.json["tokens"], whole, "tokens")
        answer = s.complete(TEXT + "and on")
        same(cached(answer), whole, "found after a restart")
        same(text(answer), text(longer), "as cold")
        answer = s.complete(TEXT)
        same(text(answer), text(cold), "as cold")
        check(cached(answer) >= (n - 1) // 64 * 64, "found", cached(answer))
        same(s.post("/v1/cache/import", way).status, 200, "again")

# ---- what is refused, and changes nothing ----------------------------------------------------------------------------
good = content(path)
with Server(*options) as s:
    for at in (0, 8, 12, 16, 30, 40, 250, 300, len(good) // 3, len(good) // 2, len(good) - 1):
        bad = bytearray(good)
        bad[at] ^= 4
        refused(s.post("/v1/cache/import", bytes(bad)), 400 if at != 0 else 400)
    for cut in (8, 100, 256, 1000, len(good) - 64, len(good) - 1):
        refused(s.post("/v1/cache/import", good[:cut]), 400, "cache file")
    refused(s.post("/v1/cache/import", good + bytes(64)), 400, "bytes")
    refused(s.post("/v1/cache/import", {"file": "none.ternc"}), 404, "none.ternc")
    refused(s.post("/v1/cache/import?model=other", {"file": "none.ternc"}), 400, "not the query")
    refused(s.post("/v1/cache/import", {"file": "link.ternc"}), 400, "link")
    refused(s.post("/v1/cache/import", {"file": "letter.ternc"}), 400, "letter.ternc")
    refused(s.post("/v1/cache/import", {}), 400, "file is missing")
    os.mkdir(os.path.join(folder, "dir.ternc"))
    refused(s.post("/v1/cache/import", {"file": "dir.ternc"}), 400, "dir.ternc")
    os.mkfifo(os.path.join(folder, "pipe.ternc"))
    refused(s.post("/v1/cache/import", {"file": "pipe.ternc"}), 400, "pipe.ternc")
    same(s.get("/v1/cache").json["memory"]["entries"], 0, "nothing was kept")
    same(cached(s.complete(TEXT)), 0, "nothing is found")
with Server(*options, "--kv", "q8") as s:
    refused(s.post("/v1/cache/import", good), 409, "--kv t4", "--kv q8")
with Server(*options, "--exact", "--kv", "t4") as s:
    refused(s.post("/v1/cache/import", good), 409, "arithmetic")
with Server(*options, model=os.environ["BASE_MODEL"]) as s:
    refused(s.post("/v1/cache/import", {"file": "a.ternc"}), 409, "weights")
with Server(*options, "--cache-ram", "64K") as s:
    refused(s.post("/v1/cache/import", {"file": "a.ternc"}), 413, "--cache-ram")
    refused(s.post("/v1/cache/import", good), 413, "room")
with Server(*options, "--ctx", "256") as s:
    refused(s.post("/v1/cache/import", good), 413, "context holds 256")
with Server(*options, "--kv", "t4,recent=128") as s:
    refused(s.post("/v1/cache/export", {"prompt": TEXT}), 400, "recent=N")

# ---- keys ------------------------------------------------------------------------------------------------------------
with Server(*options, "--api-key", "secret") as s:
    for what in ("export", "import"):
        same(s.post("/v1/cache/" + what, {"file": "a.ternc", "prompt": TEXT}).status, 401, "without a key")
    same(s.post("/v1/cache/import", {"file": "a.ternc"}, KEY).status, 200, "with a key")
for bad in (os.path.join(work, "none"), path):
    r = subprocess.run([TERN, "serve", "-m", MODEL, "--cache-files", bad], capture_output=True, text=True)
    check(r.returncode == 1 and "is no directory" in r.stderr, "no directory", r.stderr)
r = subprocess.run([TERN, "serve", "-m", MODEL, "--cache-files", folder, "--cache-ram", "0"], capture_output=True, text=True)
check(r.returncode == 2 and "cache-files" in r.stderr, "no cache", r.stderr)

# ---- recurrent and window plans start at turns: recent=128 does, too -------------------------------------------------
with Server("--kv", "t4,recent=128") as s:
    def chat(*turns):
        roles = ("system", "user", "assistant", "user")
        body = {"messages": [{"role": r, "content": c} for r, c in zip(roles, turns)], "max_tokens": 4, "temperature": 0}
        return s.post("/v1/chat/completions", body)

    long = "read this well. " * 30
    first = chat(long, "one " * 60)
    same(cached(first), 0, "the first")
    parted = chat(long, "one " * 60, "yes", "two " * 60)
    check(cached(parted) > 64, "parts behind a turn", cached(parted))
    other = chat(long, "another one")
    check(cached(other) > 64, "parts behind the instructions", cached(other))
finish()
