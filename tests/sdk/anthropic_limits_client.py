"""Anthropic's official client and a key with limits: what it finds in the headers, and what it raises. Arguments: the URL, the key."""

import json
import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1].removesuffix("/v1"), api_key=sys.argv[2], max_retries=1, timeout=60)  # fmt: skip
asked = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x" * 20}]}
with client:
    raw = client.messages.with_raw_response.create(**asked)
    text = raw.parse().content[0].text
    try:
        client.messages.create(**asked | {"max_tokens": 100})
    except anthropic.RateLimitError as error:
        refused = [error.status_code, error.body["error"]["type"], dict(error.response.headers)]
print(json.dumps({"text": text, "headers": dict(raw.headers), "refused": refused}))
