"""What is stored of responses is there after the server was killed, on SQLite and on PostgreSQL."""

import os
import signal
from contextlib import suppress
from typing import Any

import pytest
from openai import OpenAI

from support.servers.serving import serve


@pytest.mark.heavy
def test_a_server_that_is_killed_between_two_turns(url: str) -> None:
    """A response, its items and a conversation are there for the server that follows one that was killed."""
    config = f'[store]\nurl = "{url}"\n[models.demo]\nsource = "demo:"\n'
    fields: dict[str, Any] = {"model": "demo", "max_output_tokens": 8, "temperature": 0}
    with suppress(AssertionError), serve(config=config) as server:  # it ends with a signal's code
        client = OpenAI(base_url=server.url, api_key="none", max_retries=0)
        talk = client.conversations.create()
        said = client.responses.create(input="Hello!", conversation=talk.id, **fields)
        first = client.responses.create(input="Hello!", **fields)
        os.kill(server.pid, signal.SIGKILL)
    with serve(config=config) as server:
        client = OpenAI(base_url=server.url, api_key="none", max_retries=0)
        reference: Any = {"type": "item_reference", "id": first.output[0].id}
        again = client.responses.retrieve(first.id)
        input: Any = [reference, {"role": "user", "content": "And?"}]
        after = client.responses.create(input=input, previous_response_id=first.id, **fields)
        items = list(client.conversations.items.list(talk.id, order="asc"))
        later = client.responses.create(input="And?", conversation=talk.id, **fields)

    assert (first.output_text, first.id) == (again.output_text, after.previous_response_id)
    told = [item.content[0].text for item in items if item.type == "message"]
    assert ["Hello!", said.output_text] == told
    assert after.usage is not None
    assert later.usage is not None
    assert first.usage is not None
    assert after.usage.input_tokens == later.usage.input_tokens > first.usage.input_tokens
