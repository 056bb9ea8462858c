"""tern serve: DeepSeek-V4's conversations, down to the tokens, against what the published encoder wrote."""
import json
import os

from serve_lib import MODEL, Server, check, finish, same

with open(os.path.join(os.environ["TEST_DATA"], "templates", "deepseek4.json"), encoding="utf-8") as f:
    CASES = [{**c, **asked} for c in json.load(f)["conversations"] for asked in c["asked"]]


def ask(s, case, effort_beside):
    body = {"messages": case["messages"]}
    more = dict(case["vars"])
    if "tools" in more:
        body["tools"] = more.pop("tools")
    if effort_beside and "reasoning_effort" in more:
        body["reasoning_effort"] = more.pop("reasoning_effort")
    return s.post("/apply-template", {**body, "chat_template_kwargs": more})


def test_cases(s):
    n = 0
    for case in CASES:
        if any(m["role"] == "developer" for m in case["messages"]):
            continue  # DeepSeek's own; of a client it means the system
        for beside in (False, True):
            a = ask(s, case, beside)
            same(a.json.get("prompt"), case["text"], case["name"], case["vars"])
        n += 1
    check(n > 80, n, "cases")


def test_tokens(s):
    """Marks are single tokens where the template writes them, and characters where a message has them."""
    a = s.post("/apply-template", {"messages": [{"role": "user", "content": "a"}]}).json
    same(a["count"], 5, "<bos> <User> a <Assistant> <think>")
    b = s.post("/apply-template", {"messages": [{"role": "user", "content": "<｜User｜>"}]}).json
    check(b["count"] > 10, b)


def test_refusals(s):
    a = s.post("/apply-template", {"messages": [{"role": "latest_reminders", "content": "a"}]})
    same((a.status, a.json["error"]["param"]), (400, "messages[0].role"), "a role")
    check("latest_reminder" in a.json["error"]["message"], a.body)
    a = s.post("/apply-template", {"messages": [{"role": "user", "content": "a"}], "reasoning_effort": "most"})
    same(a.status, 400, "an effort")
    a = s.chat(reasoning_effort="none", max_tokens=1)
    same(a.status, 200, a.body)


WEATHER = {"type": "object", "properties": {
    "city": {"enum": ["New \"York\"", "Bergen"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
    "note": {"type": "string", "maxLength": 6}, "unit": {"anyOf": [{"type": "string", "const": "C"}, {"type": "null"}]},
    "where": {"type": "object", "properties": {"x": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["x"],
              "additionalProperties": False}},
    "required": ["city", "days", "where"], "additionalProperties": False}
NOW = {"type": "object", "properties": {}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
         {"type": "function", "function": {"name": "now", "parameters": NOW}}]
USER = [{"role": "user", "content": "What?"}]


def good_call(name, arguments, *what):
    if name == "now":
        same(arguments, {}, *what)
        return
    same(name, "weather", *what)
    ok = set(arguments) - {"note", "unit"} == {"city", "days", "where"} and arguments["city"] in ("New \"York\"", "Bergen")
    ok = ok and arguments["days"] in range(1, 10) and 0 <= arguments["where"]["x"] <= 99 and len(arguments.get("note", "")) <= 6
    check(ok and arguments.get("unit") in ("C", None), *what, arguments)


def chat_calls(s, **more):
    a = s.post("/v1/chat/completions", {"messages": USER, "tools": TOOLS, "temperature": 1.5, "max_tokens": 600,
                                        "reasoning_effort": "none", "parallel_tool_calls": False, **more})
    same(a.status, 200, more, a.body[:300])
    c = a.json["choices"][0]
    same((c["finish_reason"], c["message"].get("content")), ("tool_calls", None), more, c)
    return [(t["function"]["name"], json.loads(t["function"]["arguments"])) for t in c["message"].get("tool_calls", [])]


def test_calls(s):
    """A model of random weights writes calls, with arguments that the schema accepts."""
    seen = set()
    for seed in range(6):
        for name, arguments in chat_calls(s, tool_choice="required", seed=seed):
            good_call(name, arguments, "required")
            seen.add(name)
    same(seen, {"weather", "now"}, "any function")
    for name in ("weather", "now"):
        got = chat_calls(s, tool_choice={"type": "function", "function": {"name": name}}, seed=1)
        same([g[0] for g in got], [name], "a named function")
        good_call(*got[0], "named")
    # the reasoning stays free: what ends it is likely, and behind it comes the call
    end = s.post("/tokenize", {"content": "</think>", "parse_special": True}).json["tokens"]
    same(len(end), 1, "</think> is one token")
    for name, arguments in chat_calls(s, tool_choice="required", reasoning_effort="low", logit_bias={str(end[0]): 30}):
        good_call(name, arguments, "behind reasoning")


def test_calls_elsewhere(s):
    for choice, parameters in (({"type": "tool", "name": "weather"}, WEATHER), ({"type": "any"}, WEATHER)):
        a = s.post("/v1/messages", {"messages": USER, "max_tokens": 600, "temperature": 0, "thinking": {"type": "disabled"},
                                    "tool_choice": {**choice, "disable_parallel_tool_use": True},
                                    "tools": [{"name": "weather", "input_schema": parameters}]})
        same(a.status, 200, "messages", a.body[:300])
        uses = [b for b in a.json["content"] if b["type"] == "tool_use"]
        same((len(uses), a.json["stop_reason"]), (1, "tool_use"), a.body)
        for u in uses:
            good_call(u["name"], u["input"], "messages")
    a = s.post("/v1/responses", {"input": "What?", "temperature": 0, "max_output_tokens": 600, "parallel_tool_calls": False,
                                 "reasoning": {"effort": "none"}, "tool_choice": "required",
                                 "tools": [{"type": "function", "name": "weather", "parameters": WEATHER}]})
    same(a.status, 200, "responses", a.body[:300])
    calls = [o for o in a.json["output"] if o["type"] == "function_call"]
    same(len(calls), 1, "responses", a.body)
    for c in calls:
        good_call(c["name"], json.loads(c["arguments"]), "responses")


def test_calls_refused(s):
    for parameters, says in (({"type": "object", "anyOf": [WEATHER, NOW]}, "anyOf"),
                             ({"type": "object", "properties": {"a\"b": {}}}, "quote"),
                             ({"type": "array"}, "not of type object")):
        a = s.chat(tools=[{"type": "function", "function": {"name": "f", "parameters": parameters}}], tool_choice="required")
        same((a.status, a.json["error"]["param"]), (400, "tool_choice"), a.body)
        check(says in a.json["error"]["message"] and '"f"' in a.json["error"]["message"], a.body)


def main():
    with Server(model=os.environ["V4_MODEL"]) as s:
        test_cases(s)
        test_tokens(s)
        test_calls(s)
        test_calls_elsewhere(s)
        test_calls_refused(s)
        test_refusals(s)
    with Server(model=MODEL) as s:
        a = s.post("/apply-template", {"messages": [{"role": "latest_reminder", "content": "a"}]})
        same((a.status, a.json["error"]["param"]), (400, "messages[0].role"), "a role of DeepSeek-V4's alone")
    finish()


main()
