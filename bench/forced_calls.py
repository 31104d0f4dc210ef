"""
How often a call that must come comes, where nothing but asking again enforces it.

The bundled model is served with a template that knows no tools, as if its engine took neither grammars nor formats of answers, so that
the service writes the tools into the prompt, validates whole answers and asks again. Prints a row for each temperature: how many of the
requests had a valid call at the first, second and third answer, and how many had none.

    python bench/forced_calls.py [REQUESTS [FORM]]

The form `hermes` is the one that the model was trained with; `plain` is that of a model whose family is not known.
"""

import asyncio
import sys
from collections import Counter
from contextlib import aclosing
from typing import Any

import msgspec

from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.service import Service
from unilect.config.model import ModelConfig
from unilect.core.errors import ConstraintViolated
from unilect.core.requests import FunctionDefinition, NamedFunction, Tool, ToolChoice
from unilect.demo import MODEL
from unilect.engines.gguf.engine import GgufEngine
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.testing import chat

CITIES = ("Paris", "Rome", "Oslo", "Cairo", "Lima", "Tokyo", "Berlin", "Madrid")


def tool(name: str, description: str, **properties: Any) -> Tool:
    """A tool whose arguments are all required."""
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    return Tool(FunctionDefinition(name, description, parameters))


TOOLS = [
    tool("get_weather", "Get the weather.", city={"type": "string"}),
    tool("get_time", "Get the time.", city={"type": "string"}),
    tool("add", "Add two numbers.", a={"type": "integer"}, b={"type": "integer"}),
]
WANTED = {"required": "required", "named": ToolChoice(NamedFunction("get_weather"))}


async def main(requests: int, form: str) -> None:
    """Measure."""
    engine = GgufEngine("demo", MODEL, ModelConfig(chat_template="chatml", parallel=4))
    await engine.start()
    can = engine.capabilities
    hidden = dict.fromkeys(("grammar", "response_format"), "refused")
    engine.capabilities = msgspec.structs.replace(can, parameters={**can.parameters, **hidden}, schema_keywords=None, tool_form=form)  # fmt: skip
    service = Service(Registry([Model("demo", engine)]), Accounts(Metrics()))
    one_at_a_time = asyncio.Semaphore(4)

    async def ask(number: int, choice: Any, temperature: float) -> int:
        text = f"What is the weather in {CITIES[number % len(CITIES)]}?"
        run = service.run(chat(text, temperature=temperature, seed=number, max_tokens=100).changed(tools=TOOLS, tool_choice=choice))  # fmt: skip
        async with one_at_a_time:
            try:
                async with aclosing(run.batches()) as batches:
                    async for _ in batches:
                        pass
            except ConstraintViolated:
                return 0
        return run.attempts

    print("| tool_choice | temperature | first | second | third | none |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, choice in WANTED.items():
        for temperature in (0.0, 0.7, 1.0, 1.5):
            found = Counter(await asyncio.gather(*(ask(n, choice, temperature) for n in range(requests))))  # fmt: skip
            cells = " | ".join(str(found[attempts]) for attempts in (1, 2, 3, 0))
            print(f"| {name} | {temperature} | {cells} |", flush=True)
    await engine.aclose()
    await service.registry.checker.aclose()


if __name__ == "__main__":
    given = sys.argv[1:]
    asyncio.run(main(int(given[0]) if given else 200, given[1] if given[1:] else "hermes"))
