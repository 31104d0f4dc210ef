"""The table of published chat templates in docs/templates.md, made of what servers of them have said."""

import re
from pathlib import Path

from support.models.published import chat_templates
from support.servers.templated import Engines, Model
from unilect.api.parameters.rules import honours
from unilect.demo import FOLDER
from unilect.families import thoughts_of
from unilect.templates.takes import Takes

PAGE = Path(__file__).resolve().parents[3] / "docs" / "templates.md"
_BEGIN, _END = "<!-- published -->\n", "<!-- /published -->"
_SYSTEMS = {"anywhere": "anywhere", "first": "one, first", "never": "in the user's turn"}


def in_page(served: Engines) -> str:
    """The page with the table in it."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    return before + _BEGIN + table(served) + _END + rest.partition(_END)[2]


def table(served: Engines) -> str:
    """The table: templates of one family with which the same works share a line."""
    from transformers import AutoTokenizer

    from unilect.engines.transformers.words.prompt_builder import PromptBuilder

    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "hf")
    rows = dict[tuple[str, ...], list[str]]()
    for name, template in chat_templates().items():
        gguf, transformers = (served[engine][name] for engine in ("gguf", "transformers"))
        taken = PromptBuilder(tokenizer, template, 512, frozenset(), 0)._takes
        row = (
            gguf.can.tool_form or "not known",
            _tools(gguf, transformers),
            _calls(taken),
            _thoughts(template),
            _SYSTEMS[taken.system],
        )
        rows.setdefault(row, []).append(name)
    lines = [
        "| templates | family | tools | earlier calls | thoughts | system messages |",
        "| --- | --- | --- | --- | --- | --- |",
        *(
            f"| {', '.join(names)} | {' | '.join(row)} |"
            for row, names in sorted(rows.items(), key=lambda item: (item[0], item[1]))
        ),
    ]
    return "".join(f"{line}\n" for line in lines)


def _tools(gguf: Model, transformers: Model) -> str:
    if transformers.prompt("system") is None:
        return f"{'native' if honours(gguf.can, 'tools') else 'in the prompt'} (GGUF only)"
    native = [honours(one.can, "tools") for one in (gguf, transformers)]
    if native == [True, False]:
        return "native (GGUF), in the prompt (transformers)"
    return "native" if native == [True, True] else "in the prompt"


def _calls(taken: Takes) -> str:
    if not taken.calls:
        return "as text"
    return "any" if taken.several else "one in a turn"


def _thoughts(template: str) -> str:
    if (marks := thoughts_of(template)) is None:
        return ""
    begin = re.sub(r"([|])", r"\\\1", marks[0].strip())
    return f"`{begin}`"
