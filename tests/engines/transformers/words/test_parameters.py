"""Tests of unilect.engines.transformers.words.parameters."""

import pytest

from unilect.api.backend import Capabilities
from unilect.engines.transformers.words.parameters import with_template

WRITES = Capabilities(parameters={}, completions=True)


@pytest.mark.parametrize(
    ("template", "tools", "form"),
    [
        ("{{ tools }}<tool_call>", "native", "hermes"),
        ("{{ tools }}<minimax:tool_call>", "native", "minimax"),
        ("{{ tools }}<|plugin|>", "refused", ""),
        ("<|im_start|>", "refused", "hermes"),
        ("", "refused", ""),
    ],
)
def test_tools(template: str, tools: str, form: str) -> None:
    """Tools are the model's own where its template takes them and shows its family; else they are emulated, in the family's form."""
    can = with_template(WRITES, template, "tools" in template)

    assert (tools, form, bool(template)) == (can.parameters["tools"], can.tool_form, can.chat)


@pytest.mark.parametrize("marks", ["<seed:think></seed:think><seed:bos>", "[TOOL_CALLS][THINK][/THINK]", "<think></think>"])  # fmt: skip
def test_thoughts(marks: str) -> None:
    """A budget of thoughts needs a template that shows their marks, whatever they are."""
    assert "native" == with_template(WRITES, marks, False).parameters["thinking_budget_tokens"]
    assert "refused" == with_template(WRITES, "Hi", False).parameters["thinking_budget_tokens"]
    assert (True, False) == (with_template(WRITES, marks, False).thinking, with_template(WRITES, "Hi", False).thinking)  # fmt: skip
