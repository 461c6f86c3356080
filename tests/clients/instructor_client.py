"""instructor."""

from typing import Any

import instructor
import openai
from played import ASK, BASE_URL, play
from pydantic import BaseModel

PLAIN = openai.OpenAI(base_url=BASE_URL, api_key="none", max_retries=0)


class Plant(BaseModel):
    name: str
    age: int


def filled(mode: Any) -> Any:
    client: Any = instructor.from_openai(PLAIN, mode=mode)
    return client.chat.completions.create(model="m", messages=ASK, response_model=Plant, max_retries=0).model_dump()


play(
    {
        "by a tool": lambda: filled(instructor.Mode.TOOLS),
        "by a schema": lambda: filled(instructor.Mode.JSON_SCHEMA),
        "by a strict tool": lambda: filled(instructor.Mode.TOOLS_STRICT),
    }
)
