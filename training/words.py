"""
The words that the corpus is made of: countries, names, animals, things (`phrases/words.toml`).
"""

from __future__ import annotations

from training.phrases import load

_WORDS = load("words")

# English name, English capital, Chinese name, Chinese capital.
COUNTRIES: list[list[str]] = _WORDS["countries"]
# Other ways people write some of them.
ALIASES: dict[str, list[str]] = _WORDS["aliases"]
CITIES_EN: list[str] = _WORDS["cities_en"]
CITIES_ZH: list[str] = _WORDS["cities_zh"]
NAMES_EN: list[str] = _WORDS["names_en"]
SURNAMES_ZH: list[str] = _WORDS["surnames_zh"]
GIVEN_ZH: list[str] = _WORDS["given_zh"]
SYLLABLES: list[str] = _WORDS["syllables"]
ANIMALS: list[str] = _WORDS["animals"]
THINGS: list[str] = _WORDS["things"]
ANIMALS_ZH: list[str] = _WORDS["animals_zh"]
PETS_ZH: list[str] = _WORDS["pets_zh"]
# English -> Chinese.
COLOURS: dict[str, str] = _WORDS["colours"]
FOODS: dict[str, str] = _WORDS["foods"]
CONDITIONS: dict[str, str] = _WORDS["conditions"]
