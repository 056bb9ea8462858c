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


def main():
    with Server(model=os.environ["V4_MODEL"]) as s:
        test_cases(s)
        test_tokens(s)
        test_refusals(s)
    with Server(model=MODEL) as s:
        a = s.post("/apply-template", {"messages": [{"role": "latest_reminder", "content": "a"}]})
        same((a.status, a.json["error"]["param"]), (400, "messages[0].role"), "a role of DeepSeek-V4's alone")
    finish()


main()
