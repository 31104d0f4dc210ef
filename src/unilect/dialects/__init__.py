"""
The APIs that clients speak, one file each: a body in, a typed request; events in, bytes out.

`DIALECTS` names the module of each; a module has `routes(service, manners) -> list[Route]`. From outside the tree a dialect is an
entry point in the group `unilect.dialects`.
"""

DIALECTS = {
    "chatglm": "unilect.dialects.chatglm",
    "openai_chat": "unilect.dialects.openai_chat",
    "openai_completions": "unilect.dialects.openai_completions",
    "openai_embeddings": "unilect.dialects.openai_embeddings",
    "openai_models": "unilect.dialects.openai_models",
    "fastchat": "unilect.dialects.fastchat",
    "llamacpp": "unilect.dialects.llamacpp",
}
