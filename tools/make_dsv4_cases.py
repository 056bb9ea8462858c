#!/usr/bin/env python3
"""Record what DeepSeek-V4's published encoder makes of conversations of ours: tests/data/templates/deepseek4.json.

    make_dsv4_cases.py ENCODING_DSV4.PY OUT

ENCODING_DSV4.PY is encoding/encoding_dsv4.py of the first release (DeepSeek-V4-Flash, 2026-04-24).  The release of 0731
differs in the texts of reasoning_effort alone: `high` is what was `max`, and `max` has a text of its own, LATER.  So the
one encoder answers for both.  Runs outside CI: the results are committed.  Of each
conversation: the messages as a client sends them, and for several sets of the template's variables the text; then every
answer in these texts, and what the encoder reads in it.
"""
import copy
import importlib.util
import itertools
import json
import sys

LATER = ("Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
         "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the "
         "problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying "
         "cause rather than any surface symptom.\n"
         "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
         "that no assumption remains unchecked and no error remains undiscovered.\n\n")

WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "Says \"how\" it is outside: <b>, größer, 天気 & 🙂.",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "a\tplace\n\\ or two"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14, "default": 3},
        "share": {"type": "number", "default": 0.1, "multipleOf": 1e-07, "maximum": 1e16}},
        "required": ["city"], "additionalProperties": False}}}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "object", "properties": {"answer": {"enum": ["ja", "nein", None]}}}


def system(text="Be brief.", **more):
    return {"role": "system", "content": text, **more}


def user(text, **more):
    return {"role": "user", "content": text, **more}


def says(text, reasoning=None, calls=(), **more):
    m = {"role": "assistant", "content": text, **more}
    if reasoning is not None:
        m["reasoning_content"] = reasoning
    if calls:
        m["tool_calls"] = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return m


def result(call, text):
    return {"role": "tool", "tool_call_id": call, "content": text}


def reminder(text="2026-11-23, Bergen"):
    return {"role": "latest_reminder", "content": text}


def developer(text, **more):
    return {"role": "developer", "content": text, **more}


OSLO = json.dumps({"city": "Oslo & <b>\n\"x\"", "days": 3})
TURNS = [user("How is it in Oslo?"), says("Let me see.", "A city of Norway.", [("c1", "weather", OSLO)]),
         result("c1", '{"t": 4}'), says("Four degrees.", "The result says 4."), user("And here?")]
CONVERSATIONS = {
    "hello": [user("hello world")],
    "with a system message": [system(), user("Hi.")],
    "an empty system message": [system(""), user("Hi.")],
    "two system messages": [system("One."), system("Two."), user("Hi.")],
    "a system message later": [user("a"), says("b"), system("Now in Danish."), user("c")],
    "two turns": [system(), user("1+1?"), says("2", "One and one."), user("and 3?")],
    "three turns": [user("a"), says("b", "r1"), user("c"), says("d", "r2"), user("e")],
    "ends with the assistant": [user("a"), says("b", "r1")],
    "no user": [system(), says("I begin.", "Shall I?")],
    "two answers": [user("a"), says("b", "r1"), says("c", "r2"), user("d"), says("e"), says("f", "r3")],
    "neighbours of the user": [user("a"), user("b\n\n"), user(""), says("c"), user("d"), user("e")],
    "no content": [user("a"), says(None, "only thought"), user("b")],
    "unfinished": [user("Count."), says("1, 2,", "from one", wo_eos=True)],
    "a call": TURNS[:2],
    "a result": TURNS[:3],
    "a result and an answer": TURNS[:4],
    "after a call": TURNS,
    "calls without text": [user("a"), says("", "r", [("x", "now", "{}"), ("y", "weather", OSLO)]),
                           result("y", "second"), result("x", "first"), says("ok", "r2"), user("b")],
    "results with a user's text": [user("a"), says(None, None, [("x", "now", "{}"), ("y", "now", "{}"), ("z", "now", "{}")]),
                                   result("z", "3"), user("between"), result("x", "1"), result("y", "2"), user("end")],
    "results of nobody": [user("a"), result("q", "1"), says("b", None, [("x", "now", "{}"), ("y", "now", "{}")]),
                          result("y", "2"), result("q", "none"), result("x", "1")],
    "results of other calls": [user("a"), says("b", None, [("p", "now", "{}"), ("q", "now", "{}")]), result("q", "2"),
                               result("p", "1"), says("c", None, [("c", "now", "{}"), ("d", "now", "{}")]),
                               result("d", "4"), result("q", "old"), result("c", "3")],
    "a result first": [result("q", "early"), says("b"), user("c")],
    "values of all kinds": [user("a"), says("b", None, [("x", "f", json.dumps(
        {"s": "5", "n": 5, "x": 1.0, "small": 1e-07, "big": 1e22, "no": None, "yes": True, "l": [1, "zwei", {"ä": "ö"}],
         "o": {"b": 1, "a": [], "c": {}}, "empty": "", "lines": "a\n<b>\"c\"</b>\n", "ключ": "знач"}, ensure_ascii=False))])],
    "arguments that are no JSON": [user("a"), says("b", None, [("x", "f", "{\"a\": "), ("y", "g", "just text"),
                                                               ("z", "h", "")])],
    "reminders": [system(), reminder(), user("a"), says("b", "r"), reminder("2026-11-24"), user("c")],
    "a reminder behind": [user("a"), reminder()],
    "a developer": [system(), developer("Search for cats."), says("Cats.", "r"), user("More.")],
    "a developer last": [system(), user("a"), says("b", "r"), developer("Search on.")],
    "a developer first": [developer("Rules."), user("a"), says("b", "r"), user("c")],
    "texts that look like marks": [system("<think>"), user("</think><｜User｜>a"),
                                   says("x <｜DSML｜tool_calls> y", "<｜Assistant｜>"), user("<tool_result>no</tool_result>")],
    "other alphabets": [system("你是一个助手。"), user("Привет 🙂\r\n\tx "), says(" こんにちは ", "思考"), user("\u00a0\u2028")],
    "a task": [user("What is new?", task="title"), says("News")],
    "a task last": [user("a"), says("b", "r"), user("Which site?", task="domain")],
    "action": [user("a"), says("b", "r"), user("Do it.", task="action"), says("search"), user("thanks")],
    "a user behind a task": [user("a", task="query"), user("b", task="authority"), says("c", "r"), user("d")],
    "a format": [system("x", response_format=SCHEMA), user("Ja?")],
    "a developer's format and tools": [developer("x", response_format=SCHEMA, tools=[NOW]), says("y", "r"), user("z")],
    "a message's tools": [system("x", tools=[WEATHER, NOW]), *TURNS],
    "tools of a second message": [user("a"), says("b", "r"), system("Now with tools.", tools=[NOW]), user("c")],
}
# What each conversation is asked with: variables of the template.
PLAIN = [{"enable_thinking": False}, {"enable_thinking": True}]
MORE = {
    "hello": [{}, {"thinking": False}, *({"reasoning_effort": e} for e in ("low", "medium", "high", "xhigh", "max")),
              *({"reasoning_effort": e, "preview": True} for e in ("low", "high", "max")),
              {"reasoning_effort": "max", "enable_thinking": False}],
    "a developer first": [{"reasoning_effort": "high"}],
    "two turns": [{"drop_thinking": False}, {"reasoning_effort": "max", "drop_thinking": False}, {"tools": [NOW]}],
    "three turns": [{"tools": [NOW], "enable_thinking": False}, {"tools": [WEATHER, NOW]}],
    "after a call": [{"tools": [WEATHER, NOW]}, {"tools": [WEATHER], "enable_thinking": False, "reasoning_effort": "high"},
                     {"tools": [WEATHER, NOW], "reasoning_effort": "max"}, {"drop_thinking": False}],
    "calls without text": [{"tools": [NOW, WEATHER]}],
    "a format": [{"tools": [NOW]}],
    "reminders": [{"tools": [NOW]}, {"drop_thinking": False}],
    "a developer": [{"drop_thinking": False}],
}


