"""tern serve: the API of OpenAI, whole and streamed."""
import http.client
import json
import math
import os
import re
import shutil
import socket
import ssl
import subprocess
import tempfile

from serve_lib import CALL, CONTROL, DONE, HALF_CALL, MODEL, TERN, THINK, Server, check, finish, same, status_of

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


def run_text(prompt, n, *more):
    """What `tern run` prints for the same prompt."""
    out = subprocess.run([TERN, "run", "-m", MODEL, "-p", prompt, "-n", str(n), *more], capture_output=True, check=True)
    return out.stdout.decode("utf-8", "replace")


def test_plain(s):
    for path in ("/health", "/ready"):
        a = s.get(path)
        same((a.status, a.json["status"]), (200, "ok"), path)
    models = s.get("/v1/models").json
    name = models["data"][0]["id"]
    same((models["object"], name), ("list", "tools"), "the list of models")
    same(s.get("/v1/models/tools").json["id"], "tools", "one model")
    same(s.get("/v1/models/other").status, 404, "another model")
    same(s.get("/v1/nothing").json["error"]["type"], "not_found_error", "no such path")
    a = s.get("/v1/chat/completions")
    same((a.status, a.headers["Allow"]), (405, "POST"), "a wrong method")
    head = s.ask("HEAD", "/health")
    same((head.status, head.body), (200, b""), "HEAD")
    kv = s.get("/v1/kv").json
    check(kv["spec"] == "t4" and kv["bytes_per_token"] < kv["f16_bytes_per_token"] and len(kv["layers"]) == 3, kv)


