"""tern serve by --device auto: each model chooses when it is loaded, on a card that is not real (fake_driver.c)."""
import os
import sys
import time

sys.path.insert(0, os.environ["E2E"])

from serve_lib import MODEL, Server, check, finish, same

TEXT = os.environ["MODEL"]
FALLEN = "running on the CPU, not on the card: "
OPTIONS = ("--ctx", "512", "--calibration", "off", "--cache-ram", "1M", "--parallel", "2", "--packed", "off")


def look(server, model):
    o = server.get("/v1/kv?model=" + model).json
    return o.get("device", "").split(":")[0], o.get("device_reason")


def ask(server, model, **more):
    answer = server.complete(model=model, **more)
    same(answer.status, 200, model, answer.body)


def unloaded(server, model):
    end = time.time() + 30
    while look(server, model)[0] and time.time() < end:
        time.sleep(0.02)
    return look(server, model)[0] == ""


def main():
    os.environ["FAKE_CUDA"] = ""
    with Server(*OPTIONS, model=f"a={TEXT}") as s:
        kv = s.get("/v1/kv").json
        same((kv["device"].split(":")[0], "device_reason" in kv, "card" in kv), ("cuda", False, True), "one that serves")
        check(FALLEN not in s.said(), "nothing to say", s.said())
    os.environ["FAKE_CUDA"] = "none"
    with Server(*OPTIONS, model=f"a={TEXT}") as s:
        kv = s.get("/v1/kv").json
        same((kv["device"], "device_reason" in kv, "card" in kv), ("cpu", False, False), "no card")
        check(FALLEN not in s.said(), "nothing to say", s.said())
    os.environ["FAKE_CUDA"] = "old"
    with Server(*OPTIONS, model=f"a={TEXT}") as s:
        device, why = look(s, "a")
        same((device, "7.5" in why, s.said().count(FALLEN)), ("cpu", True, 1), "an old card", why, s.said())
        ask(s, "a")
    os.environ["FAKE_CUDA"] = ""
    # What a plan is refused for is refused for all; the memory that was held for the card is not held any more.
    with Server(*OPTIONS, "--kv", "t4,max=128", "-m", f"b={MODEL}", "--memory", "40M", "--kv-memory", "15M",
                model=f"a={TEXT}") as s:
        for name in "abab":
            ask(s, name)
            same(look(s, name)[0], "cpu", name)
            check("keeps no first tokens" in look(s, name)[1], look(s, name))
        check(s.said().count(FALLEN) >= 2, s.said())
        held = s.metric("tern_memory_held_bytes")
        check(held is None or held <= 40 << 20, "more than the budget", held)
    # Each by itself, when it is loaded: who comes first has the card, and it is free again when that is unloaded.
    os.environ["FAKE_CUDA"] = "nine"
    with Server(*OPTIONS, "--kv-memory", "320M", "-m", f"b={MODEL}", model=f"a={TEXT}") as s:
        same(look(s, "a"), ("cuda", None), "the first", s.said())
        for first, second in ("ab", "ba", "ab"):
            ask(s, first)
            ask(s, second)
            same((look(s, first)[0], look(s, second)[0]), ("cuda", "cpu"), first, second, s.said())
            check("leave" in look(s, second)[1], look(s, second))
            for name in "ab":
                same(s.post("/api/generate", {"model": name, "prompt": "", "keep_alive": 0}).status, 200, "unload", name)
            for name in "ab":
                same(unloaded(s, name), True, "unloaded", name)
    # Without sizes the models of one card share it.
    os.environ["FAKE_CUDA"] = "nine"
    with Server(*OPTIONS, "-m", f"b={MODEL}", model=f"a={TEXT}") as s:
        ask(s, "b")
        same((look(s, "a"), look(s, "b")), (("cuda", None), ("cuda", None)), "both", s.said())


main()
finish()
