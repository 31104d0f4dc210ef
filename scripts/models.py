"""
Make the table of published chat templates in docs/templates.md, with models of all of them on both engines; it takes minutes.

It wants the extra transformers, and fetches the templates once.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in ("src", "tests", "tests/reliability")]

from support.models.published_table import PAGE, in_page  # noqa: E402
from support.servers.templated import serve_all  # noqa: E402

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        served = asyncio.run(serve_all(Path(folder)))
    PAGE.write_text(in_page(served))