def test_chat(s):
    a = s.chat()
    same(a.status, 200, a.body)
    j = a.json
    choice = j["choices"][0]
    same(j["object"], "chat.completion", "object")
    same(choice["message"]["role"], "assistant", "role")
    check("tool_calls" not in choice["message"], "no empty list of calls")
    check(j["id"].startswith("chatcmpl-") and a.headers["x-request-id"] in j["id"], "ids")
    same(choice["finish_reason"], "length", "finish")
    same(choice["message"]["content"], run_text("hello", 8), "the text of tern run")
    u = j["usage"]
    same((u["completion_tokens"], u["total_tokens"]), (8, u["prompt_tokens"] + 8), "usage")
    same(s.chat().json["choices"], j["choices"], "the same again")
    whole = [{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]
    joined = s.post("/apply-template", {"messages": whole}).json["prompt"]
    check("hel\nlo" in joined, "parts are joined", joined)
    seeded = [s.chat(temperature=1, seed=5).json["choices"] for _ in range(2)]
    same(seeded[0], seeded[1], "a seed")
    check(s.chat(temperature=1, seed=6).json["choices"] != seeded[0], "another seed, another text")
    same(seeded[0][0]["message"]["content"], run_text("hello", 8, "--temp", "1", "--seed", "5"), "tern run with a seed")
    several = s.chat(temperature=1, seed=5, n=3).json
    same([c["index"] for c in several["choices"]], [0, 1, 2], "three choices")
    same(several["choices"][0]["message"], seeded[0][0]["message"], "the first of three is the only one of one")
    same(several["usage"]["completion_tokens"], 24, "usage of three choices")
    a = s.chat(max_completion_tokens=3, model="default").json
    same(a["usage"]["completion_tokens"], 3, "max_completion_tokens")
    same(s.chat(model="gpt-4").status, 404, "a model that is not there")
    same(s.chat(model="").json["choices"], s.chat().json["choices"], "an empty name is none")
    same(s.get("/v1/kv?model=").json["model"], "tools", "in a query, too")


def chunks_of(s, body):
    comments, events = s.events("/v1/chat/completions", body)
    same(events[-1][1], "[DONE]", "the end of a stream")
    return [json.loads(data) for _, data in events[:-1]]


def test_chat_stream(s):
    body = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 8, "stream": True}
    chunks = chunks_of(s, body)
    same({c["object"] for c in chunks}, {"chat.completion.chunk"}, "objects")
    same(len({(c["id"], c["created"], c["model"]) for c in chunks}), 1, "one id in all chunks")
    same(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""}, "the first delta")
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    same(text, s.chat().json["choices"][0]["message"]["content"], "streamed text")
    same(chunks[-1]["choices"][0]["finish_reason"], "length", "finish")
    check("usage" not in chunks[0], "no usage unasked")
    chunks = chunks_of(s, {**body, "stream_options": {"include_usage": True}})
    same((chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]), ([], 8), "the usage chunk")
    check(all(c["usage"] is None for c in chunks[:-1]), "null usage before")
    chunks = chunks_of(s, {**body, "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    check(all(c["usage"]["total_tokens"] for c in chunks), "continuous usage")
    chunks = chunks_of(s, {**body, "n": 2, "temperature": 1, "seed": 3, "logprobs": True})
    same({c["choices"][0]["index"] for c in chunks}, {0, 1}, "two choices")
    for index in (0, 1):
        tokens = [t for c in chunks if c["choices"][0]["index"] == index
                  for t in (c["choices"][0].get("logprobs") or {"content": []})["content"]]
        same(len(tokens), 8, "streamed logprobs of a choice")


def test_tools(s):
    ask = {"tools": TOOLS, "logit_bias": {str(CALL): 500}, "max_tokens": 1}
    a = s.chat(**ask).json["choices"][0]
    call = a["message"]["tool_calls"][0]
    same(a["message"]["content"], None, "content beside calls")
    same((call["type"], call["function"]["name"]), ("function", "add"), "a call")
    same(json.loads(call["function"]["arguments"]), {"a": 1, "b": [2]}, "arguments are a text of JSON")
    a = s.chat(**{**ask, "stop_token_ids": [DONE], "logit_bias": {str(CALL): 500}, "max_tokens": 2}).json["choices"][0]
    same(len(a["message"]["tool_calls"]), 2, "two calls")
    a = s.chat(**{**ask, "max_tokens": 2, "parallel_tool_calls": False}).json["choices"][0]
    same(len(a["message"]["tool_calls"]), 1, "one at a time")
    for choice, n in (("required", 4), ({"type": "function", "function": {"name": "add"}}, 1)):
        free = [{"type": "function", "function": {"name": "add"}}]
        a = s.chat(**{**ask, "tools": free, "max_tokens": 4, "tool_choice": choice}).json
        same(len(a["choices"][0]["message"].get("tool_calls", [])), n, "calls for", choice, a)
    same(a["choices"][0]["finish_reason"], "tool_calls", "behind the named one the reply ends")
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "temperature": 0, **ask}
    deltas = [c["choices"][0]["delta"] for c in chunks_of(s, body)]
    calls = [d["tool_calls"][0] for d in deltas if "tool_calls" in d]
    same((calls[0]["index"], calls[0]["type"], calls[0]["function"]["name"], calls[0]["function"]["arguments"]),
         (0, "function", "add", ""), "the first delta of a call")
    check(all(set(c) == {"index", "function"} for c in calls[1:]), "later deltas carry arguments alone")
    same(json.loads("".join(c["function"]["arguments"] for c in calls)), {"a": 1, "b": [2]}, "streamed arguments")
    a = s.chat(**{**ask, "tool_choice": "none"}).json["choices"][0]["message"]
    check("tool_calls" not in a and "<tool_call>" in a["content"], "tool_choice none", a)
    history = [{"role": "user", "content": "add"},
               {"role": "assistant", "content": None, "tool_calls": [
                   {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}}]},
               {"role": "tool", "tool_call_id": "c1", "content": "3"}]
    a = s.post("/v1/chat/completions", {"messages": history, "tools": TOOLS, "max_tokens": 2, "temperature": 0})
    same(a.status, 200, "a conversation with calls", a.body)
    half = s.chat(tools=TOOLS, logit_bias={str(HALF_CALL): 500}, max_tokens=1).json["choices"][0]["message"]
    check("<tool_call>" in half["content"] and "tool_calls" not in half, "half a call is text", half)


def test_one_call(s):
    """Where one call is wanted nothing is generated behind it."""
    ask = {"tools": TOOLS, "logit_bias": {str(CALL): 500}, "max_tokens": 30, "parallel_tool_calls": False}
    a = s.chat(**ask).json
    c = a["choices"][0]
    same((len(c["message"]["tool_calls"]), c["finish_reason"], a["usage"]["completion_tokens"]), (1, "tool_calls", 1), "one call")
    a = s.chat(**ask, n=3, temperature=1).json
    same([len(c["message"]["tool_calls"]) for c in a["choices"]] + [a["usage"]["completion_tokens"]], [1, 1, 1, 3], "in three replies")
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "temperature": 0, **ask}
    chunks = chunks_of(s, {**body, "stream_options": {"include_usage": True}})
    same((chunks[-2]["choices"][0]["finish_reason"], chunks[-1]["usage"]["completion_tokens"]), ("tool_calls", 1), "in a stream")
    a = s.chat(**ask, min_tokens=4).json
    same((len(a["choices"][0]["message"]["tool_calls"]), a["usage"]["completion_tokens"]), (1, 4), "but min_tokens are promised")
    same(s.chat(**{**ask, "parallel_tool_calls": True}).json["usage"]["completion_tokens"], 30, "several go on")


