"""
The official `openai` package against a server of FastChat's kind, in versions 0.28 and from 1 on.

    python fastchat_client.py BASE_URL KEY MODEL

It prints one line of JSON: what each call gave.
"""

import json
import sys
from typing import Any

import openai

OLD = hasattr(openai, "api_base")
MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT = "The capital of France"


def main(base: str, key: str, model: str) -> dict[str, Any]:
    """What each call gives."""
    options: dict[str, Any] = {"model": model, "temperature": 0}
    if OLD:
        api: Any = openai
        api.api_base, api.api_key = base, key
        chat, complete, embed = api.ChatCompletion, api.Completion, api.Embedding
        models = [item["id"] for item in api.Model.list()["data"]]
    else:
        client = openai.OpenAI(base_url=base, api_key=key, max_retries=0, timeout=60)
        chat, complete, embed = client.chat.completions, client.completions, client.embeddings
        models = [item.id for item in client.models.list().data]
    whole = chat.create(messages=MESSAGES, **options)
    pieces = [
        _content(chunk.choices[0].delta)
        for chunk in chat.create(messages=MESSAGES, stream=True, **options)
    ]
    completion = complete.create(prompt=PROMPT, max_tokens=4, n=2, **options)
    embedding = embed.create(model=model, input=["a", "b"])
    return {
        "version": "0" if OLD else openai.__version__.partition(".")[0],
        "models": sorted(models),
        "whole": whole.choices[0].message.content,
        "finish": whole.choices[0].finish_reason,
        "streamed": "".join(pieces),
        "completions": [choice.text for choice in completion.choices],
        "dimensions": [len(_item(one, "embedding")) for one in _item(embedding, "data")],
        "unknown model": _error(lambda: chat.create(messages=MESSAGES, model="nope")),
    }


def _content(delta: Any) -> str:
    return _item(delta, "content") or ""


def _item(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name)


def _error(call: Any) -> str:
    """The kind of error that a call raises."""
    kinds: Any = openai.error.OpenAIError if OLD else openai.OpenAIError  # type: ignore[attr-defined]
    try:
        call()
    except kinds as error:
        return type(error).__name__
    return "none"


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
