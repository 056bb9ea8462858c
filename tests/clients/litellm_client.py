"""litellm as it is published, by its routes to servers like OpenAI's, to Anthropic's and to Ollama.  Run by
tests/clients/run."""
import asyncio
import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is asked of other machines
import litellm

from serve_lib import CALL, THINK, Server, check, finish, same

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
          "additionalProperties": False}


def test_openai(s):
    to = {"model": "openai/tools", "api_base": f"http://127.0.0.1:{s.port}/v1", "api_key": "any", "temperature": 0}
    whole = litellm.completion(messages=HELLO, max_tokens=8, logprobs=True, top_logprobs=2, **to)
    choice = whole.choices[0]
    same((choice.finish_reason, len(choice.logprobs.content), whole.usage.completion_tokens), ("length", 8, 8), "a completion")
    chunks = list(litellm.completion(messages=HELLO, max_tokens=8, stream=True, stream_options={"include_usage": True}, **to))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    same(text, choice.message.content, "a stream")
    again = litellm.stream_chunk_builder(chunks, messages=HELLO)
    same((again.choices[0].message.content, again.usage.completion_tokens), (text, 8), "a stream put together")

    async def crowd():
        return await asyncio.gather(*(litellm.acompletion(messages=HELLO, max_tokens=8, **to) for _ in range(20)))

    for reply in asyncio.run(crowd()):
        same(reply.choices[0].message.content, text, "one of many")
    call = litellm.completion(messages=HELLO, max_tokens=1, tools=[TOOL], logit_bias={str(CALL): 500}, **to).choices[0]
    same(call.message.tool_calls[0].function.name, "add", "a call")
    same(json.loads(call.message.tool_calls[0].function.arguments), {"a": 1, "b": [2]}, "its arguments")
    parts = list(litellm.completion(messages=HELLO, max_tokens=1, tools=[TOOL], logit_bias={str(CALL): 500}, stream=True, **to))
    built = litellm.stream_chunk_builder(parts).choices[0].message.tool_calls
    same([(c.function.name, json.loads(c.function.arguments)) for c in built], [("add", {"a": 1, "b": [2]})], "a streamed call")
    result = HELLO + [call.message.model_dump(), {"role": "tool", "tool_call_id": call.message.tool_calls[0].id, "content": "3"}]
    same(litellm.completion(messages=result, max_tokens=2, tools=[TOOL], **to).usage.completion_tokens, 2, "a call's result")
    thought = litellm.completion(messages=HELLO, max_tokens=1, logit_bias={str(THINK): 500}, **to).choices[0].message
    same(thought.reasoning_content, "Well.", "reasoning")
    n = litellm.completion(messages=HELLO, max_tokens=60, logit_bias={"60": -100, "304": -100, "301": -100}, **to,
                           response_format={"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}})
    check(0 <= json.loads(n.choices[0].message.content)["n"] <= 9, "structured output", n)
    done = litellm.text_completion(prompt="a", max_tokens=3, logprobs=2, **{**to, "model": "text-completion-openai/tools"})
    same((done.usage.completion_tokens, len(done.choices[0].text) > 0), (3, True), "a text completion")
    same(len(litellm.embedding(input=["a", "b"], **{k: v for k, v in to.items() if k != "temperature"}).data), 2, "embeddings")
    for change, error in (({"model": "openai/other"}, litellm.NotFoundError), ({"temperature": -1}, litellm.BadRequestError),
                          ({"messages": HELLO * 9000}, litellm.ContextWindowExceededError)):
        try:
            litellm.completion(**{"messages": HELLO, "max_tokens": 1, "num_retries": 0, **to, **change})
            check(False, list(change), "is not refused")
        except error as e:
            check(e.status_code in (400, 404), change.keys(), e)
    return text


def test_others(s, text):
    base = f"http://127.0.0.1:{s.port}"
    a = litellm.completion(model="anthropic/tools", api_base=base, api_key="any", messages=HELLO, max_tokens=8, temperature=0)
    same((a.choices[0].message.content, a.choices[0].finish_reason), (text, "length"), "by Anthropic's API")
    parts = litellm.completion(model="anthropic/tools", api_base=base, api_key="any", messages=HELLO, max_tokens=8,
                               temperature=0, stream=True)
    same("".join(p.choices[0].delta.content or "" for p in parts), text, "its stream")
    for model in ("ollama_chat/tools", "ollama/tools"):
        o = litellm.completion(model=model, api_base=base, messages=HELLO, max_tokens=8, temperature=0)
        check(o.choices[0].message.content and o.usage.completion_tokens == 8, "by Ollama's", model, o)
        parts = litellm.completion(model=model, api_base=base, messages=HELLO, max_tokens=8, temperature=0, stream=True)
        same("".join(p.choices[0].delta.content or "" for p in parts), o.choices[0].message.content, "its stream", model)


with Server() as server:
    test_others(server, test_openai(server))
finish()