def test_too_long(s):
    for path, body, param in [("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 15000000}]}, "messages"),
                              ("/v1/completions", {"prompt": "a " * 7500000}, "prompt")]:
        a = s.post(path, body)
        same((a.status, a.json["error"]["code"], a.json["error"]["param"]), (400, "context_length_exceeded", param), path)
        check("bytes" in a.json["error"]["message"], path, a.json)


def test_continued(s):
    begun = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": " Once <|im_end|> upon "}]
    asked = {"messages": begun, "continue_final_message": True, "add_generation_prompt": False}
    a = s.post("/apply-template", asked).json
    check(a["prompt"].endswith("assistant\n Once <|im_end|> upon "), "the prompt ends with the message", a["prompt"])
    check(s.post("/apply-template", {"messages": begun}).json["prompt"] != a["prompt"], "only where it is asked for")
    opened = s.post("/apply-template", {"messages": begun[:1]}).json["prompt"]
    spaces = [begun[0], {"role": "assistant", "content": " \n"}]
    same(s.post("/apply-template", {**asked, "messages": spaces}).json["prompt"], opened, "nothing to go on from")
    more = s.post("/v1/completions", {"prompt": a["tokens"], "max_tokens": 8, "temperature": 0}).json["choices"][0]["text"]
    check(len(more) > 0, "there is more")
    for path, body in [
            ("/v1/chat/completions", asked),
            ("/v1/chat/completions", {"messages": [begun[0], {**begun[1], "prefix": True}]}),
            ("/v1/messages", {"messages": begun}),
            ("/api/chat", {"messages": begun, "stream": False, "options": {"temperature": 0, "num_predict": 8}})]:
        sampled = {} if path[1] == "a" else {"max_tokens": 8, "temperature": 0}
        a = s.post(path, {**body, **sampled, "model": "tools"}).json
        text = (a["choices"][0]["message"]["content"] if "choices" in a else a["message"]["content"] if "message" in a
                else "".join(b["text"] for b in a["content"]))
        same(text, more, path)
    for text in ("<", "end", "|im", "user"): # which the template's own text has, too
        a = s.post("/apply-template", {**asked, "messages": [begun[0], {"role": "assistant", "content": text}]}).json
        check(a["prompt"].endswith("assistant\n" + text), text, a["prompt"])
    thought = [begun[0], {"role": "assistant", "content": "<think>\nHm, so"}]
    m = s.post("/v1/chat/completions", {**asked, "messages": thought, "max_tokens": 8, "temperature": 0}).json["choices"][0]["message"]
    check(m.get("reasoning_content") and not m["content"], "what goes on from open reasoning is reasoning", m)
    same(s.chat(messages=[begun[0], {**begun[1], "prefix": True}], add_generation_prompt=False).status, 200, "both names")
    call = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]}
    for wrong in [{"messages": begun[:1]}, {"messages": [begun[0], call]}, {"add_generation_prompt": True},
                  {"add_generation_prompt": 1}, {"response_format": {"type": "json_object"}}]:
        a = s.post("/v1/chat/completions", {**asked, **wrong})
        same((a.status, a.json["error"]["param"]),
             (400, "add_generation_prompt" if "add_generation_prompt" in wrong else "messages"), wrong)
    same(s.chat(add_generation_prompt=False).status, 400, "no reply, and no message that goes on")


