"""Tests of unilect.templates.sandbox: a template that takes too much is ended, and one that does not is rendered as Jinja does."""

import time
from datetime import datetime
from typing import Any

import pytest
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from support.common.properties import given
from unilect.core.errors import ConfigError, InvalidRequest
from unilect.templates.chat import LIMIT_S, ChatTemplate
from unilect.templates.sandbox import Sandbox

#: Its loop ends with the last look at the clock, and compiling comes before it.
_MARGIN_S = 0.5
TURNS = [{"role": "user", "content": "Hello there."}, {"role": "assistant", "content": "Yes."}]
DOUBLED = "{% set ns = namespace(x=START, y=START) %}{% for i in range(60) %}STEP{% endfor %}END"


def doubled(start: str, step: str, end: str) -> str:
    """A template that doubles something sixty times."""
    return DOUBLED.replace("START", start).replace("STEP", step).replace("END", end)


BOMBS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) if a is divisibleby(7) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{{ range(99999) | map('string') | map('center', 900) | join }}",
    "{% set ns = namespace(d={}) %}{% for i in range(99999) %}{% set ns.d = dict(ns.d, **{i|string: 1}) %}{% endfor %}",
    "{{ 'a' * 500000000 }}",
    "{{ [1] * 500000000 }}",
    "{{ [('a' * 1000000)] * 100000 }}",
    "{{ 9 ** 99999999 }}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ 2.5 | round(1000000000, 'ceil') }}",
    "{{ (5).to_bytes(1000000000, 'big') }}",
    "{{ 'a'.center(1000000000) }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ ('a\n' * 1000000) | indent(900) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ '%(a)1000000000d' % {'a': 1} }}",
    "{{ '%h1000000000d' % 1 }}",
    "{{ ('{0}' * 1000000).format('a' * 1000000) }}",
    "{{ ('{0:999}' * 1000000).format(1) }}",
    "{{ ('{0[0]}' * 1000000).format(['a' * 1000000]) }}",
    "{{ ('%(a)s' * 1000000) % {'a': 'a' * 1000000} }}",
    "{{ ('%(a)s' * 1000000) | format(a='a' * 1000000) }}",
    "{{ ('{a}' * 1000000).format_map({'a': 'a' * 1000000}) }}",
    "{{ range(99999) | join('a' * 10000000) }}",
    "{{ ('a' * 10000000).join(range(99999) | map('string')) }}",
    "{{ ('a' * 1000000).replace('a', 'a' * 1000000) }}",
    "{{ ('a' * 1000000) | replace('a', 'a' * 1000000) }}",
    "{{ ('a' * 1000000).translate({97: 'a' * 1000000}) }}",
    "{{ [1] | batch(1000000000, 'x') | list }}",
    "{{ messages | tojson(indent=1000000000) }}",
    "{{ messages | tojson(indent='a' * 10000000) }}",
    "{{ messages | tojson(separators=('a' * 10000000, ':')) }}",
    "{{ strftime_now('%1000000000Y') }}",
    "{{ strftime_now('%900Y' * 1000000) }}",
    doubled("'ab'", "{% set ns.x = ns.x ~ ns.x %}", "{{ ns.x }}"),
    doubled("'ab'", "{% set ns.x = ns.x + ns.x %}", "{{ ns.x }}"),
    doubled("'ab'", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}", "{{ ns.x | length }}"),
    doubled("3", "{% set ns.x = ns.x * ns.x %}", "{{ ns.x }}"),
    doubled("['a']", "{% set ns.x = ns.x + ns.x %}", "{{ ns.x }}"),
    doubled("['a']", "{% set ns.x = [ns.x, ns.x] %}", "{{ ns.x }}"),
    doubled("['a']", "{% set ns.x = [ns.x, ns.x] %}", "{{ ns.x | tojson }}"),
    doubled("['a']", "{% set ns.x = [ns.x, ns.x] %}", "{{ ns.x ~ '' }}"),
    doubled("['a']", "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}", "{{ ns.x == ns.y }}"),
    doubled("('a',)", "{% set ns.x = (ns.x, ns.x) %}", "{{ {ns.x: 1} | length }}"),
]  # fmt: skip
#: What other servers' users have reached the machine with.
ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ '' | attr('__class__') }}",
    "{{ ''.__class__.__base__.__subclasses__()[0].__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__.os.system('id') }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ self.__init__.__globals__.__builtins__ }}",
    "{{ self._TemplateReference__context.cycler.__init__.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ strftime_now.__code__.co_consts }}",
    "{{ (messages | map('attr', '__class__') | list)[0] }}",
    "{{ (messages | map(attribute='__class__') | list)[0].mro() }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ '{0.__class__.__mro__}'.format_map({'0': 1}) }}",
    "{{ ('{0.__class__}' | attr('format'))(messages) }}",
    "{{ [].append(1) }}",
    "{{ messages.clear() }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{% import 'os' as os %}",
    "{% include '/etc/passwd' %}",
    "{% extends '/etc/passwd' %}",
    "{{ request.application.__globals__ }}",
    "{{ config.__class__ }}",
    "{{ ().__class__.__bases__[0].__subclasses__() }}",
    "{{ (1).__reduce_ex__(2) }}",
    "{{ messages.__reduce__() }}",
    "{% for x in ''.__class__.mro() %}{{ x }}{% endfor %}",
]


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs(bomb: str) -> None:
    """A template that would take hours or all memory ends with an error, after its quarter of a second of the processor at most."""
    begun_s = time.thread_time()
    with pytest.raises((InvalidRequest, ConfigError), match="template"):
        ChatTemplate(bomb).render_turns(TURNS)

    assert time.thread_time() - begun_s < LIMIT_S + _MARGIN_S


