"""inspect_ai."""

import asyncio
from typing import Any

from inspect_ai.model import ChatMessageUser, GenerateConfig, get_model
from inspect_ai.tool import ToolDef
from played import BASE_URL, play

model: Any = get_model("openai/m", base_url=BASE_URL, api_key="none", config=GenerateConfig(max_retries=0))
QUESTION = ChatMessageUser(content="What is the weather in Turin?")
LOOP = asyncio.new_event_loop()


async def weather(place: str) -> str:
    """The weather of a place.

    Args:
        place: where.
    """
    return "rain"


async def generated(**config: Any) -> Any:
    return (await model.generate([QUESTION], config=GenerateConfig(**config))).completion


async def loop() -> Any:
    _, output = await model.generate_loop([QUESTION], tools=[ToolDef(weather).as_tool()])
    return output.completion


play(
    {
        "chat": lambda: LOOP.run_until_complete(generated()),
        "limit": lambda: LOOP.run_until_complete(generated(max_tokens=50, temperature=0)),
        "tool loop": lambda: LOOP.run_until_complete(loop()),
    }
)