def test_reasoning(s):
    a = s.chat(logit_bias={str(THINK): 500}, max_tokens=1).json
    m = a["choices"][0]["message"]
    same((m.get("reasoning_content"), m["content"]), ("Well.", ""), "reasoning")
    m = s.chat(logit_bias={str(THINK): 500}, max_tokens=1, reasoning_format="none").json["choices"][0]["message"]
    check("Well." in m["content"] and "reasoning_content" not in m, "reasoning that stays in the text", m)
    deltas = [c["choices"][0]["delta"] for c in chunks_of(s, {
        "messages": [{"role": "user", "content": "x"}], "stream": True, "logit_bias": {str(THINK): 500},
        "max_tokens": 1, "temperature": 0})]
    same("".join(d.get("reasoning_content", "") for d in deltas), "Well.", "streamed reasoning")
    on = s.post("/apply-template", {"messages": [{"role": "user", "content": "x"}],
                                    "chat_template_kwargs": {"enable_thinking": True}}).json["prompt"]
    check(on.endswith("<think>\n"), "a variable of the template", on)
    on = s.post("/apply-template", {"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "high"}).json
    check(on["prompt"].endswith("<think>\n"), "reasoning_effort", on)
    a = s.chat(chat_template_kwargs={"no_such": 1})
    same((a.status, a.json["error"]["param"]), (400, "chat_template_kwargs"), "an unknown variable")


def test_reasoning_counts(s):
    """Tokens of reasoning are counted, those of a call that is held back are not."""
    mixed = set()
    for seed in range(12):
        a = s.chat(logit_bias={str(THINK): 500, str(HALF_CALL): 500}, temperature=30, seed=seed, max_tokens=6, tools=TOOLS,
                   logprobs=True).json
        drawn = [t["token"].startswith("<think>") for t in a["choices"][0]["logprobs"]["content"]]
        want = (drawn + [False]).index(False)  # behind the beginning of a call everything is the call's
        same(a["usage"]["completion_tokens_details"]["reasoning_tokens"], want, "tokens of reasoning", seed, drawn)
        mixed.add(0 < want < 6)
    check(True in mixed, "a reply with both")


def test_logprobs(s):
    content = s.chat(logprobs=True, top_logprobs=3).json["choices"][0]["logprobs"]["content"]
    same(len(content), 8, "a logprob per token")
    for t in content:
        same(len(t["top_logprobs"]), 3, "top_logprobs")
        same(t["logprob"], t["top_logprobs"][0]["logprob"], "greedy takes the likeliest, with the same number")
        check(t["logprob"] <= 0 and all(0 <= b < 256 for b in t["bytes"]), t)
        same(bytes(t["bytes"]).decode("utf-8", "replace"), t["token"], "bytes and text")
    text = b"".join(bytes(t["bytes"]) for t in content if not t["token"].startswith("<|"))
    same(text.decode("utf-8", "replace"), s.chat().json["choices"][0]["message"]["content"], "bytes make the text")


def test_completions(s):
    a = s.complete().json
    same((a["object"], a["choices"][0]["finish_reason"]), ("text_completion", "length"), "a completion")
    same(a["choices"][0]["text"], run_text("hello", 8, "--raw"), "the text of tern run --raw")
    ids = s.post("/tokenize", {"content": "hello"}).json["tokens"]
    same(s.complete(ids).json["choices"], a["choices"], "ids instead of a text")
    both = s.complete(["hello", ids]).json
    same([c["text"] for c in both["choices"]], [a["choices"][0]["text"]] * 2, "two prompts")
    same([c["index"] for c in both["choices"]], [0, 1], "in order")
    same(both["usage"]["prompt_tokens"], 2 * len(ids), "usage of two prompts")
    four = s.complete(["hello", "x"], n=2, temperature=1, seed=1).json["choices"]
    same([c["index"] for c in four], [0, 1, 2, 3], "two choices of two prompts")
    echo = s.complete(echo=True).json["choices"][0]["text"]
    same(echo, "hello" + a["choices"][0]["text"], "echo")
    stream = {"prompt": "hello", "max_tokens": 8, "temperature": 0, "stream": True, "echo": True}
    _, events = s.events("/v1/completions", stream)
    same("".join(json.loads(d)["choices"][0]["text"] for _, d in events[:-1]), echo, "streamed with echo")
    best = s.complete(n=1, best_of=4, temperature=1, seed=9, logprobs=0).json["choices"]
    alone = s.complete(n=4, temperature=1, seed=9, logprobs=0).json["choices"]
    mean = lambda c: sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"])
    same(len(best), 1, "best_of")
    same(best[0]["text"], max(alone, key=mean)["text"], "the best of four")
    stopped = s.complete(stop=["zzz", a["choices"][0]["text"][3]]).json["choices"][0]
    same(stopped["finish_reason"], "stop", "a stop string")
    check(a["choices"][0]["text"].startswith(stopped["text"]) and len(stopped["text"]) < 4, "is not in the text")


def test_limits(s):
    """allowed_token_ids, include_stop_str_in_output and the names that llama-server has for the repetition penalty."""
    few = [65, 66, 67]
    for temperature in (0, 3):
        for more in ({}, {"logit_bias": {"68": 100}}, {"repeat_penalty": 1.5, "presence_penalty": 1}, {"top_k": 2}):
            a = s.complete(allowed_token_ids=few, temperature=temperature, seed=1, max_tokens=40, **more).json
            same(set(a["choices"][0]["text"]) - set("ABC"), set(), "allowed_token_ids", temperature, more)
            same(a["usage"]["completion_tokens"], 40, "and no end, which is not allowed")
    same(s.chat(allowed_token_ids=few, max_tokens=5, temperature=3).json["usage"]["completion_tokens"], 5, "in a chat")
    order = s.complete(allowed_token_ids=few, max_tokens=1, logprobs=20).json["choices"][0]
    best = s.complete(max_tokens=1, logprobs=20).json["choices"][0]["logprobs"]["top_logprobs"][0]
    same(order["logprobs"]["top_logprobs"][0] | best, order["logprobs"]["top_logprobs"][0], "log probabilities are the model's own")
    forced = {"logit_bias": {"65": 500}, "max_tokens": 5}
    for stop, kept in ((["AAA"], "AAA"), (["zz", "AA"], "AA")):
        same(s.complete(stop=stop, **forced).json["choices"][0]["text"], "", "a stop string")
        c = s.complete(stop=stop, include_stop_str_in_output=True, **forced).json["choices"][0]
        same((c["text"], c["finish_reason"]), (kept, "stop"), "is kept")
        _, events = s.events("/v1/completions", {"prompt": "a", "stop": stop, "include_stop_str_in_output": True, "stream": True, **forced})
        same("".join(json.loads(d)["choices"][0]["text"] for _, d in events[:-1]), kept, "in a stream")
    same(s.complete(stop_token_ids=[65], include_stop_str_in_output=True, **forced).json["choices"][0]["text"], "A", "a stop id")
    m = s.chat(stop="AAA", include_stop_str_in_output=True, **forced).json["choices"][0]["message"]
    same(m["content"], "AAA", "in a chat")
    text = lambda **more: s.complete("the other side of the other", max_tokens=20, **more).json["choices"][0]["text"]
    same(text(repeat_penalty=1.8), text(repetition_penalty=1.8), "repeat_penalty")
    check(text(repeat_penalty=1.8) != text(), "does something")
    same(text(repeat_penalty=1.8, repeat_last_n=0), text(), "looks back at nothing")
    same(text(repeat_penalty=1.8, repeat_last_n=64), text(repeat_penalty=1.8), "64 tokens")


def test_control(s):
    """skip_special_tokens: are control tokens text?"""
    control = s.post("/detokenize", {"tokens": [CONTROL]}).json["content"]
    forced = {"logit_bias": {str(CONTROL): 500}, "max_tokens": 2}
    same(s.complete(**forced).json["choices"][0]["text"], "", "none by default")
    c = s.complete(skip_special_tokens=False, logprobs=0, **forced).json["choices"][0]
    same((c["text"], c["logprobs"]["text_offset"]), (2 * control, [0, len(control)]), "they are where it is asked for")
    same(s.complete(skip_special_tokens=True, **forced).json["choices"][0]["text"], "", "and not where they shall be skipped")
    same(s.chat(skip_special_tokens=False, **forced).json["choices"][0]["message"]["content"], 2 * control, "in a chat")
    _, events = s.events("/v1/completions", {"prompt": "a", "skip_special_tokens": False, "stream": True, **forced})
    same("".join(json.loads(d)["choices"][0]["text"] for _, d in events[:-1]), 2 * control, "in a stream")
    c = s.complete(skip_special_tokens=False, stop=control[2:], **forced).json["choices"][0]
    same((c["text"], c["finish_reason"]), (control[:2], "stop"), "stop strings see them")
    ended = {"logit_bias": {"299": 500}, "max_tokens": 2}
    for more, text in (({}, ""), ({"include_stop_str_in_output": True}, "<|im_end|>"), ({"ignore_eos": True}, 2 * "<|im_end|>")):
        same(s.complete(skip_special_tokens=False, **ended, **more).json["choices"][0]["text"], text, "the end", more)
        same(s.chat(skip_special_tokens=False, **ended, **more).json["choices"][0]["message"]["content"], text, "of a chat", more)
    m = s.chat(skip_special_tokens=False, tools=TOOLS, logit_bias={str(CALL): 500}, max_tokens=1).json["choices"][0]["message"]
    same((len(m["tool_calls"]), m["content"]), (1, None), "marks of a call are none")


def test_nothing_asked(s):
    """Values with which clients say that they want nothing."""
    plain = s.complete().json["choices"]
    for more in ({"logprobs": False}, {"stop": [""]}, {"stop": ["", ""]}, {"stop": ""}, {"stop": []}):
        same(s.complete(**more).json.get("choices"), plain, more)
    mark = plain[0]["text"][3]
    same(s.complete(stop=["", mark]).json["choices"], s.complete(stop=[mark]).json["choices"], "an empty stop string beside another")
    _, events = s.events("/v1/completions", {"prompt": ["a", "hello"], "max_tokens": 4, "temperature": 0, "stream": True, "ignore_eos": True,
                                             "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    usage = [json.loads(d)["usage"] for _, d in events[:-1]]
    counts = [u["completion_tokens"] for u in usage if u]
    check(len(counts) == len(usage) and counts == sorted(counts) and counts[-1] == counts[-2] == 8, "tokens so far", usage)
    same(usage[0]["prompt_tokens"], usage[-1]["prompt_tokens"], "of both prompts")


def test_scoring(s):
    """What lm-eval does with a server: scores of given ids."""
    ids = s.post("/tokenize", {"content": "the other side"}).json["tokens"]
    body = {"max_tokens": 1, "echo": True, "logprobs": 1, "seed": 1234}
    j = s.complete([ids, ids[:2]], **body).json
    for c, n in zip(j["choices"], (len(ids), 2)):
        lp = c["logprobs"]
        same({k: len(v) for k, v in lp.items()},
             dict.fromkeys(("tokens", "token_logprobs", "top_logprobs", "text_offset"), n + 1), "an entry per token")
        same((lp["token_logprobs"][0], lp["top_logprobs"][0]), (None, None), "nothing is known of the first")
        same(lp["text_offset"], sorted(lp["text_offset"]), "offsets ascend")
        for t, p, top in list(zip(lp["tokens"], lp["token_logprobs"], lp["top_logprobs"]))[1:]:
            check(top and p in top.values() and p <= max(top.values()), "the token is among the likeliest", t, top)
    short, long = (c["logprobs"]["token_logprobs"] for c in j["choices"][::-1])
    same(short[:2], long[:2], "scores of a beginning")
    only = s.complete([ids], **{**body, "max_tokens": 0}).json["choices"][0]
    same((only["finish_reason"], only["logprobs"]["token_logprobs"]), ("length", long[:-1]), "scores alone")
    total = sum(math.exp(p) for p in s.complete(logprobs=20, max_tokens=1).json["choices"][0]
                ["logprobs"]["top_logprobs"][0].values())
    check(0 < total <= 1.0001, "probabilities of the likeliest", total)


def test_texts(s):
    j = s.post("/tokenize", {"content": "hello", "with_pieces": True, "return_token_strs": False}).json
    same([t["piece"] for t in j["tokens"]], ["he", "l", "l", "o"], "pieces")
    same(j["count"], 4, "their number")
    same(s.post("/detokenize", {"tokens": [t["id"] for t in j["tokens"]]}).json["content"], "hello", "and back")
    same(s.get("/tokenizer_info").json["vocab_size"], 305, "the tokenizer")
    talk = {"messages": [{"role": "user", "content": "hello"}], "tools": TOOLS, "chat_template_kwargs": {"enable_thinking": True}}
    shown = s.post("/apply-template", talk).json
    j = s.post("/tokenize", {**talk, "with_pieces": True}).json
    same(([t["id"] for t in j["tokens"]], j["count"], j["prefix_id"]), (shown["tokens"], shown["count"], shown["prefix_id"]), "a conversation")
    same("".join(t["piece"] for t in j["tokens"]), shown["prompt"], "in pieces")
    t = s.post("/apply-template", {"messages": [{"role": "developer", "content": "a"}, {"role": "user", "content": ""}]})
    check("system\na" in t.json["prompt"], "the developer is the system")


def test_connection(s):
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=30)
    for _ in range(3):  # kept alive
        c.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 1}))
        r = c.getresponse()
        check(r.status == 200 and r.read(), "an answer on a kept connection")
    c.close()
    sock = s.socket()  # sent ahead
    sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
    got = b""
    while got.count(b"HTTP/1.1 200") < 3:
        piece = sock.recv(4096)
        if not piece:
            break
        got += piece
    same(got.count(b"HTTP/1.1 200"), 3, "three requests at once")
    sock.close()
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(body[i:i + 7]), body[i:i + 7]) for i in range(0, len(body), 7))
    sock = s.socket()
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
                 b"Expect: 100-continue\r\nConnection: close\r\n\r\n")
    check(sock.recv(100).startswith(b"HTTP/1.1 100 "), "100-continue")
    sock.sendall(chunked + b"0\r\nTrailer: x\r\n\r\n")
    same(status_of(sock.recv(4096)), 200, "a body in chunks")
    sock.close()
    old = s.socket()
    stream = json.dumps({"prompt": "a", "max_tokens": 4, "stream": True}).encode()
    old.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(stream), stream))
    got = b""
    while piece := old.recv(4096):
        got += piece
    check(b"Transfer-Encoding" not in got and got.endswith(b"data: [DONE]\n\n"), "a stream for HTTP/1.0", got[-100:])
    old.close()


