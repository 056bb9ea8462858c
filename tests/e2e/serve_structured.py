"""Structured output through every API: a model of random weights at temperature 1.5 writes what the request says."""
import json
import os
import re
import threading

from serve_lib import MODEL, Server, check, finish, same

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 120}},
          "required": ["name", "age"], "additionalProperties": False}
USER = [{"role": "user", "content": "Who?"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {
             "type": "object", "properties": {"a": {"type": "integer", "maximum": 99, "minimum": -99}}, "required": ["a"],
             "additionalProperties": False}}},
         {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
HOT = {"temperature": 1.5, "max_tokens": 400, "seed": 3}
CALL = 300  # a token that is a whole call of `add` with other arguments


def person(text, *what):
    try:
        v = json.loads(text)
        check(set(v) == {"name", "age"} and len(v["name"]) <= 8 and 0 <= v["age"] <= 120, *what, text)
    except (ValueError, KeyError, TypeError) as problem:
        check(False, *what, text, problem)


def chat(s, **more):
    """Without reasoning, which a model of random weights would hardly end, unless asked for."""
    bias = {"logit_bias": {str(i): -100 for i in s.less + [301]}}
    a = s.post("/v1/chat/completions", {"messages": USER, **HOT, **bias, **more})
    same(a.status, 200, more, a.body[:300])
    return a.json["choices"]


def content(s, **more):
    return chat(s, **more)[0]["message"]["content"]


def test_openai(s):
    named = {"name": "person", "strict": True, "schema": SCHEMA}
    for seed in range(4):
        person(content(s, seed=seed, response_format={"type": "json_schema", "json_schema": named}), "json_schema")
    c = chat(s, response_format={"type": "json_object"})[0]
    text = c["message"]["content"]
    check(isinstance(json.loads(text), dict) if c["finish_reason"] == "stop" else text[:1] == "{", "json_object", text)
    same(content(s, response_format={"type": "text"}, max_tokens=3) is not None, True, "text")
    for choice in chat(s, n=3, response_format={"type": "json_schema", "json_schema": named}):
        person(choice["message"]["content"], "n choices")
    for more in ({"guided_json": SCHEMA}, {"guided_json": json.dumps(SCHEMA)}, {"json_schema": SCHEMA},
                 {"structured_outputs": {"json": SCHEMA}}):
        person(content(s, **more), list(more))
    for more in ({"guided_regex": "[0-9]{4}-[0-9]{2}"}, {"structured_outputs": {"regex": "[0-9]{4}-[0-9]{2}"}},
                 {"grammar": "root ::= [0-9]{4} \"-\" [0-9]{2}"}, {"guided_grammar": "root ::= [0-9]{4} \"-\" [0-9]{2}"}):
        check(re.fullmatch("[0-9]{4}-[0-9]{2}", content(s, **more)), more)
    for more in ({"guided_choice": ["yes", "no"]}, {"structured_outputs": {"choice": ["yes", "no"]}}):
        check(content(s, **more) in ("yes", "no"), more)
    a = s.post("/v1/completions", {"prompt": ["a", "b"], **HOT, "response_format": {"type": "json_schema", "json_schema": named}})
    for c in a.json["choices"]:
        person(c["text"], "completions")
    a = chat(s, max_tokens=3, guided_json=SCHEMA)[0]
    same(a["finish_reason"], "length", "a text that was cut")
    # reasoning stays free: token 301 is a whole one
    m = chat(s, guided_regex="x{3}", logit_bias={"301": 90}, temperature=0)[0]["message"]
    same(m["content"], "xxx", "behind the reasoning")
    m = chat(s, guided_regex="x{3}", chat_template_kwargs={"enable_thinking": True}, logit_bias={"303": 90}, temperature=0)
    same((m[0]["message"]["content"], m[0]["message"]["reasoning_content"]), ("xxx", "Done."), "reasoning that the prompt opened")


def calls_of(s, **more):
    c = chat(s, tools=TOOLS, **more)[0]
    same(c["finish_reason"], "tool_calls", more, c)
    return calls_in(c)


def calls_in(c):
    return [(t["function"]["name"], json.loads(t["function"]["arguments"])) for t in c["message"].get("tool_calls", [])]


def good_call(name, arguments, *what):
    ok = arguments == {} if name == "now" else set(arguments) == {"a"} and -99 <= arguments["a"] <= 99
    check(name in ("add", "now") and ok, *what, name, arguments)


def test_calls(s):
    for seed in range(4):
        for name, arguments in calls_of(s, tool_choice="required", seed=seed, parallel_tool_calls=False):
            good_call(name, arguments, "required")
    for name in ("add", "now"):
        got = calls_of(s, tool_choice={"type": "function", "function": {"name": name}}, parallel_tool_calls=False)
        same([g[0] for g in got], [name], "a named function")
        good_call(*got[0], "named")
    # what the model would write by itself does not fit the schema, and cannot be written
    got = calls_of(s, tool_choice="required", parallel_tool_calls=False, logit_bias={str(CALL): 90})
    good_call(*got[0], "against the model's will")
    # JSON or a call, whichever the model begins with
    beside = {"guided_json": SCHEMA, "parallel_tool_calls": False}
    person(content(s, tools=TOOLS, **beside), "JSON beside tools")
    brace = s.post("/tokenize", {"content": "{"}).json["tokens"][0]
    bias = {str(i): -100 for i in s.less[:1] + s.less[2:] + [301, brace]}
    for seed in range(12):  # arguments are free here, and a model of random weights may not come to their end
        c = chat(s, tools=TOOLS, seed=seed, **beside, logit_bias=bias)[0]
        if c["finish_reason"] == "tool_calls":
            break
        check(c["message"]["content"].startswith("<tool_call>"), "a call that was cut", c)
    got = calls_in(c)
    check(len(got) == 1 and got[0][0] in ("add", "now") and isinstance(got[0][1], dict), "a call beside JSON", got)
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    c = chat(s, tools=strict, logit_bias={str(CALL): 90}, max_tokens=20)[0]["message"]
    check("tool_calls" not in c, "a strict tool is not called with other arguments", c)
    a = s.post("/v1/messages", {"messages": USER, "max_tokens": 400, "temperature": 0, "tool_choice": {"type": "tool", "name": "add"},
                                "tools": [{"name": "add", "input_schema": TOOLS[0]["function"]["parameters"]}]}).json
    uses = [b for b in a["content"] if b["type"] == "tool_use"]
    check(uses, "Anthropic's tool_choice", a)
    for u in uses:
        good_call(u["name"], u["input"], "Anthropic")
    a = s.post("/v1/messages", {"messages": USER, "max_tokens": 400, "temperature": 0, "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
                                "tools": [{"name": "now", "input_schema": {"type": "object", "properties": {}}}]}).json
    same(a["stop_reason"], "tool_use", "any tool")
    a = s.post("/v1/responses", {"input": "x", "temperature": 0, "max_output_tokens": 400, "parallel_tool_calls": False,
                                 "tools": [{"type": "function", "name": "add", "strict": True,
                                            "parameters": TOOLS[0]["function"]["parameters"]}],
                                 "tool_choice": {"type": "function", "name": "add"}}).json
    calls = [o for o in a["output"] if o["type"] == "function_call"]
    same(len(calls), 1, "responses", a)
    good_call("add", json.loads(calls[0]["arguments"]), "responses")


def test_others(s):
    a = s.post("/v1/responses", {"input": "x", "temperature": 1, "max_output_tokens": 400,
                                 "text": {"format": {"type": "json_schema", "name": "p", "schema": SCHEMA}}}).json
    person(a["output"][-1]["content"][0]["text"], "responses")
    same(a["text"]["format"]["type"], "json_schema", "the format is told")
    a = s.post("/v1/messages", {"messages": USER, "max_tokens": 400, "output_format": {"type": "json_schema", "schema": SCHEMA}}).json
    person(a["content"][0]["text"], "messages")
    a = s.post("/v1/messages", {"messages": USER, "max_tokens": 400, "output_config": {
        "effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}}}).json
    person(a["content"][0]["text"], "messages, newer")
    same(s.post("/v1/messages", {"messages": USER, "max_tokens": 4, "output_config": {"format": {"type": "x"}}}).status, 400, "its type")
    for path, body in (("/api/chat", {"messages": USER}), ("/api/generate", {"prompt": "x"}), ("/api/generate", {"prompt": "x", "raw": True})):
        a = s.post(path, {**body, "stream": False, "format": SCHEMA, "options": {"temperature": 1.5, "seed": 1}}).json
        person(a["message"]["content"] if "message" in a else a["response"], path)
        a = s.post(path, {**body, "stream": False, "format": "json", "options": {"temperature": 0.5, "num_predict": 30}})
        same((a.status, (a.json.get("message", {}).get("content") or a.json.get("response"))[0]), (200, "{"), path, "json")


def test_refused(s):
    for change, param in (({"response_format": {"type": "json_schema"}}, "response_format"),
                          ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, "response_format"),
                          ({"response_format": {"type": "xml"}}, "response_format"),
                          ({"guided_json": 3}, "guided_json"), ({"guided_json": "{"}, "guided_json"),
                          ({"guided_whitespace_pattern": " *", "guided_json": SCHEMA}, "guided_whitespace_pattern"),
                          ({"guided_regex": "^+"}, "guided_regex"), ({"guided_regex": "(?<=x)"}, "guided_regex"),
                          ({"guided_choice": [1]}, "guided_choice"), ({"grammar": "root ::= root"}, "grammar"),
                          ({"structured_outputs": {"tags": 1}}, "structured_outputs"),
                          ({"guided_regex": "a", "grammar": "root ::= \"a\""}, "grammar"),
                          ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
                          ({"guided_regex": "a", "min_tokens": 2}, "min_tokens"),
                          ({"guided_regex": "a", "tools": TOOLS}, "guided_regex"),
                          ({"guided_json": SCHEMA, "tools": TOOLS, "tool_choice": "required"}, "guided_json"),
                          ({"tool_choice": "required"}, "tool_choice"),
                          ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice"),
                          ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
                          ({"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {
                              "type": "object", "properties": {"a": {"format": "color"}}}}}]}, "tools"),
                          ({"guided_json": {"enum": list(range(10**6))}}, "guided_json")):
        a = s.post("/v1/chat/completions", {"messages": USER, "max_tokens": 1, **change})
        same((a.status, a.json["error"].get("param")), (400, param), str(change)[:120], a.body[:300])
        check("\n" not in a.json["error"]["message"], a.body[:300])
    same(s.post("/api/chat", {"messages": USER, "format": "yaml"}).status, 400, "Ollama's format")
    same(s.post("/api/chat", {"messages": USER, "stream": False, "format": "", "options": {"num_predict": 1}}).status, 200, "no format")


def test_batch(s):
    """Greedy texts under one rule and others beside them: as each by itself."""
    asks = [{"guided_json": SCHEMA, "temperature": 0}, {"guided_regex": "([a-z]{3} ){2,9}x", "temperature": 0},
            {"guided_json": {"type": "array", "items": SCHEMA, "maxItems": 3}, "temperature": 0.9, "seed": 5},
            {"temperature": 0, "max_tokens": 30}]
    alone = [content(s, **a) for a in asks]
    got = [None] * 8
    threads = [threading.Thread(target=lambda i=i: got.__setitem__(i, content(s, **asks[i % 4]))) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, text in enumerate(got):
        same(text, alone[i % 4], "in a batch")


with Server(model=MODEL) as server:
    # <think> as a token, and what leads there in letters, where a <tool_call> could come, too
    server.less = [i for t in ("<think>", "<", "h", "he") for i in server.post("/tokenize", {"content": t}).json["tokens"]]
    for test in (test_openai, test_calls, test_refused, test_batch):
        test(server)
    check(server.wait_idle(), "the engine comes to rest")
    same(server.stop(15), 0, "status after SIGTERM")
with Server(model=os.environ["MODEL"]) as server:  # whose template has no reasoning
    test_others(server)
finish()
