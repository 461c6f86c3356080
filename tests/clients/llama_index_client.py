"""llama-index with its OpenAI packages."""

from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAI
from played import BASE_URL, play

model: Any = OpenAI(model="gpt-4o-mini", api_base=BASE_URL, api_key="none", max_retries=0)
QUESTION = ChatMessage(role="user", content="What is the weather in Turin?")


def weather(place: str) -> str:
    """The weather of a place."""
    return "rain"


TOOL = FunctionTool.from_defaults(weather)


def loop() -> Any:
    first = model.chat_with_tools([TOOL], chat_history=[QUESTION])
    call = model.get_tool_calls_from_response(first)[0]
    output = ChatMessage(role="tool", content="rain", additional_kwargs={"tool_call_id": call.tool_id})
    return model.chat_with_tools([TOOL], chat_history=[QUESTION, first.message, output]).message.content


play(
    {
        "chat": lambda: model.chat([QUESTION]).message.content,
        "complete": lambda: model.complete("Hello").text,
        "stream": lambda: "".join(chunk.delta or "" for chunk in model.stream_chat([QUESTION])),
        "tool loop": loop,
    }
)