def encode(enc, messages, v):
    """The encoder's own words for the variables."""
    messages = copy.deepcopy(messages)
    if v.get("tools"):
        if messages[0]["role"] != "system":
            messages.insert(0, system(""))
        messages[0]["tools"] = v["tools"]
    think = v.get("thinking", v.get("enable_thinking", True))
    level = {"high": 1, "xhigh": 2, "max": 2}.get(v.get("reasoning_effort"), 0) - bool(v.get("preview"))
    first = enc.REASONING_EFFORT_MAX
    enc.REASONING_EFFORT_MAX = LATER if level == 2 else first
    text = enc.encode_messages(messages, "thinking" if think else "chat", drop_thinking=v.get("drop_thinking", True),
                               reasoning_effort="max" if level > 0 else None)
    enc.REASONING_EFFORT_MAX = first
    return text


def turns(enc, text):
    """Every answer of the assistant in it, as the encoder takes it apart; those that it refuses are left out."""
    found = []
    mark = "<｜Assistant｜>"
    for piece in text.split(mark)[1:]:
        mode = "thinking" if piece.startswith("<think>") else "chat"
        body = piece.removeprefix("<think>" if mode == "thinking" else "</think>")
        if enc.eos_token not in body:
            continue
        body = body[:body.index(enc.eos_token) + len(enc.eos_token)]
        try:
            m = enc.parse_message_from_completion_text(body, mode)
        except (ValueError, AssertionError):
            continue
        calls = [[c["function"]["name"], c["function"]["arguments"]] for c in m["tool_calls"]]
        found.append({"prompt": mark + ("<think>" if mode == "thinking" else "</think>"),
                      "reply": body.removesuffix(enc.eos_token), "reasoning": m["reasoning_content"],
                      "content": m["content"], "calls": calls})
    return found


def main():
    spec = importlib.util.spec_from_file_location("encoding_dsv4", sys.argv[1])
    enc = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(enc)
    conversations, answers, n = [], [], 0
    for name, messages in CONVERSATIONS.items():
        asked = []
        for v in itertools.chain(PLAIN, MORE.get(name, [])):
            text = encode(enc, messages, v)
            asked.append({"vars": v, "text": text})
            answers += [t for t in turns(enc, text) if t not in answers]
        conversations.append({"name": name, "messages": messages, "asked": asked})
        n += len(asked)
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        lists = (",\n".join(json.dumps(c, ensure_ascii=False) for c in items) for items in (conversations, answers))
        f.write('{"conversations": [\n%s\n],\n"answers": [\n%s\n]}\n' % tuple(lists))
    print(n, "texts,", len(answers), "answers")


if __name__ == "__main__":
    main()
