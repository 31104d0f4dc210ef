"""Tool calls: the forms in which the families of models write them, and what reads and writes these forms. It knows no backend."""


def begun(text: str, word: str) -> int:
    """The length of the longest end of a text that begins a word."""
    return next(
        (n for n in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:n])), 0
    )
