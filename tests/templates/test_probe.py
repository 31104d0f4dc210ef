"""Tests of unilect.templates.probe: templates that write a request's tools into the prompt, and others."""

import pytest

from unilect.templates.chat import ChatTemplate
from unilect.templates.probe import takes_tools

SAYS = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "takes"),
    [
        ("{% if tools %}{{ tools | tojson }}{% endif %}" + SAYS, True),
        ("{% for t in tools or [] %}{{ t.function.name }}{% endfor %}" + SAYS, True),
        ("{% for m in messages %}{% if m.role == 'system' %}{{ m.content ~ tools }}{% endif %}{% endfor %}", True),
        (SAYS, False),
        (SAYS + "{# tools #}", False),
        ("{% for m in messages %}{% if 'tools' in m and m.tools %}<|tool|>{{ m.tools }}{% endif %}{{ m.content }}{% endfor %}", False),
        ("{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + SAYS, False),
        ("{% if tools %}You have {{ tools | length }} tools.{% endif %}" + SAYS, False),
    ],
)  # fmt: skip
def test_takes_tools(template: str, takes: bool) -> None:
    """A template takes tools where the name of one stands in the prompt that it makes."""
    chat = ChatTemplate(template)

    assert takes == takes_tools(lambda turns, tools: chat.render_turns(turns, tools=tools))
