"""
The APIs that clients speak, one file each: a body in, a typed request; events in, bytes out.

`DIALECTS` names the module of each; a module has `routes(service, manners) -> list[Route]`. From outside the tree a dialect is an
entry point in the group `unilect.dialects` that names such a module. What it needs beside `service`, `streaming`, `requests`, `events` and
`errors` is here.
"""

from unilect.web.decode import BodyDecoder, decoded
from unilect.web.manners import Manners
from unilect.web.route import Handler, Route, both

__all__ = ["DIALECTS", "BodyDecoder", "Handler", "Manners", "Route", "both", "decoded"]

DIALECTS = {
    "chatglm": "unilect.dialects.chatglm",
    "openai_chat": "unilect.dialects.openai.chat",
    "openai_completions": "unilect.dialects.openai.completions",
    "openai_embeddings": "unilect.dialects.openai.embeddings",
    "openai_models": "unilect.dialects.openai._models",
    "fastchat": "unilect.dialects.fastchat._api",
    "llamacpp": "unilect.dialects.llamacpp._native",
}
