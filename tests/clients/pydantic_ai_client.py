"""pydantic-ai."""

from typing import Any

from played import BASE_URL, play
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

PROVIDER = OpenAIProvider(base_url=BASE_URL, api_key="none")
CHAT, RESPONSES = OpenAIChatModel("m", provider=PROVIDER), OpenAIResponsesModel("m", provider=PROVIDER)


class Plant(BaseModel):
    name: str


def with_tool(model: Any) -> Any:
    agent: Any = Agent(model)

    @agent.tool_plain
    def weather(place: str) -> str:
        return "rain"

    return agent.run_sync("What is the weather in Turin?").output


play(
    {
        "chat": lambda: Agent(CHAT).run_sync("Hello").output,
        "response": lambda: Agent(RESPONSES).run_sync("Hello").output,
        "tool loop": lambda: with_tool(CHAT),
        "response tool loop": lambda: with_tool(RESPONSES),
        "schema by a tool": lambda: Agent(CHAT, output_type=Plant).run_sync("A plant").output.name,
    }
)
