#!/usr/bin/env python3
"""Published chat templates in tern's engine and in that of Hugging Face transformers, over a corpus of conversations.

    compare_templates.py [--driver build/tests/render_driver] [--markdown] [--show N] PATH ...

PATH is a *.jinja file, a tokenizer_config.json or chat_template.json, a *.gguf file, or a folder that holds such files.
Each template is rendered with every conversation, with and without a generation prompt and with each set of variables.
Counted are texts that are equal, texts that differ, refusals by both, and refusals by one of them alone.  What only
jinja2 refuses is rendered again in the sandbox that lets lists be changed; with an equal text it counts as "mutable".

Round trip, for templates that print calls of tools: the turn of an assistant that calls is cut out of the rendered text
and given to tern as a reply; what comes out must be the calls that went in.

Needs jinja2; takes its environment from transformers where that is installed.  Exit status 1 when anything differs.
"""
import argparse
import json
import os
import re
import subprocess
import sys

import jinja2

import render_oracle

try:
    from transformers.utils.chat_template_utils import _compile_jinja_template as compile_theirs
except ImportError:
    compile_theirs = render_oracle.environment().from_string


def tool(name, about, properties, required):
    return {"type": "function", "function": {"name": name, "description": about, "parameters": {
        "type": "object", "properties": properties, "required": required}}}


TOOLS = [
    tool("get_weather", "The weather of a place, in °C & more <b>.", {
        "city": {"type": "string", "description": "Name of the place"},
        "unit": {"type": "string", "enum": ["c", "f"]}, "days": {"type": "integer", "default": 1}}, ["city"]),
    tool("save_note", "Keeps a note.", {
        "text": {"type": "string", "description": "What to keep"}, "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": ["number", "null"]}}},
        "urgent": {"type": "boolean"}}, ["text", "urgent"]),
    tool("now", "The time.", {}, []),
]


def call(name, arguments, number=0):
    return {"type": "function", "id": f"call{number:05d}", "function": {"name": name, "arguments": arguments}}


def says(role, content, **more):
    return {"role": role, "content": content, **more}


PLAIN_TOOLS = [tool("look_up", "Looks a word up.", {"word": {"type": "string", "description": "The word"}}, ["word"])]


WEATHER = call("get_weather", {"city": "Zürich \"West\"", "days": 3})
NOTE = call("save_note", {"text": "two\nlines, it's 'so'", "tags": ["a", "b c"], "place": {"lat": 1.5, "lon": None},
                          "urgent": True}, 1)
ASKS = [says("user", "How is the weather?")]
CONVERSATIONS = {
    "user": [says("user", "Hello there!")],
    "system": [says("system", "Be brief."), says("user", "Hi")],
    "turns": [says("system", "Be brief.\n"), says("user", " One "), says("assistant", "Two\n"), says("user", "Three"),
              says("assistant", "Four."), says("user", "Five")],
    "ends with assistant": [says("user", "One"), says("assistant", "Two")],
    "unicode": [says("user", "Grüße 日本語 👩‍👩‍👧 \u2028 e\u0301"), says("assistant", "ÄÖ\t\"q\" \\n"), says("user", "<b>&amp;'")],
    "empty": [says("system", ""), says("user", ""), says("assistant", ""), says("user", "x")],
    "parts": [says("system", [{"type": "text", "text": "Be kind."}]),
              says("user", [{"type": "text", "text": "One"}, {"type": "text", "text": " two"}])],
    "image": [says("user", [{"type": "image"}, {"type": "text", "text": "What is it?"}])],
    "marks in text": [says("user", "<|im_end|></s><think>a</think>[/INST]"), says("assistant", "<think>\nb\n</think>\n\nc"),
                      says("user", "<tool_response>d</tool_response>")],
    "reasoning": [says("user", "2+2?"), says("assistant", "4", reasoning_content="Add.\nThem.", reasoning="Add.\nThem."),
                  says("user", "3+3?"), says("assistant", "6", reasoning_content="Again."), says("user", "More")],
    "call": ASKS + [says("assistant", "", tool_calls=[WEATHER])],
    "call, no content": ASKS + [says("assistant", None, tool_calls=[NOTE])],
    "calls": ASKS + [says("assistant", "Let me see.", tool_calls=[WEATHER, NOTE, call("now", {}, 2)])],
    "result": ASKS + [says("assistant", "", tool_calls=[WEATHER]),
                      says("tool", '{"temp": 21.5}', name="get_weather", tool_call_id="call00000")],
    "results and answer": [says("system", "S")] + ASKS + [
        says("assistant", "", tool_calls=[WEATHER, NOTE], reasoning_content="Which?"),
        says("tool", '{"temp": 21.5}', name="get_weather", tool_call_id="call00000"),
        says("tool", "saved", name="save_note", tool_call_id="call00001"), says("assistant", "21.5 degrees."),
        says("user", "Thanks")],
    "arguments as text": ASKS + [says("assistant", "", tool_calls=[call("get_weather", '{"city": "Rom"}')]),
                                 says("tool", "21", name="get_weather", tool_call_id="call00000")],
    "all arguments as text": ASKS + [says("assistant", "", tool_calls=[
        call("get_weather", '{"city": "Rom"}'), call("now", "{}", 1)])],
    "developer": [says("developer", "Obey."), says("user", "Hi")],
    "two of one role": [says("user", "a"), says("user", "b"), says("assistant", "c"), says("assistant", "d")],
    "none": [],
}
SWITCHES = [{}, {"tools": TOOLS}, {"tools": PLAIN_TOOLS, "functions": json.dumps(PLAIN_TOOLS), "datetime": "now"}, {"enable_thinking": False}, {"enable_thinking": True, "tools": TOOLS},
            {"thinking": True, "reasoning_effort": "high"}, {"keep_past_thinking": True, "clear_thinking": False,
                                                             "preserve_thinking": True, "date_string": "26 Jul 2024"}]
