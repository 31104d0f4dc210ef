"""llama.cpp's native API, and that of its `api_like_OAI.py`."""