def no_start(*options, env={}):
    return subprocess.run([TERN, "serve", "-m", MODEL, "--port", "0", *options], env={**os.environ, **env}, capture_output=True,
                          text=True, timeout=60)


def test_guards():
    with Server("--api-key", "one", "--api-key", "two") as s:
        same(s.get("/health").status, 200, "health needs no key")
        for headers in ({}, {"Authorization": "Bearer three"}, {"Authorization": "one"}, {"x-api-key": ""}):
            a = s.ask("GET", "/v1/models", headers=headers)
            same((a.status, a.json["error"]["code"]), (401, "invalid_api_key"), headers)
        for headers in ({"Authorization": "Bearer one"}, {"Authorization": "bearer two"}, {"x-api-key": "two"}):
            same(s.ask("GET", "/v1/models", headers=headers).status, 200, headers)
        same(s.ask("GET", "/v1/models", headers={"x-api-key": "one", "Host": "example.org"}).status, 200, "any host")
    with tempfile.NamedTemporaryFile("w") as keys: # blanks around keys, which no header can have, are none of theirs
        keys.write("one  \n   \n\ttwo\r\n# three\n  # old key of Bob\n")
        keys.flush()
        with Server("--api-key-file", keys.name, "--api-key", " five", env={"TERN_API_KEY": "four\n"}) as s:
            for key in ("one", "two", "four", "five"):
                same(s.ask("GET", "/v1/models", headers={"x-api-key": key}).status, 200, key)
            for key in ("", " ", "# three", "three", "# old key of Bob", "  # old key of Bob"):
                same(s.ask("GET", "/v1/models", headers={"x-api-key": key}).status, 401, key)
        keys.truncate(0)
        keys.seek(0)
        keys.write("  # old key of Bob\n")
        keys.flush()
        refused = no_start(env={"TERN_API_KEY": " \n"})
        same((refused.returncode, refused.stderr), (1, "tern: TERN_API_KEY has nothing but blanks\n"), "no key")
        refused = no_start("--api-key-file", keys.name)
        same((refused.returncode, refused.stderr), (1, f"tern: {keys.name} holds no API key\n"), "a comment alone")
        refused = no_start("--api-key", " ")
        check(refused.returncode == 2 and "--api-key must not be empty" in refused.stderr, "nor that", refused.stderr)
    with Server() as s:
        same(s.ask("GET", "/health", headers={"Host": "evil.example"}).status, 403, "another host's name")
        same(s.ask("GET", "/health", headers={"Host": "localhost:1"}).status, 200, "localhost")
        same(s.ask("GET", "/health", headers={"Origin": "https://evil.example"}).status, 403, "another origin")
        same(s.ask("GET", "/health", headers={"Origin": "null"}).status, 403, "an origin without a name")
        own = {"Origin": f"http://127.0.0.1:{s.port}"}
        a = s.ask("GET", "/health", headers=own)
        same(a.status, 200, "its own origin")
        check(not any(h.lower().startswith("access-control") for h in a.headers), "no CORS")
    listening = subprocess.Popen([TERN, "serve", "-m", MODEL, "--host", "127.0.0.2", "--port", "0"], stdout=subprocess.PIPE, text=True)
    host, port = re.match(r"listening on http://(.*):(\d+)$", listening.stdout.readline()).groups()
    for name, status in ((f"{host}:{port}", 200), ("localhost", 200), ("127.0.0.3", 403), ("127.0.0.2.evil.example", 403)):
        c = http.client.HTTPConnection(host, int(port), timeout=30)
        c.request("GET", "/v1/models", headers={"Host": name})
        same(c.getresponse().status, status, "at an address of this machine's own, asked as", name)
        c.close()
    listening.terminate()
    same(listening.wait(60), 0, "status after SIGTERM")
    refused = subprocess.run([TERN, "serve", "-m", MODEL, "--host", "0.0.0.0", "--port", "0"], capture_output=True,
                             text=True)
    same((refused.returncode, refused.stderr.count("\n"), "--insecure" in refused.stderr), (1, 1, True),
         "beyond this machine without a key:", refused.stderr)


