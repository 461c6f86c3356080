"""litellm."""

import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it waits for an address outside

import litellm
from played import ASK, BASE_URL, PLACE, play

litellm.num_retries = 0
WHERE: Any = {"api_base": BASE_URL, "api_key": "none", "max_retries": 0}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": PLACE}}


def chat(**fields: Any) -> Any:
    reply = litellm.completion(model="openai/m", **{"messages": ASK, **WHERE, **fields})
    if fields.get("stream"):
        return "".join(event.choices[0].delta.content or "" for event in reply if event.choices)
    return reply.choices[0].message.model_dump()


def tool_loop() -> Any:
    message = litellm.completion(model="openai/m", messages=ASK, tools=[TOOL], **WHERE).choices[0].message
    output = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
    return chat(messages=[*ASK, message.model_dump(), output], tools=[TOOL])


FORM = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE}}
play(
    {
        "chat": chat,
        "stream": lambda: chat(stream=True),
        "n": lambda: chat(n=2),
        "tool": lambda: chat(tools=[TOOL]),
        "tool loop": tool_loop,
        "schema": lambda: chat(response_format=FORM),
        "limit": lambda: chat(max_tokens=20),
        "response": lambda: litellm.responses(model="openai/m", input="Hello", **WHERE).output[0].content[0].text,
        "embeddings": lambda: litellm.embedding(model="openai/m", input=["a"], **WHERE).data,
        "refused: text completion": lambda: litellm.text_completion(
            model="text-completion-openai/m", prompt="x", **WHERE
        ),
    }
)
