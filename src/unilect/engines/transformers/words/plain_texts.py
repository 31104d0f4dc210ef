"""
The texts of a conversation, apart from the special tokens that its template writes.

In the texts, the name of a special token is replaced by a number that nobody can guess and that no template changes. What the template
has made of them is read by a copy of the tokenizer in which the special tokens have other names, so that those of the texts can be put back.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

_DIGITS = 24


class PlainTexts:
    """
    Keeps the names of special tokens in texts apart from the special tokens of a template.

    Args:
        backend: The tokenizer, of the library tokenizers.
        names: The names of its special tokens.
    """

    def __init__(self, backend: Any, names: Iterable[str]) -> None:
        self._backend = backend
        self._names = sorted(filter(None, names))
        nonce = "".join(secrets.choice("123456789") for _ in range(_DIGITS))
        self._hidden = {name: f"{nonce}{place:06}" for place, name in enumerate(self._names)}
        self._number = re.compile(nonce + "([0-9]{6})")
        self._any = re.compile(longest_of(self._names)) if self._names else None
        # a name that stands in no prompt, or a model could be made to tell it
        mark = secrets.token_hex(16)
        self._renamed = {name: f"{mark}.{place:06}." for place, name in enumerate(self._names)}

    def hide(self, value: Any, kept: frozenset[str]) -> Any:
        """Replace the names in every text of a value, but for those that are kept."""
        if self._any is None:
            return value
        if isinstance(value, str):
            return self._any.sub(
                lambda found: found[0] if found[0] in kept else self._hidden[found[0]], value
            )
        if isinstance(value, list):
            return [self.hide(item, kept) for item in value]
        if isinstance(value, Mapping):
            return {self.hide(key, kept): self.hide(item, kept) for key, item in value.items()}
        return value

    def are_in(self, text: str) -> bool:
        """True where names are hidden in a text."""
        return self._number.search(text) is not None

    def restore(self, text: str) -> str:
        """Return a text with the names that were hidden in it."""
        return self._number.sub(lambda found: self._names[int(found[1])], text)

    def names_in(self, text: str) -> frozenset[str]:
        """Return the names that stand in a text."""
        return frozenset(self._any.findall(text) if self._any is not None else ())

    def tokens(self, text: str) -> list[int]:
        """The token ids of a text in which names are hidden: those are text, all others are special tokens."""
        assert self._any is not None
        renamed = self._any.sub(lambda found: self._renamed[found[0]], text)
        return self.plain_tokens(self.restore(renamed), special=False)

    def plain_tokens(self, text: str, special: bool) -> list[int]:
        """The token ids of a text in which all names are text; with `special`, those that the tokenizer puts around it too."""
        tokenizer, ids = self._other
        found = tokenizer.encode(text, add_special_tokens=special)
        # what the tokenizer puts around a text has its right ids already
        pairs = zip(found.ids, found.special_tokens_mask, strict=True)
        return [id if is_around else ids.get(id, id) for id, is_around in pairs]

    @cached_property
    def _other(self) -> tuple[Any, dict[int, int]]:
        """The tokenizer with other names for the special tokens, and those of its ids that differ, with the right ones."""
        config = json.loads(self._backend.to_str())
        own = {token["content"]: token["id"] for token in config["added_tokens"]}
        for token in config["added_tokens"]:
            token["content"] = self._renamed.get(token["content"], token["content"])
        other = type(self._backend).from_str(json.dumps(config))
        other.no_truncation()
        other.no_padding()
        ids = {other.token_to_id(self._renamed.get(name, name)): id for name, id in own.items()}
        return other, ids


def longest_of(words: Iterable[str]) -> str:
    """Return the regular expression of the longest of some words, which looks at each of a text's places once for all of them."""
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for sign in word:
            node = node.setdefault(sign, {})
        node[""] = {}
    return _branches(tree)


def _branches(node: dict[str, Any]) -> str:
    rest = [re.escape(sign) + _branches(child) for sign, child in node.items() if sign]
    if not rest:
        return ""
    one = rest[0] if len(rest) == 1 and "" not in node else f"(?:{'|'.join(rest)})"
    return one + "?" * ("" in node)
