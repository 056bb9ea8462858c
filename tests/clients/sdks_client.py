"""openai, anthropic and ollama as they are published.  Run by tests/clients/run."""
import json

import anthropic
import ollama
import openai

from serve_lib import CALL, THINK, Server, check, finish, same

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def test_openai(s):
    c = openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="any")
    same([m.id for m in c.models.list()], ["tools"], "models")
    ask = {"model": "tools", "messages": HELLO, "max_tokens": 8, "temperature": 0}
    whole = c.chat.completions.create(**ask, logprobs=True, top_logprobs=2).choices[0]
    same((len(whole.logprobs.content), whole.finish_reason), (8, "length"), "a completion")
    text, usage = "", None
    for chunk in c.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        usage = chunk.usage or usage
    same((text, usage.completion_tokens), (whole.message.content, 8), "a stream")
    call = c.chat.completions.create(**{**ask, "max_tokens": 1}, tools=[TOOL], logit_bias={str(CALL): 500})
    same(json.loads(call.choices[0].message.tool_calls[0].function.arguments), {"a": 1, "b": [2]}, "a call")
    with c.chat.completions.stream(**{**ask, "max_tokens": 1}, tools=[TOOL], logit_bias={str(CALL): 500}) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        same([(e.name, json.loads(e.arguments)) for e in done], [("add", {"a": 1, "b": [2]})], "a streamed call")
    thought = c.chat.completions.create(**{**ask, "max_tokens": 1}, logit_bias={str(THINK): 500}).choices[0].message
    same(thought.reasoning_content, "Well.", "reasoning")
    done = c.completions.create(model="tools", prompt=["a", "b"], max_tokens=3, logprobs=2, extra_body={"ignore_eos": True})
    same([len(x.logprobs.tokens) for x in done.choices], [3, 3], "text completions")
    same(len(c.embeddings.create(model="tools", input=["a", "b"]).data[1].embedding), 128, "embeddings")
    reply = c.responses.create(model="tools", input="hello", max_output_tokens=8, temperature=0)
    same((reply.status, reply.output_text), ("incomplete", whole.message.content), "a response")
    with c.responses.stream(model="tools", input="hello", max_output_tokens=8, temperature=0) as stream:
        events = list(stream)
    same("".join(e.delta for e in events if e.type == "response.output_text.delta"), reply.output_text, "its stream")
    same(events[-1].type, "response.incomplete", "its end")
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
              "additionalProperties": False}
    person = c.chat.completions.create(model="tools", messages=HELLO, max_tokens=60, logit_bias={"60": -100, "304": -100, "301": -100},
                                       response_format={"type": "json_schema", "json_schema": {
                                           "name": "n", "strict": True, "schema": schema}}).choices[0].message
    check(0 <= json.loads(person.content)["n"] <= 9, "structured output", person)
    for change, error, field in (({"model": "other"}, openai.NotFoundError, "code"),
                                 ({"temperature": "x"}, openai.BadRequestError, "param"),
                                 ({"response_format": {"type": "xml"}}, openai.BadRequestError, "param")):
        try:
            c.chat.completions.create(**{**ask, **change})
            check(False, change, "is not refused")
        except error as e:
            check(getattr(e, field), change, e)


def test_anthropic(s):
    c = anthropic.Anthropic(base_url=f"http://127.0.0.1:{s.port}", api_key="any")
    ask = {"model": "tools", "messages": HELLO, "max_tokens": 8, "extra_body": {"temperature": 0}}
    m = c.messages.create(**ask)
    same((m.stop_reason, m.usage.output_tokens), ("max_tokens", 8), "a message")
    same(c.messages.count_tokens(model="tools", messages=HELLO).input_tokens,
         m.usage.input_tokens + m.usage.cache_read_input_tokens, "count_tokens")
    with c.messages.stream(**ask) as stream:
        list(stream)
        same([b.text for b in stream.get_final_message().content], [b.text for b in m.content], "its stream")
    kinds = set()
    for _ in range(2000):  # calls and thoughts, by chance
        with c.messages.stream(**{**ask, "extra_body": {"temperature": 5}},
                               tools=[{"name": "add", "input_schema": {"type": "object", "properties": {}}}]) as stream:
            list(stream)
            for block in stream.get_final_message().content:
                kinds.add(block.type)
                if block.type == "tool_use":
                    same(block.input, {"a": 1, "b": [2]}, "a streamed call")
        if kinds == {"text", "thinking", "tool_use"}:
            break
    same(kinds, {"text", "thinking", "tool_use"}, "kinds of blocks")
    try:
        c.messages.create(**{**ask, "messages": []})
        check(False, "no messages are not refused")
    except anthropic.BadRequestError as e:
        same(e.body["error"]["type"], "invalid_request_error", "an error")


def test_ollama(s):
    c = ollama.Client(host=f"http://127.0.0.1:{s.port}")
    options = {"temperature": 0, "num_predict": 8}
    same([m.model for m in c.list().models], ["tools"], "models")
    text = c.chat(model="tools", messages=HELLO, options=options).message.content
    parts = c.chat(model="tools", messages=HELLO, options=options, stream=True)
    same("".join(p.message.content for p in parts), text, "a chat and its stream")
    same(c.generate(model="tools", prompt="hello", options=options).response, text, "generate")
    same(len(c.embed(model="tools", input=["a", "b"]).embeddings), 2, "embed")
    check("tools" in c.show("tools").capabilities and c.ps().models[0].model == "tools", "show and ps")


with Server() as server:
    for test in (test_openai, test_anthropic, test_ollama):
        test(server)
finish()