ROUND_TRIPS = ("call", "call, no content", "calls")


# ---- templates --------------------------------------------------------------------------------------------------

def of_json(path):
    with open(path, encoding="utf-8") as f:
        found = json.load(f).get("chat_template")
    if isinstance(found, list):
        return {f"{path} ({x['name']})": x["template"] for x in found}
    return {path: found} if found else {}


def of_gguf(path):
    import gguf
    out = {}
    for key, field in gguf.GGUFReader(path).fields.items():
        if key.startswith("tokenizer.chat_template") and not key.endswith("templates"):
            out[path + key.removeprefix("tokenizer.chat_template")] = field.contents()
    return out


def templates(path):
    if os.path.isdir(path):
        out = {}
        for root, dirs, files in os.walk(path):
            dirs.sort()
            for name in sorted(files):
                if name.endswith((".jinja", ".gguf")) or name in ("tokenizer_config.json", "chat_template.json"):
                    out |= templates(os.path.join(root, name))
        return out
    if path.endswith(".gguf"):
        return of_gguf(path)
    if path.endswith(".json"):
        return of_json(path)
    with open(path, encoding="utf-8") as f:
        return {path: f.read()}


# ---- both engines -----------------------------------------------------------------------------------------------

class Driver:
    def __init__(self, path):
        self.path, self.p = path, None

    def ask(self, question):
        if not self.p:
            self.p = subprocess.Popen([self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.p.stdin.write(json.dumps(question) + "\n")
        self.p.stdin.flush()
        line = self.p.stdout.readline()
        if not line:
            sys.exit(f"{self.path} died on {json.dumps(question)[:2000]}")
        return json.loads(line)


def theirs(compiled, case):
    """Text and None, or None and why there is none."""
    variables = {"tools": None, "documents": None, "messages": case["messages"], "bos_token": case["bos"],
                 "eos_token": case["eos"], "add_generation_prompt": case["add_generation_prompt"]}
    variables.update(case["vars"])
    try:
        return compiled.render(**json.loads(json.dumps(variables))), None
    except Exception as e:
        return None, f"{type(e).__name__}: {e}"


def cases(text):
    for name, messages in CONVERSATIONS.items():
        for variables in SWITCHES:
            for prompt in (False, True):
                yield name, {"template": text, "messages": messages, "vars": variables, "bos": "<s>", "eos": "</s>",
                             "add_generation_prompt": prompt}


def difference(a, b):
    k = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return f"at {k}: jinja2 {a[max(0, k - 30):k + 40]!r}, tern {b[max(0, k - 30):k + 40]!r}"


COLUMNS = ["equal", "mutable", "both refuse", "differ", "only tern refuses", "only jinja2 refuses"]


def compare(driver, text, notes):
    count = dict.fromkeys(COLUMNS, 0)
    try:
        compiled, why_not = compile_theirs(text), None
        mutable = render_oracle.environment(mutable=True)
    except jinja2.TemplateError as e:
        compiled, why_not = None, f"{type(e).__name__}: {e}"
    for name, case in cases(text):
        want, why = theirs(compiled, case) if compiled else (None, why_not)
        got = driver.ask(case)
        kind, note = "equal", ""
        if want is None and "error" in got:
            kind = "both refuse"
        elif want is None:
            again = theirs(mutable.from_string(text), case)[0] if compiled and "generation %}" not in text else None
            kind, note = ("mutable", "") if again == got["text"] else ("only jinja2 refuses", why)
        elif "error" in got:
            kind, note = "only tern refuses", got["error"]
        elif got["text"] != want:
            kind, note = "differ", difference(want, got["text"])
        count[kind] += 1
        if note:
            notes.append(f"{kind}: {name}, {'prompt, ' if case['add_generation_prompt'] else ''}{list(case['vars'])}: {note}")
    return count


# ---- round trip -------------------------------------------------------------------------------------------------

def turn(driver, text, messages):
    """What the template has printed before the last message, and for it; None: it refuses."""
    ask = lambda m, prompt: driver.ask({"template": text, "messages": m, "vars": {"tools": TOOLS}, "bos": "<s>",
                                        "eos": "</s>", "add_generation_prompt": prompt}).get("text")
    whole, before = ask(messages, False), ask(messages[:-1], True)
    if whole is None or before is None:
        return None
    cut = len(os.path.commonprefix([whole, before]))
    if cut < len(before):  # the prompt opens what the turn does not have: not in the middle of a mark
        cut = max(whole.rfind(x, 0, cut) + 1 for x in (">", "]", "\n"))
    return whole[:cut], whole[cut:]


def round_trip(driver, text, notes):
    """The format, and "ok", "-" where the template prints no calls, or what is wrong."""
    name, verdict = "-", "-"
    for conversation in ROUND_TRIPS:
        messages = CONVERSATIONS[conversation]
        parts = turn(driver, text, messages)
        wanted = [(c["function"]["name"], c["function"]["arguments"]) for c in messages[-1]["tool_calls"]]
        if not parts or "tool_calls" not in text or any(n not in parts[1] for n, _ in wanted):
            continue
        got = driver.ask({"template": text, "prompt": parts[0], "reply": parts[1], "tools": TOOLS})
        name = got.get("format") or "none"
        calls = [(n, json.loads(a)) for n, a in got["calls"]]
        said = messages[-1]["content"] or ""  # which some templates leave out
        if calls == wanted and (said in got["content"] or said not in parts[1]):
            verdict = "ok" if verdict == "-" else verdict
        else:
            verdict = "differs" if name != "none" else "no format"
            notes.append(f"round trip of {conversation!r}, format {name}: {parts[1]!r} gave {got['calls']}, "
                         f"content {got['content']!r}")
    return name, verdict


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--driver", default="build/tests/render_driver")
    parser.add_argument("--show", type=int, default=3, help="notes for each template")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("path", nargs="+")
    args = parser.parse_args()
    driver, bad, seen = Driver(args.driver), 0, {}
    for path in args.path:
        for name, text in templates(path).items():
            short = re.sub(r"\.jinja$", "", os.path.relpath(name, path) if os.path.isdir(path) else os.path.basename(name))
            if text in seen:
                print(f"{short}: same as {seen[text]}", file=sys.stderr)
                continue
            seen[text] = short
            notes = []
            count = compare(driver, text, notes)
            form, trip = round_trip(driver, text, notes)
            bad += bool(count["differ"] + count["only tern refuses"] + count["only jinja2 refuses"] + (trip == "differs"))
            if args.markdown:
                print("| " + " | ".join([short, *(str(count[c] or "") for c in COLUMNS), form, trip]) + " |", flush=True)
            else:
                print(f"{short}: " + ", ".join(f"{n} {c}" for c, n in count.items() if n) + f"; calls: {form} {trip}",
                      flush=True)
                for note in notes[:args.show]:
                    print("   ", note[:1500])
    print(f"{len(seen)} templates, {bad} with differences; jinja2 {jinja2.__version__}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
