"""The openai package."""

from typing import Any

import openai
from played import ASK, BASE_URL, PLACE, PNG, play
from pydantic import BaseModel

client = openai.OpenAI(base_url=BASE_URL, api_key="none", max_retries=0)
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": PLACE}}
FUNCTION: Any = {"type": "function", "name": "weather", "parameters": PLACE, "strict": False}


class Inner(BaseModel):
    name: str


class Plant(BaseModel):
    inner: Inner
    age: int


def chat(**fields: Any) -> Any:
    reply = client.chat.completions.create(**{"model": "m", "messages": ASK, **fields})
    return [event.model_dump() for event in reply] if fields.get("stream") else reply.model_dump()


def tool_loop(**fields: Any) -> Any:
    first = client.chat.completions.create(model="m", messages=ASK, tools=[TOOL], **fields)
    message = first.choices[0].message
    call = message.tool_calls[0]
    output = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    second = client.chat.completions.create(model="m", messages=[*ASK, message, output], tools=[TOOL], **fields)
    assert second.choices[0].message.content
    return second.model_dump()


def chat_stream_helper(**fields: Any) -> Any:
    with client.chat.completions.stream(model="m", messages=ASK, **fields) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion().model_dump()


def responded(given: Any = "Hello", **fields: Any) -> Any:
    reply = client.responses.create(model="m", input=given, **fields)
    return [event.model_dump() for event in reply] if fields.get("stream") else reply.model_dump()


def responses_loop() -> Any:
    given: Any = list(ASK)
    first = client.responses.create(model="m", input=given, tools=[FUNCTION])
    call = first.output[0]
    given += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    second = client.responses.create(model="m", input=given, tools=[FUNCTION])
    assert second.output_text
    return second.model_dump()


def response_stream_helper(**fields: Any) -> Any:
    with client.responses.stream(model="m", input="Hello helper", **fields) as stream:
        deltas = "".join(event.delta for event in stream if event.type.endswith(".delta"))
        final = stream.get_final_response()
    item = final.output[0]
    assert deltas == (item.arguments if item.type == "function_call" else final.output_text), deltas
    return final.model_dump(mode="json")


def embedded(**fields: Any) -> Any:
    return client.embeddings.create(**{"model": "m", "input": ["a tomato", "a boat"], **fields}).model_dump()


def parsed() -> Any:
    reply = client.chat.completions.parse(model="m", messages=ASK, response_format=Plant)
    assert isinstance(reply.choices[0].message.parsed, Plant)
    return reply.model_dump()


def response_parsed() -> Any:
    reply = client.responses.parse(model="m", input="A plant", text_format=Plant)
    assert isinstance(reply.output_parsed, Plant)
    return reply.model_dump(mode="json")


IMAGE: Any = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": PNG}}]
play(
    {
        "chat": chat,
        "chat, raw": lambda: client.chat.completions.with_raw_response.create(model="m", messages=ASK).text,
        "stream": lambda: chat(stream=True),
        "stream with usage": lambda: chat(stream=True, stream_options={"include_usage": True}),
        "stream helper": chat_stream_helper,
        "n": lambda: chat(n=3),
        "n, streamed": lambda: chat(n=3, stream=True),
        "log-probabilities": lambda: chat(logprobs=True, top_logprobs=2),
        "stop and seed": lambda: chat(stop=["."], seed=3, temperature=0.5),
        "limits": lambda: chat(max_completion_tokens=30),
        "developer": lambda: chat(messages=[{"role": "developer", "content": "Be brief."}, *ASK]),
        "image": lambda: chat(messages=[{"role": "user", "content": IMAGE}]),
        "parse": parsed,
        "json_object": lambda: chat(response_format={"type": "json_object"}),
        "tool": lambda: chat(tools=[TOOL]),
        "tool, streamed": lambda: chat(tools=[TOOL], stream=True),
        "tool stream helper": lambda: chat_stream_helper(tools=[TOOL]),
        "tool loop": tool_loop,
        "tool loop without temperature": lambda: tool_loop(parallel_tool_calls=False),
        "tool that is named": lambda: chat(
            tools=[TOOL], tool_choice={"type": "function", "function": {"name": "weather"}}
        ),
        "custom tool": lambda: chat(tools=[{"type": "custom", "custom": {"name": "shell"}}]),
        "response": responded,
        "response, streamed": lambda: responded(stream=True),
        "response stream helper": response_stream_helper,
        "response tool stream helper": lambda: response_stream_helper(tools=[FUNCTION]),
        "response parse": response_parsed,
        "response tool loop": responses_loop,
        "response image": lambda: responded(
            [{"role": "user", "content": [{"type": "input_image", "image_url": PNG, "detail": "auto"}]}]
        ),
        "response log-probabilities": lambda: responded(include=["message.output_text.logprobs"], top_logprobs=1),
        "response usage": lambda: responded("usage"),
        "embeddings": embedded,
        "embeddings as numbers": lambda: embedded(encoding_format="float"),
        "embeddings of a text": lambda: embedded(input="one text"),
        "embeddings of token ids": lambda: embedded(input=[[15339], [1917]]),
        "dimensions": lambda: embedded(dimensions=16),
        "models": lambda: [model.id for model in client.models.list()],
        "model": lambda: client.models.retrieve("gpt-x").model_dump(),
        "refused: earlier response": lambda: responded(previous_response_id="resp_1"),
        "refused: built-in tool": lambda: responded(tools=[{"type": "web_search"}]),
        "refused: retrieve": lambda: client.responses.retrieve("resp_1"),
        "refused: completions": lambda: client.completions.create(model="m", prompt="x"),
        "refused: moderations": lambda: client.moderations.create(input="x"),
        "refused: limit": lambda: chat(max_tokens=-5),
    }
)
