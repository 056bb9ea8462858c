"""Prompts that are known after a restart: files, another server, kill -9, damage, tern cache."""
import os
import signal
import subprocess
import tempfile

from serve_lib import MODEL, TERN, Server, check, finish, same

TEXT = "the quick brown fox jumps over the lazy dog, " * 40


def cached(answer):
    same(answer.status, 200, "a completion:", answer.body[:300])
    return answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def text(answer):
    return answer.json["choices"][0]["text"]


def tern(*args, status=0):
    r = subprocess.run([TERN, *args], capture_output=True, text=True)
    same(r.returncode, status, args, r.stderr)
    return r.stdout + r.stderr


def files(folder):
    return [os.path.join(folder, f) for f in os.listdir(folder) if f.endswith((".page", ".end", ".state"))]


work = tempfile.mkdtemp()
folder = os.path.join(work, "cache")
options = ("--cache-disk", folder, "--cache-disk-gb", "0.5", "--cache-disk-min-free", "0")

# ---- cold, again, after a restart, at another server -----------------------------------------------------------------
with Server("--cache-ram", "0") as s:
    cold, longer = s.complete(TEXT), s.complete(TEXT + "and on")
    n = cold.json["usage"]["prompt_tokens"]
    same(cached(cold), 0, "cold")
    same(cached(s.complete(TEXT)), 0, "--cache-ram 0 keeps nothing")
    same(s.get("/v1/cache").json["memory"], None, "no memory tier")
with Server(*options) as s:
    same(cached(s.complete(TEXT)), 0, "the first time")
    same(cached(s.complete(TEXT)), n, "the second time")
    c = s.get("/v1/cache").json
    check(c["hits"] == 1 and c["misses"] == 1 and c["why_misses"]["nothing_known"] == 1, "hits and misses:", c)
    same(c["shared"], None, "no store")
    same(s.stop(signal.SIGTERM), 0, "ended")
check(len(files(folder)) >= n // 64, "files", files(folder))
same(os.stat(folder).st_mode & 0o777, 0o700, "who may look into the folder")
with Server(*options) as s, Server(*options) as other:
    for server in (s, other):
        answer = server.complete(TEXT)
        same(cached(answer), n, "after a restart")
        same(text(answer), text(cold), "after a restart")
        answer = server.complete(TEXT + "and on")
        check(cached(answer) >= n // 64 * 64, "a longer one", cached(answer))
        same(text(answer), text(longer), "a longer one")
        c = server.get("/v1/cache").json
        check(c["fetched"] > 0 and c["disk"]["read"] == c["fetched"] and c["disk"]["damaged"] == 0, "what came back", c)
        check(server.metric("tern_cache_disk_read_total") > 0, "in the metrics, too")
same(tern("cache", "verify", folder).count("pages of 64 tokens"), 1, "verify")

# ---- killed at any time ----------------------------------------------------------------------------------------------
for i in range(int(os.environ.get("TERN_TEST_KILLS", 3))):
    s = Server(*options)
    prompt = TEXT + f"killed {i} " * (20 + i)
    want = None
    for k in range(2):
        answer = s.complete(prompt)
        same(answer.status, 200, "before the kill")
        want = want or text(answer)
        same(text(answer), want, "the same again")
    s.stop(signal.SIGKILL)
    with Server(*options) as s:
        same(text(s.complete(prompt)), want, "after kill -9")
        same(s.get("/v1/cache").json["disk"]["damaged"], 0, "damaged files")

# ---- damage ----------------------------------------------------------------------------------------------------------
for name in files(folder):
    with open(name, "r+b") as f:
        f.seek(os.path.getsize(name) // 2)
        b = f.read(1)
        f.seek(-1, 1)
        f.write(bytes([b[0] ^ 1]))
out = tern("cache", "verify", folder, status=1)
check("is damaged at byte" in out, "verify tells what is wrong:", out[:300])
with Server(*options) as s:
    answer = s.complete(TEXT)
    same((cached(answer), text(answer)), (0, text(cold)), "damaged files")
    same(s.get("/v1/cache").json["disk"]["damaged"], 1, "found out")
    check("set aside" in s.said(), "a line:", s.said())
    same(cached(s.complete(TEXT)), n, "computed, and kept again")

# ---- caps, refusals, removal -----------------------------------------------------------------------------------------
little = os.path.join(work, "little")
with Server("--cache-disk", little, "--cache-disk-gb", "0.001", "--cache-disk-min-free", "0") as s:
    for i in range(8):
        s.complete(f"{i} " + TEXT)
total = sum(os.path.getsize(f) for f in files(little))
check(0 < total <= 0.001 * 2**30, "a directory that may not grow:", total)
check("removed" in tern("cache", "rm", folder), "removed")
same(files(folder), [], "what is left")
check("0 pages" in tern("cache", "ls", folder), "an empty one")
out = tern("serve", "-m", MODEL, "--cache-disk", folder, "--cache-ram", "0", status=2)
check("--cache-ram 0 leaves no room" in out, "no memory", out)
for size in ("nan", "-1", "x", "1e99"):
    out = tern("serve", "-m", MODEL, "--cache-ram", size, status=2)
    check("--cache-ram must be a number from 0 to " in out, size, out)
out = tern("serve", "-m", MODEL, "--port", "0", "--cache-disk", "/proc/none", status=1)
check("/proc/none" in out, "no such place", out)
out = tern("serve", "-m", MODEL, "--port", "0", "--cache-shared", "http://x", status=1)
check("redis://HOST:PORT" in out or "without hiredis" in out, "no such store", out)
finish()
