"""
The APIs that clients speak, one file each: a body in, a typed request; events in, bytes out.

`DIALECTS` names the module of each; a module has `routes(service, manners) -> list[Route]`. From outside the tree a dialect is an
entry point in the group `unilect.dialects` that names such a module. What it needs beside `service`, `streaming`, `requests`, `events` and
`errors` is here.
"""

from unilect.dialects._decode import BodyDecoder, decoded
from unilect.dialects._manners import Manners
from unilect.dialects._routes import Handler, Route, both

__all__ = ["DIALECTS", "BodyDecoder", "Handler", "Manners", "Route", "both", "decoded"]

DIALECTS = {
    "chatglm": "unilect.dialects.chatglm",
    "openai_chat": "unilect.dialects.openai_chat",
    "openai_completions": "unilect.dialects.openai_completions",
    "openai_embeddings": "unilect.dialects.openai_embeddings",
    "openai_models": "unilect.dialects.openai_models",
    "fastchat": "unilect.dialects.fastchat",
    "llamacpp": "unilect.dialects.llamacpp",
}
