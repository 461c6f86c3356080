"""langchain-openai."""

from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from played import BASE_URL, play
from pydantic import BaseModel

model: Any = ChatOpenAI(model="m", base_url=BASE_URL, api_key="none", max_retries=0)
responses: Any = ChatOpenAI(model="m", base_url=BASE_URL, api_key="none", max_retries=0, use_responses_api=True)
QUESTION = HumanMessage("What is the weather in Turin?")


@tool
def weather(place: str) -> str:
    """The weather of a place."""
    return "rain"


class Plant(BaseModel):
    """A plant."""

    name: str
    age: int


def loop(which: Any) -> Any:
    bound = which.bind_tools([weather])
    first = bound.invoke([QUESTION])
    call = first.tool_calls[0]
    return bound.invoke([QUESTION, first, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])]).content


def embeddings(**fields: Any) -> Any:
    # The check of lengths would download a vocabulary.
    return OpenAIEmbeddings(model="m", base_url=BASE_URL, api_key="none", check_embedding_ctx_length=False, **fields)


play(
    {
        "chat": lambda: model.invoke([QUESTION]).content,
        "stream": lambda: "".join(chunk.content for chunk in model.stream([QUESTION])),
        "batch": lambda: [reply.content for reply in model.batch(["a", "b", "c"])],
        "tool loop": lambda: loop(model),
        "schema": lambda: model.with_structured_output(Plant).invoke("A plant").model_dump(),
        "schema by a tool": lambda: (
            model.with_structured_output(Plant, method="function_calling").invoke("x").model_dump()
        ),
        "response": lambda: responses.invoke([QUESTION]).content[0]["text"],
        "response, streamed": lambda: [chunk.text for chunk in responses.stream("Hello")],
        "response tool loop": lambda: loop(responses),
        "embeddings": lambda: embeddings().embed_documents(["a tomato", "a boat"]),
        "embedding of a query": lambda: embeddings().embed_query("a tomato"),
        "dimensions": lambda: len(embeddings(dimensions=16).embed_query("a tomato")),
    }
)
