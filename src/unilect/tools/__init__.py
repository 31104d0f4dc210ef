"""Tools: conversations and requests that use them, and the reader of what a model writes. It knows no backend."""
