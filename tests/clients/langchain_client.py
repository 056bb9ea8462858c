"""langchain-openai as it is published.  Run by tests/clients/run."""
import asyncio
import json

from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

from serve_lib import CALL, Server, check, finish, same

SCHEMA = {"title": "number", "description": "a number", "type": "object",
          "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"], "additionalProperties": False}
LESS = {"60": -100, "304": -100, "301": -100}  # no beginning of reasoning


def add(a: int) -> int:
    """Adds."""
    return a


def test(s):
    to = {"model": "tools", "base_url": f"http://127.0.0.1:{s.port}/v1", "api_key": "any", "max_retries": 0}
    chat = ChatOpenAI(temperature=0, max_completion_tokens=8, stream_usage=True, **to)
    whole = chat.invoke("hello")
    same((whole.response_metadata["finish_reason"], whole.usage_metadata["output_tokens"]), ("length", 8), "a message")
    stream = None
    for chunk in chat.stream("hello"):
        stream = chunk if stream is None else stream + chunk
    same((stream.content, stream.usage_metadata["output_tokens"]), (whole.content, 8), "a stream")
    same([m.content for m in chat.batch(["hello"] * 12)], [whole.content] * 12, "a batch")
    same(asyncio.run(chat.ainvoke("hello")).content, whole.content, "without blocking")
    scored = chat.bind(logprobs=True, top_logprobs=2).invoke("hello").response_metadata["logprobs"]["content"]
    same([len(t["top_logprobs"]) for t in scored], [2] * 8, "logprobs")

    tools = ChatOpenAI(temperature=0, max_completion_tokens=1, logit_bias={CALL: 500}, **to).bind_tools([add])
    call = tools.invoke("hello")
    same([(c["name"], c["args"]) for c in call.tool_calls], [("add", {"a": 1, "b": [2]})], "a call")
    parts = None
    for chunk in tools.stream("hello"):
        parts = chunk if parts is None else parts + chunk
    same([(c["name"], c["args"]) for c in parts.tool_calls], [("add", {"a": 1, "b": [2]})], "a streamed call")
    turns = [HumanMessage("hello"), AIMessage("", tool_calls=call.tool_calls), ToolMessage("3", tool_call_id=call.tool_calls[0]["id"])]
    same(chat.bind_tools([add]).invoke(turns).usage_metadata["output_tokens"], 8, "a call's result")
    forced = ChatOpenAI(temperature=0, max_completion_tokens=200, **to).bind_tools([add], tool_choice="add", strict=True)
    got = forced.invoke("hello").tool_calls
    check(got and got[0]["name"] == "add" and isinstance(got[0]["args"]["a"], int), "a call that must be", got)

    wide = ChatOpenAI(temperature=0, max_completion_tokens=200, logit_bias=LESS, **to)
    for method in ("json_schema", "function_calling"):
        n = wide.with_structured_output(SCHEMA, method=method).invoke("hello")
        check(0 <= n["n"] <= 9, method, n)

    responses = ChatOpenAI(temperature=0, max_completion_tokens=8, use_responses_api=True, **to)
    same(responses.invoke("hello").text, whole.content, "by the responses API")
    same("".join(c.text for c in responses.stream("hello")), whole.content, "its stream")
    done = OpenAI(temperature=0, max_tokens=3, **to)
    texts = done.generate(["a", "b"])
    same((len(texts.generations), texts.llm_output["token_usage"]["completion_tokens"]), (2, 6), "text completions")
    same("".join(done.stream("a")), texts.generations[0][0].text, "their stream")
    embed = OpenAIEmbeddings(model="tools", base_url=to["base_url"], api_key="any", check_embedding_ctx_length=False)
    same([len(v) for v in embed.embed_documents(["a", "b"])], [128, 128], "embeddings")
    try:
        chat.invoke("a " * 20000)
        check(False, "a prompt beyond the context is not refused")
    except ContextOverflowError as e:
        check(e.status_code == 400, e)
    same(chat.invoke(json.loads('[["system", "s"], ["human", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]]]'))
         .usage_metadata["output_tokens"], 8, "parts of a message")


with Server() as server:
    test(server)
finish()
