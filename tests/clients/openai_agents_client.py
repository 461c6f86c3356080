"""openai-agents."""

import asyncio
from typing import Any

import openai
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from played import BASE_URL, play

set_tracing_disabled(True)
CLIENT = openai.AsyncOpenAI(base_url=BASE_URL, api_key="none", max_retries=0)


@function_tool
def weather(place: str) -> str:
    """The weather of a place."""
    return "rain"


def agent(kind: Any, *tools: Any) -> Any:
    return Agent(name="a", instructions="Be brief.", model=kind(model="m", openai_client=CLIENT), tools=list(tools))


async def asked(which: Any, *, streamed: bool = False) -> Any:
    if not streamed:
        return (await Runner.run(which, "What is the weather in Turin?")).final_output
    result = Runner.run_streamed(which, "What is the weather in Turin?")
    async for _ in result.stream_events():
        pass
    return result.final_output


LOOP = asyncio.new_event_loop()
play(
    {
        f"{name}{kind}": lambda model=model, tools=tools, streamed=streamed: LOOP.run_until_complete(
            asked(agent(model, *tools), streamed=streamed)
        )
        for kind, model in (("chat", OpenAIChatCompletionsModel), ("response", OpenAIResponsesModel))
        for name, tools, streamed in (
            ("", (), False),
            ("streamed ", (), True),
            ("tool loop, ", (weather,), False),
            ("streamed tool loop, ", (weather,), True),
        )
    }
)