@pytest.mark.parametrize("escape", ESCAPES)
def test_escapes(escape: str) -> None:
    """A template that reaches for what is outside of it gets an error, or nothing."""
    turns = [dict(turn) for turn in TURNS]
    try:
        rendered = ChatTemplate(escape).render_turns(turns)
    except InvalidRequest as error:
        assert "root:" not in error.message
    else:
        assert rendered in ("", "None")
    assert TURNS == turns


@pytest.mark.parametrize("nested", ["{{ " + "(" * 3000 + ")" * 3000 + " }}", "{% if 1 %}" * 1000, "{% for a in b %}" * 60 + "{% endfor %}" * 60, "x" * (2**20 + 1), "{{"])  # fmt: skip
def test_what_cannot_be_compiled(nested: str) -> None:
    """A template that Jinja or Python cannot compile is told as such."""
    with pytest.raises(ConfigError, match=r"chat_template: (not valid Jinja|it has 1048577)"):
        ChatTemplate(nested)


PIECES = [
    "{{ messages[0].content }}",
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ m.role ~ ':' ~ m.content }}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ m.content | trim | upper }}{% else %}none{% endfor %}",
    "{% for m in messages[::-1] %}{{ loop.previtem.role if loop.previtem }}{{ m.content[:3] }}{% endfor %}",
    "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
    "{{ messages | map(attribute='content') | join(', ') }}{{ ', '.join(messages | map(attribute='role')) }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{{ 'a' * 3 + 'b' }}{{ 7 % 4 }}{{ 2 ** 10 }}{{ '%s-%03d' % ('x', 7) }}{{ '{} {:>4}'.format(1, 2) }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content | length %}{% endfor %}{{ ns.n }}",
    "{% macro say(m, n=2) %}{{ m.role * n }}{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}",
    "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "{{ 'x' in messages[0].content }}{{ messages[0] == messages[-1] }}{{ 1 < 2 < 3 }}{{ undefined_name is defined }}",
    "{% for x in nothing %}{{ x }}{% else %}empty{% endfor %}{{ nothing ~ '!' }}",
    "{% filter upper %}{{ messages[0].role }}{% endfilter %}{% set block %}{{ messages[0].role }}{% endset %}{{ block }}",
    "{% for x in [[1, [2]], 3] recursive %}{% if x is iterable %}<{{ loop(x) }}>{% else %}{{ x }}{% endif %}{% endfor %}",
    "{{ messages | tojson(indent=2) }}{{ {'a': [1, (2, 3)], 'b': none} | string }}{{ [1, 2, 3] | batch(2, 0) | list }}",
    "{{ '2024-12 **%s** 100%%2025 %d' % ('x', 7) }}{{ '2024 %s' | format('*') }}{{ '* {} {{2025}} {:>3}'.format(1, 2) }}",
    "{{ 'a\nb' | indent(4) }}{{ 'a' | center(9) }}{{ 'aXa'.replace('X', 'yy') }}{{ 2.345 | round(1) }}{{ [3, 1] | sort }}",
]  # fmt: skip


@given(pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=4), texts=st.lists(st.text(max_size=8), min_size=1, max_size=4))  # fmt: skip
def test_what_is_no_bomb(pieces: list[str], texts: list[str]) -> None:
    """A template that does what templates do is rendered as Jinja's own sandbox renders it."""
    turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]  # fmt: skip
    options: dict[str, Any] = {"extensions": ["jinja2.ext.loopcontrols"]}
    text = "|".join(pieces)

    expected = ImmutableSandboxedEnvironment(**options).from_string(text).render(messages=turns)

    assert expected == Sandbox(**options).from_string(text).render(messages=turns)


def test_a_date_with_words() -> None:
    """A date may stand among years and stars."""
    rendered = ChatTemplate("{{ strftime_now('Since 2024 * 100%%2025: %Y') }}").render_turns(TURNS)

    assert f"Since 2024 * 100%2025: {datetime.now().year}" == rendered


def test_a_long_conversation() -> None:
    """2,000 messages and 100 tools are no bomb."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20)}}}}  # fmt: skip
    text = "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}"

    rendered = ChatTemplate(text).render_turns(TURNS * 1000, tools=[tool] * 100)

    assert 1000 == rendered.count("Hello there.")