def test_strict():
    """A template that takes a system message at the beginning alone."""
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "strict.gguf")
        subprocess.run([os.environ["MAKE_TEXT_MODEL"], "--strict", path], check=True)
        with Server(model=path) as s:
            late = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}, {"role": "system", "content": "c"}]
            a = s.post("/apply-template", {"messages": late})
            same(a.status, 200, "a late system message", a.body)
            check("<|im_start|>system\na<|im_end|>" in a.json["prompt"] and "<|im_start|>user\nc" in a.json["prompt"],
                  "is the user's", a.json["prompt"])


def test_around():
    """A tokenizer that puts BOS in front of texts and EOS behind them, and a space that decoding drops."""
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "around.gguf")
        subprocess.run([os.environ["MAKE_TEXT_MODEL"], "--around", path], check=True)
        with Server(model=path) as s:
            ids = s.post("/tokenize", {"prompt": "ab"}).json["tokens"]
            same((ids[0], ids[-1], len(ids)), (1, 2, 5), "<s>, a space, a, b, </s>")
            a = s.complete("ab").json
            same(a["usage"]["prompt_tokens"], 4, "a prompt that goes on has no end")
            same(a["choices"], s.complete(ids[:-1]).json["choices"], "it is that of its ids")
            same(s.post("/v1/embeddings", {"input": "ab"}).json["usage"]["prompt_tokens"], 5, "a text to embed has one")
            bare = s.post("/v1/embeddings", {"input": "ab", "add_special_tokens": False})
            same(bare.json["usage"]["prompt_tokens"], 3, "unless it shall not")
            ctx = s.get("/v1/kv").json["ctx"]
            cut = s.post("/v1/embeddings", {"input": [ids[:2] + ids[2:3] * (ctx - 3) + ids[-1:]]}).json["data"][0]["embedding"]
            same(s.post("/api/embed", {"input": "a" * 2 * ctx}).json["embeddings"], [cut], "which a text that is cut keeps")
            raw = s.post("/api/generate", {"prompt": "ab", "raw": True, "stream": False, "options": {"num_predict": 1}}).json
            same(raw["prompt_eval_count"], 4, "Ollama's raw prompts")
            out = subprocess.run([TERN, "run", "-m", path, "-p", "ab", "-n", "8", "--raw"], capture_output=True, check=True)
            same(out.stdout.decode("utf-8", "replace"), a["choices"][0]["text"], "tern run --raw")
            same(s.complete("ab", add_special_tokens=False).json["usage"]["prompt_tokens"], 3, "add_special_tokens")
            spaces = ["run", "-m", path, "-p", "ab", "-n", "3", "--raw", "--logit-bias", "259=500"]
            same(subprocess.run([TERN, *spaces], capture_output=True, check=True).stdout, b"   ", "a space that text goes on with")
            ids = ids[:-1]
            for prompt in ("ab", ids):
                for bias, text, offsets in ((1, "", [2, 2, 2]), (260, "aaa", [2, 3, 4]), (259, "   ", [2, 3, 4])):  # <s>, a letter, a space
                    asked = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 3, "logit_bias": {str(bias): 500}}
                    c = s.post("/v1/completions", asked).json["choices"][0]
                    same((c["text"], c["logprobs"]["text_offset"]), ("ab" + text, [0, 0, 0, 1] + offsets), prompt, bias)
                    _, events = s.events("/v1/completions", {**asked, "stream": True})
                    parts = [json.loads(e)["choices"][0] for _, e in events[:-1]]
                    same(("".join(p["text"] for p in parts), sum((p["logprobs"]["text_offset"] for p in parts if p["logprobs"]), [])),
                         ("ab" + text, [0, 0, 0, 1] + offsets), "streamed", prompt, bias)


