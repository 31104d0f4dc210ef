"""
What is said in the corpus, as data: one TOML file for each part of it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def load(name: str) -> dict[str, Any]:
    """Read the phrases of one part, e.g. "talk"."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))
