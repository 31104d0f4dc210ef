"""llama.cpp's native API, and that of its `api_like_OAI.py`."""

from unilect.dialects.llamacpp._native import routes

__all__ = ["routes"]