def test_tls():
    if not shutil.which("openssl"):
        return
    with tempfile.TemporaryDirectory() as d:
        cert, key = os.path.join(d, "cert"), os.path.join(d, "key")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
                        "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True,
                       capture_output=True)
        with Server("--tls-cert", cert, "--tls-key", key) as s:
            c = http.client.HTTPSConnection("127.0.0.1", s.port, context=ssl.create_default_context(cafile=cert))
            for body in ({"content": "x" * 100000}, {"content": "hello"}):
                c.request("POST", "/tokenize", json.dumps(body))
                r = c.getresponse()
                same((r.status, json.loads(r.read())["count"] > 0), (200, True), "over TLS")
            c.close()
            plain = s.socket()
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            try:
                got = plain.recv(1000)
            except ConnectionResetError:
                got = b""
            check(b"HTTP" not in got, "plain text is not answered where TLS is spoken", got)
            plain.close()
        for wrong in ((cert, cert), (key, key), (cert, "/dev/null"), ("/no/such", key)):
            run = subprocess.run([TERN, "serve", "-m", MODEL, "--port", "0", "--tls-cert", wrong[0], "--tls-key", wrong[1]],
                                 capture_output=True, text=True)
            same((run.returncode, run.stderr.count("\n")), (1, 1), wrong, run.stderr)


def test_unix():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "socket")
        stale = socket.socket(socket.AF_UNIX)
        stale.bind(path)
        stale.close()  # left over: nobody listens
        with Server("--unix", path, port=False) as s:
            c = socket.socket(socket.AF_UNIX)
            c.connect(path)
            c.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            same(status_of(c.recv(4096)), 200, "a Unix socket")
            c.close()
            same(os.stat(path).st_mode & 0o777, 0o600, "for its owner alone")
            second = subprocess.run([TERN, "serve", "-m", MODEL, "--unix", path], capture_output=True, text=True)
            same((second.returncode, "another server" in second.stderr), (1, True), second.stderr)
        check(not os.path.exists(path), "the socket goes with the server")


with Server() as server:
    for test in (test_plain, test_chat, test_chat_stream, test_tools, test_one_call, test_too_long, test_continued, test_reasoning, test_reasoning_counts, test_logprobs, test_completions, test_limits, test_control, test_nothing_asked,
                 test_scoring, test_texts, test_connection):
        test(server)
    check(server.wait_idle(), "the engine comes to rest")
    same(server.stop(15), 0, "status after SIGTERM")
test_guards()
test_strict()
test_around()
test_tls()
test_unix()
finish()
