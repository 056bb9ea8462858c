"""tern serve: the APIs of Anthropic and Ollama, OpenAI's responses and embeddings."""
import base64
import datetime
import json
import math
import os
import random
import string
import struct
import subprocess
import tempfile

from serve_lib import Server, check, finish, same

TOOL = {"name": "add", "description": "adds", "input_schema": {"type": "object", "properties": {}}}
FLAT_TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}}
USER = [{"role": "user", "content": "hello"}]


# ---- Anthropic ---------------------------------------------------------------------------------------------------------

def messages(s, **more):
    return s.post("/v1/messages", {"messages": USER, "max_tokens": 8, "temperature": 0, **more},
                  {"anthropic-version": "2023-06-01"})


def test_messages(s):
    text = s.chat().json["choices"][0]["message"]["content"]
    a = messages(s)
    j = a.json
    same((a.status, j["type"], j["role"], j["stop_reason"], j["stop_sequence"]),
         (200, "message", "assistant", "max_tokens", None), "a message")
    same(j["content"], [{"type": "text", "text": text}], "its content")
    check(j["id"].startswith("msg_") and a.headers["request-id"] in j["id"], "ids")
    n = s.post("/v1/messages/count_tokens", {"messages": USER}).json
    same((n["input_tokens"], j["usage"]["output_tokens"]),
         (j["usage"]["input_tokens"] + j["usage"]["cache_read_input_tokens"], 8), "usage")
    blocks = [{"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]}]
    same(messages(s, messages=blocks).json["content"], j["content"], "blocks")
    system = {"system": [{"type": "text", "text": "x-anthropic-billing-header: 77"}, {"type": "text", "text": "Be."}]}
    same(s.post("/v1/messages/count_tokens", {"messages": USER, **system}).json,
         s.post("/v1/messages/count_tokens", {"messages": USER, "system": "Be."}).json, "the rotating header goes")
    stopped = messages(s, stop_sequences=["zzz", text[3]]).json
    same((stopped["stop_reason"], stopped["stop_sequence"]), ("stop_sequence", text[3]), "a stop sequence")
    history = USER + [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"},
                                          {"type": "text", "text": "Let me."},
                                          {"type": "tool_use", "id": "a1", "name": "add", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a1", "content": "3"},
                                     {"type": "text", "text": "so?"}]}]
    a = messages(s, messages=history, tools=[TOOL])
    same(a.status, 200, "a conversation with tools", a.body)


def until(ask, good, what):
    """What a model of 305 tokens says by chance is sooner or later a call: one token in 305 is one."""
    for _ in range(4000):
        got = ask()
        if good(got):
            return got
    check(False, "no", what, "in 4000 replies")
    return None


def test_calls_by_chance(s):
    """These APIs have no logit_bias, so replies are drawn until one has a call, or a thought."""
    ask = {"messages": USER, "max_tokens": 8, "temperature": 5, "tools": [TOOL]}
    kinds = lambda m: {b["type"] for b in m["content"]}
    m = until(lambda: s.post("/v1/messages", ask).json, lambda m: "tool_use" in kinds(m), "tool_use")
    use = [b for b in m["content"] if b["type"] == "tool_use"][0]
    same((use["name"], use["input"], bool(use["id"])), ("add", {"a": 1, "b": [2]}, True), "a call of Anthropic's")
    order = lambda m: [b["type"] for b in m["content"]]
    m = until(lambda: s.post("/v1/messages", ask).json, lambda m: order(m)[:2] == ["tool_use", "text"], "text behind a call")
    check(m["content"][1]["text"] and m["stop_reason"] != "end_turn", "blocks are in the order of the reply", m)
    m = until(lambda: s.post("/v1/messages", ask).json, lambda m: "thinking" in kinds(m), "thinking")
    thought = [b for b in m["content"] if b["type"] == "thinking"][0]
    check(thought["thinking"] and thought["signature"] == "tern", "a thought", m)
    stream = lambda: s.events("/v1/messages", {**ask, "stream": True})[1]
    events = until(stream, lambda e: any('"tool_use"' in d for _, d in e), "streamed tool_use")
    datas = [json.loads(d) for _, d in events]
    starts = [d for d in datas if d["type"] == "content_block_start"]
    same([d["index"] for d in starts], list(range(len(starts))), "blocks are numbered")
    at = [d["index"] for d in starts if d["content_block"]["type"] == "tool_use"][0]
    same(json.loads("".join(d["delta"]["partial_json"] for d in datas
                            if d["type"] == "content_block_delta" and d["index"] == at)), {"a": 1, "b": [2]}, "its input")

    chat = {"model": "tools", "messages": USER, "tools": [{"type": "function", "function": {"name": "add"}}],
            "options": {"temperature": 5, "num_predict": 8}}
    calls = lambda ls: [c for x in ls for c in x["message"].get("tool_calls", [])]
    for streamed in (True, False):
        got = until(lambda: lines(s, "/api/chat", {**chat, "stream": streamed}), calls, "call of Ollama's")
        same(calls(got)[0], {"function": {"name": "add", "arguments": {"a": 1, "b": [2]}}}, "a call of Ollama's")

    body = {"input": "hello", "max_output_tokens": 8, "temperature": 5, "tools": [FLAT_TOOL]}
    has = lambda j: [o for o in j["output"] if o["type"] == "function_call"]
    call = has(until(lambda: s.post("/v1/responses", body).json, has, "function_call"))[0]
    same((call["name"], json.loads(call["arguments"]), call["status"]), ("add", {"a": 1, "b": [2]}, "completed"), "a call")
    events = until(lambda: s.events("/v1/responses", {**body, "stream": True})[1],
                   lambda e: any("function_call_arguments.done" in d for _, d in e), "streamed function_call")
    datas = [json.loads(d) for _, d in events]
    done = [d for d in datas if d["type"] == "response.function_call_arguments.done"][0]
    delta = "".join(d["delta"] for d in datas if d["type"] == "response.function_call_arguments.delta"
                    and d["item_id"] == done["item_id"])
    same(delta, done["arguments"], "arguments in pieces")
    final = datas[-1]["response"]["output"]
    same([d["item"] for d in datas if d["type"] == "response.output_item.done"], final, "items as they were told")


def test_messages_stream(s):
    _, events = s.events("/v1/messages", {"messages": USER, "max_tokens": 8, "temperature": 0, "stream": True})
    kinds = [e for e, _ in events if e != "ping"]
    datas = [json.loads(d) for e, d in events if e != "ping"]
    same([d["type"] for d in datas], kinds, "event and type agree")
    same((kinds[0], kinds[1], kinds[-3:]),
         ("message_start", "content_block_start", ["content_block_stop", "message_delta", "message_stop"]), "the order")
    same(datas[0]["message"]["content"], [], "an empty message first")
    same("".join(d["delta"]["text"] for d in datas if d["type"] == "content_block_delta"),
         s.chat().json["choices"][0]["message"]["content"], "streamed text")
    same((datas[-2]["delta"], datas[-2]["usage"]["output_tokens"]),
         ({"stop_reason": "max_tokens", "stop_sequence": None}, 8), "the end")


def test_list(s):
    """/v1/models as Anthropic's clients read it."""
    j = s.get("/v1/models", **{"anthropic-version": "2023-06-01"}).json
    same((j["has_more"], j["first_id"], j["last_id"]), (False, "tools", "tools"), "the list")
    for m in (j["data"][0], s.get("/v1/models/tools").json):
        same((m["type"], m["id"], m["display_name"]), ("model", "tools", "tools"), "a model")
        same(datetime.datetime.fromisoformat(m["created_at"].replace("Z", "+00:00")).timestamp(), m["created"], "since when")


def test_effort(s):
    """Of Anthropic's API: how much is thought, not whether."""
    count = lambda **body: s.post("/v1/messages/count_tokens", {"messages": USER, **body}).json["input_tokens"]
    same(count(output_config={"effort": "low"}), count(), "no switch")
    check(count(output_config={"effort": "low"}, thinking={"type": "enabled", "budget_tokens": 9}) > count(), "which is another field")
    with tempfile.TemporaryDirectory() as d:
        template, path = os.path.join(d, "effort.jinja"), os.path.join(d, "effort.gguf")
        with open(template, "w") as f:
            f.write("{{ reasoning_effort }}{% for m in messages %}{{ m.content }}{% endfor %}")
        subprocess.run([os.environ["MAKE_TEXT_MODEL"], "--v4", template, path], check=True)
        with Server(model=path) as other:
            length = lambda text: other.post("/tokenize", {"content": text}).json["count"]
            same(count_of(other, "medium") - count_of(other, "low"), length("medium") - length("low"), "where the template writes it")


def count_of(s, effort):
    return s.post("/v1/messages/count_tokens", {"messages": USER, "output_config": {"effort": effort}}).json["input_tokens"]


def test_nul(s):
    """A NUL character cuts no text."""
    count = lambda **body: s.post("/v1/messages/count_tokens", {"messages": USER, **body}).json["input_tokens"]
    turn = lambda content: {"messages": [{"role": "user", "content": content}]}
    base, text = count(**turn("")), "a\0bcd"
    n = len(s.post("/tokenize", {"content": text}).json["tokens"])
    same(count(**turn(text)) - base, n, "in a message")
    same(count(**turn([{"type": "text", "text": text}])) - base, n, "in a block")
    same(count(system=text) - count(system="a"), n - 1, "in the system's text")
    same(count(system=[{"type": "text", "text": text}]), count(system=text), "in its block")
    result = lambda x: turn([{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": x}]}])
    same(count(**result(text)) - count(**result("a")), n - 1, "in a result")


def test_messages_bad(s):
    rows = [({"messages": []}, "messages"), ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": None}, "max_tokens"),
            ({"messages": [{"role": "system", "content": "a"}]}, "messages[0]"), ({"system": 1}, "system"),
            ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
            ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
            ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "must have a string as text"),
            ({"output_config": {"effort": 1}}, "output_config.effort"), ({"output_config": {"effort": "a lot"}}, "output_config.effort must be"),
            ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "input"),
            ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "web_search_20250305"),
            ({"tools": [{"name": "x"}]}, "input_schema"), ({"tool_choice": {"type": "tool"}, "tools": [TOOL]}, "tool_choice"),
            ({"tool_choice": {}}, "tool_choice"), ({"thinking": {"type": "x"}}, "thinking"),
            ({"stop_sequences": [1]}, "stop"), ({"temperature": "x"}, "temperature"), ({"mcp_servers": [1]}, "MCP")]
    for change, word in rows:
        a = messages(s, **change)
        same(a.status, 400, change, a.body[:200])
        same((a.json["type"], a.json["error"]["type"]), ("error", "invalid_request_error"), "shape")
        check(word in a.json["error"]["message"], change, a.json["error"]["message"])


# ---- Ollama ------------------------------------------------------------------------------------------------------------

def lines(s, path, body):
    a = s.post(path, body)
    same(a.status, 200, path, a.body)
    return [json.loads(x) for x in a.body.decode().strip().split("\n")]


def test_ollama(s):
    options = {"temperature": 0, "num_predict": 8}
    text = s.chat().json["choices"][0]["message"]["content"]
    whole = lines(s, "/api/chat", {"model": "tools:latest", "messages": USER, "options": options, "stream": False})
    same((len(whole), whole[0]["message"]["content"], whole[0]["done"], whole[0]["done_reason"]),
         (1, text, True, "length"), "a chat")
    same((whole[0]["eval_count"], whole[0]["prompt_eval_count"] > 0), (8, True), "figures")
    parts = lines(s, "/api/chat", {"model": "tools", "messages": USER, "options": options})
    same("".join(p["message"]["content"] for p in parts), text, "streamed by default")
    same([p["done"] for p in parts], [False] * (len(parts) - 1) + [True], "done comes last")
    same(lines(s, "/api/generate", {"model": "tools", "prompt": "hello", "options": options, "stream": False})[0]
         ["response"], text, "generate")
    raw = lines(s, "/api/generate", {"model": "tools", "prompt": "hello", "raw": True, "options": options})
    same("".join(p["response"] for p in raw), s.complete().json["choices"][0]["text"], "generate, raw")
    same(lines(s, "/api/generate", {"model": "tools"})[0]["done_reason"], "load", "no prompt")
    a = s.post("/api/generate", {"prompt": "hello", "raw": True, "system": "Be."})
    same((a.status, a.json["error"]), (400, "system: a raw prompt has no place for it"), "a raw prompt and a system's text")
    with Server(model=os.environ["BASE_MODEL"]) as base:
        a = base.post("/api/generate", {"prompt": "hello", "system": "Be."})
        same((a.status, a.json["error"]), (400, "system: the model has no chat template to put it into"), "no template")
        same(lines(base, "/api/generate", {"prompt": "hello", "system": "", "options": options})[-1]["done"], True, "nor a text for it")
    plain = s.chat(logprobs=True, top_logprobs=2).json["choices"][0]["logprobs"]["content"]
    asked = {"model": "tools", "messages": USER, "options": options, "logprobs": True, "top_logprobs": 2}
    same(lines(s, "/api/chat", {**asked, "stream": False})[0]["logprobs"], plain, "logprobs")
    same(sum((p.get("logprobs", []) for p in lines(s, "/api/chat", asked)), []), plain, "streamed logprobs")
    whole = lines(s, "/api/generate", {"model": "tools", "prompt": "hello", "options": options, "logprobs": True, "stream": False})
    same([t["logprob"] for t in whole[0]["logprobs"]], [t["logprob"] for t in plain], "logprobs of generate")
    check("logprobs" not in parts[0], "none unasked")
    raw = {"model": "tools", "prompt": "x", "raw": True, "stream": False}
    for n in (0, -1):  # no limit but the context; the model's text ends by itself, with this seed
        a = lines(s, "/api/generate", {**raw, "options": {"seed": 2, "temperature": 1, "num_predict": n}})[0]
        check(a["eval_count"] > 0, "num_predict", n, a)
    tag = s.get("/api/tags").json["models"][0]
    same((tag["name"], len(bytes.fromhex(tag["digest"]))), ("tools", 32), "tags")
    same(s.get("/api/ps").json["models"][0]["context_length"], 8192, "ps")
    check("tools" in s.post("/api/show", {"model": "tools"}).json["capabilities"], "show")
    check(s.get("/api/version").json["version"], "version")
    for body, word in (({"options": {"temperature": "x"}}, "temperature"), ({"options": {"mirostat": 2}}, "mirostat"),
                       ({"options": {"num_ctx": 10**6}}, "num_ctx"), ({"format": "yaml"}, "format"),
                       ({"format": {"not": {}}}, "format"), ({"messages": 1}, "messages"),
                       ({"messages": [{"role": "user", "content": "a", "images": ["x"]}]}, "images"),
                       ({"think": 1}, "think"), ({"think": "a lot"}, "think must be none, minimal"),
                       ({"options": {"mirostat": "x"}}, "options.mirostat"), ({"options": {"typical_p": 0.5}}, "options.typical_p"), ({"logprobs": 1}, "logprobs"), ({"top_logprobs": 2}, "top_logprobs"),
                       ({"logprobs": True, "top_logprobs": 21}, "top_logprobs")):
        a = s.post("/api/chat", {"model": "tools", "messages": USER, **body})
        same((a.status, word in a.json["error"]), (400, True), body, a.body)
    off = {"mirostat": 0, "typical_p": 1.0, "tfs_z": None}
    same(lines(s, "/api/chat", {"messages": USER, "options": {**options, **off}, "stream": False})[0]["message"]["content"], text, "samplers that are off")
    same(s.post("/api/chat", {"model": "other", "messages": USER}).status, 404, "another model")
    same(s.post("/api/pull", {"model": "x"}).status, 404, "pull")


# ---- responses ---------------------------------------------------------------------------------------------------------

def respond(s, **more):
    return s.post("/v1/responses", {"input": "hello", "max_output_tokens": 8, "temperature": 0, **more})


def test_responses(s):
    text = s.chat().json["choices"][0]["message"]["content"]
    j = respond(s).json
    same((j["object"], j["status"], j["incomplete_details"]), ("response", "incomplete", {"reason": "max_output_tokens"}),
         "a response")
    same([(o["type"], o["content"][0]["text"]) for o in j["output"]], [("message", text)], "its output")
    same(j["usage"]["output_tokens"], 8, "usage")
    same(respond(s, top_logprobs=0, include=["reasoning.encrypted_content"]).json["output"][0]["content"], j["output"][0]["content"],
         "fields that ask for nothing")
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}]
    same(respond(s, input=items).json["output"][0]["content"], j["output"][0]["content"], "items as input")
    _, events = s.events("/v1/responses", {"input": "hello", "max_output_tokens": 8, "temperature": 0, "stream": True})
    datas = [json.loads(d) for _, d in events]
    same([d["type"] for d in datas], [e for e, _ in events], "event and type agree")
    same([d["sequence_number"] for d in datas], list(range(len(datas))), "numbers")
    kinds = [d["type"].removeprefix("response.") for d in datas]
    same(kinds[:4] + kinds[-4:],
         ["created", "in_progress", "output_item.added", "content_part.added", "output_text.done", "content_part.done",
          "output_item.done", "incomplete"], "the order")
    same("".join(d["delta"] for d in datas if d["type"].endswith("text.delta")), text, "streamed text")
    same([o["content"][0]["text"] for o in datas[-1]["response"]["output"]], [text], "and the whole at the end")
    history = [{"role": "user", "content": "x"},
               {"type": "reasoning", "summary": []},
               {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
               {"type": "function_call_output", "call_id": "c1", "output": "3"}]
    same(respond(s, input=history, tools=[FLAT_TOOL]).status, 200, "a conversation with calls")
    for change, param in (({"previous_response_id": "resp_1"}, "previous_response_id"), ({"input": None}, "input"),
                          ({"input": []}, "input"), ({"input": [{"type": "x"}]}, "input[0]"), ({"background": True}, "background"),
                          ({"input": [{"type": "function_call"}]}, "input[0]"), ({"truncation": "auto"}, "truncation"),
                          ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
                          ({"tools": [{"type": "web_search"}]}, "tools[0]"), ({"max_output_tokens": 0}, "max_output_tokens"),
                          ({"reasoning": {"effort": "a lot"}}, "reasoning.effort"), ({"top_logprobs": 1}, "top_logprobs"),
                          ({"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]}, "include"),
                          ({"include": [1]}, "include"), ({"include": ["file_search_call.results", None]}, "include")):
        a = respond(s, **change)
        same((a.status, a.json["error"]["param"]), (400, param), change, a.body)


# ---- embeddings --------------------------------------------------------------------------------------------------------

def test_embeddings(s):
    j = s.post("/v1/embeddings", {"input": ["hello", "the other"]}).json
    vectors = [d["embedding"] for d in j["data"]]
    same((j["pooling"], [d["index"] for d in j["data"]], [len(v) for v in vectors]), ("last", [0, 1], [128, 128]), "two")
    for v in vectors:
        check(abs(math.fsum(x * x for x in v) - 1) < 1e-5, "length 1")
    coded = s.post("/v1/embeddings", {"input": "hello", "encoding_format": "base64"}).json["data"][0]["embedding"]
    same([round(x, 6) for x in struct.unpack("<128f", base64.b64decode(coded))], [round(x, 6) for x in vectors[0]], "base64")
    usual = {"normalize": True, "embd_normalize": 2, "truncate_prompt_tokens": None, "add_special_tokens": True}
    same(s.post("/v1/embeddings", {"input": "hello", **usual}).json["data"][0]["embedding"], vectors[0], "as other servers have it")
    mean = s.post("/v1/embeddings", {"input": "hello", "pooling": "mean"}).json
    check(mean["pooling"] == "mean" and mean["data"][0]["embedding"] != vectors[0], "the mean")
    one = s.post("/v1/embeddings", {"input": s.post("/tokenize", {"content": "hello"}).json["tokens"]}).json
    same(one["data"][0]["embedding"], vectors[0], "ids")
    same(s.post("/api/embed", {"model": "tools", "input": "hello"}).json["embeddings"], [vectors[0]], "Ollama's")
    same(s.post("/api/embeddings", {"model": "tools", "prompt": "hello"}).json, {"embedding": vectors[0]}, "Ollama's older form")
    same(s.post("/api/embeddings", {"prompt": ""}).json, {"embedding": []}, "of nothing")
    a = s.post("/api/embeddings", {"prompt": ["hello"]})
    same((a.status, a.json["error"]), (400, "prompt must be a string"), "which takes one text")
    for nothing in ([], "", None):
        same(s.post("/api/embed", {"input": nothing}).json, {"model": "tools", "embeddings": []}, "of nothing")
    ctx = s.get("/v1/kv").json["ctx"]
    for text in ("x" * (ctx + 5), "x" * 40 * ctx, [120] * (ctx + 5)):
        text = [text] if isinstance(text, list) else text
        a = s.post("/api/embed", {"input": text}).json
        same(a["prompt_eval_count"], ctx, "a text that is too long loses its end")
        same(a["embeddings"], s.post("/api/embed", {"input": "x" * ctx, "truncate": False}).json["embeddings"], "and is as one without")
        a = s.post("/api/embed", {"input": text, "truncate": False})
        same((a.status, "too long" in a.json["error"]), (400, True), "unless it shall not", a.body)
    for change, param in (({"input": None}, "input"), ({"input": ""}, "input"), ({"pooling": "x"}, "pooling"),
                          ({"dimensions": 7}, "dimensions"), ({"encoding_format": "x"}, "encoding_format"),
                          ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"), ({"normalize": False}, "normalize"),
                          ({"embd_normalize": -1}, "embd_normalize"), ({"add_special_tokens": 1}, "add_special_tokens")):
        a = s.post("/v1/embeddings", {"input": "a", **change})
        same((a.status, a.json["error"]["param"]), (400, param), change, a.body)


def test_said_back(s):
    a = s.post("/v1/responses", {"input": "hello", "max_output_tokens": 3, "metadata": {"k": "v"}, "user": "me", "temperature": 0}).json
    same((a["status"], a["output"][-1]["status"], a["metadata"], a["user"]), ("incomplete", "incomplete", {"k": "v"}, "me"), a)
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 9, "stream": True, "ignore_eos": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    counts = [json.loads(line[6:])["usage"]["completion_tokens"] for line in s.post("/v1/chat/completions", body).body.decode().splitlines()
              if line.startswith("data: {")]
    check(counts == sorted(counts) and counts[-1] == counts[-2] == 9, "tokens so far", counts)


def test_draws(s):
    asked = {"prompt": ["hello"] * 3, "max_tokens": 12, "temperature": 1, "ignore_eos": True}
    texts = lambda **more: [c["text"] for c in s.post("/v1/completions", {**asked, **more}).json["choices"]]
    same(len(set(texts())), 3, "equal prompts of a request draw apart")
    same(len(set(texts(seed=4))), 1, "but for those with a seed")
    check(texts(seed=-1) != texts(seed=-1), "-1 is no seed")
    a = s.post("/v1/completions", {**asked, "prompt": "hello", "ignore_eos": False, "xtc_probability": 1, "xtc_threshold": 0,
                                   "min_tokens": 5})
    check(a.status == 200 and a.json["usage"]["completion_tokens"] >= 5, "what is masked is no top choice", a.body)
    a = s.post("/v1/completions", {**asked, "stop_token_ids": list(range(260, 300)) * 3})
    same(a.status, 200, a.body)


def test_penalties(s):
    """OpenAI's count the reply, all of it and nothing else; Ollama's look at the last tokens."""
    favoured = {"prompt": "AAAA", "temperature": 0, "logit_bias": {"65": 90}, "max_tokens": 150, "ignore_eos": True}
    text = lambda **more: s.post("/v1/completions", {**favoured, **more}).json["choices"][0]["text"]
    same(text(presence_penalty=100).count("A"), 1, "said once, and not again behind 64 tokens")
    same(text(frequency_penalty=40).find("AAA"), 0, "90, 50 and 10 above the others")
    twice = s.post("/v1/completions", {**favoured, "prompt": ["AAAA", "x"], "presence_penalty": 100}).json["choices"]
    same([c["text"] for c in twice], [text(presence_penalty=100), text(prompt="x", presence_penalty=100)], "in a batch")
    said = lambda prompt, **more: lines(s, "/api/generate", {
        "prompt": prompt, "raw": True, "stream": False, "options": {"temperature": 0, "num_predict": 1, **more}})[0]["response"]
    rng = random.Random(1)
    for _ in range(200):
        prompt = "".join(rng.sample(string.ascii_letters, 50))
        first = said(prompt)
        if len(first) == 1 and first in prompt:
            break
    check(first in prompt and said(prompt, presence_penalty=100) != first, "what the prompt has is punished", prompt, first)
    ids = s.post("/tokenize", {"content": prompt}).json["tokens"]
    same(s.complete(ids, max_tokens=1, presence_penalty=100).json["choices"][0]["text"], first, "and not by OpenAI's")


with Server() as server:
    for test in (test_said_back, test_draws, test_list, test_effort, test_nul, test_penalties, test_calls_by_chance, test_messages, test_messages_stream, test_messages_bad, test_ollama, test_responses, test_embeddings):
        test(server)
    check(server.wait_idle(), "the engine comes to rest")
    same(server.stop(15), 0, "status after SIGTERM")
finish()
