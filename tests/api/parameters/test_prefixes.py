"""Tests of unilect.api.parameters.prefixes: what an agent changes in each request is left out, where that is so configured."""

from typing import Any

import pytest

from support.backends.engine import chat
from support.backends.scripted import HELLO, says, scripted, stream_of
from support.servers.appserver import HI, serving_models
from unilect.api.parameters.prefixes import without_billing
from unilect.config.server import Config, ModelConfig
from unilect.models.registry import Registry
from unilect.models.sources import model

HEADER = "x-anthropic-billing-header: cc_version=2.1; cch={};"
ONE, OTHER = HEADER.format("ab12c"), HEADER.format("0000f")


@pytest.mark.parametrize(
    ("content", "left"),
    [
        (f"{ONE}\n\nS1\n\nS2", "S1\n\nS2"),
        (f"{ONE}\nS1", "S1"),
        (f"S1\n\n{ONE}\n\nS2", "S1\n\nS2"),
        (f"S1\n\n{ONE}", "S1"),
        (f"{ONE}\n\n{OTHER}\n\nS1", "S1"),
        (f"Never write `{ONE}`.", f"Never write `{ONE}`."),
        ("S1", "S1"),
    ],
)
def test_the_billing_header_of_a_text(content: str, left: str) -> None:
    """The header's line is left out where a text of the system begins with it, and nowhere else."""
    system = {"role": "system", "content": content}
    found = without_billing(chat(messages=[system, *HI]))

    assert [left, "Hi"] == [message.content for message in found.messages]


def test_the_billing_header_as_a_part() -> None:
    """A part of its own is left out; a message that has no other, too; one of the user never is."""
    header, text = ({"type": "text", "text": text} for text in (ONE, "S1"))
    mine = {"role": "user", "content": ONE}
    found = without_billing(chat(messages=[{"role": "system", "content": [header, text]}, mine]))
    none = without_billing(chat(messages=[{"role": "system", "content": [header]}, mine]))

    assert ["S1"] == [part.text for part in found.messages[0].content]
    assert [ONE] == [message.content for message in none.messages] == [found.messages[1].content]
    alone = chat(messages=[{"role": "system", "content": ONE}])
    assert alone == without_billing(alone)


APIS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "system", "content": f"{ONE}\n\nS"}, *HI]},
    "/v1/responses": {"input": HI, "instructions": f"{ONE}\n\nS", "store": False},
    "/v1/messages": {"messages": HI, "system": [{"type": "text", "text": ONE}, {"type": "text", "text": "S"}]},
    "/api/chat": {"messages": [{"role": "system", "content": f"{ONE}\n\nS"}, *HI]},
}  # fmt: skip


@pytest.mark.parametrize(("drops", "sent"), [(True, "S"), (False, f"{ONE}\n\nS")])
async def test_every_api(drops: bool, sent: str) -> None:
    """Whichever API it comes through, the server behind gets the header only where the model is configured so."""
    async with scripted(says(stream_of(HELLO))) as server:
        config = ModelConfig(
            source=f"openai+{server.url}",
            model="m",
            whole_answers="stream",
            drop_billing_header=drops,
        )
        async with serving_models(Config(), Registry([model("m", config)])) as app:
            for path, body in APIS.items():
                async with app.post(path, **body, model="m", stream=False) as response:
                    assert 200 == response.status, await response.text()
                assert [sent, "Hi"] == [
                    turn["content"] for turn in server.requests[-1].json()["messages"]
                ]
