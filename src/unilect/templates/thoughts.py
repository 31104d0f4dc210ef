"""
The place of thoughts in a model's turn, as its chat template shows it: the end of a prompt that has begun them, the mark that ends them, and
whether a model marks its answer.

The template renders three conversations, and the results are compared, so that marks in no table are found. A template that leaves
earlier thoughts out shows nothing; then a tag that is named after thinking begins them, at a prompt's end or in the template.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from unilect.constraints.regex import literal
from unilect.templates.takes import Turn
from unilect.tools.grammar import prefix_rules

_ASKED, _THOUGHT, _ANSWER = "Asked3f0c", "Thought3f0c", "Answer3f0c"
_USER: Turn = {"role": "user", "content": _ASKED}
_TAG = re.compile(r"(?:<\|?([^<>\s/|]{1,64})\|?>|\[([^\[\]/\s]{1,64})\])\Z")
_TAGS = re.compile(r"<\|?[^<>\s/|]{1,64}\|?>|\[[^\[\]/\s]{1,64}\]")
_NAMED = re.compile("(?!end)[^/]*(think|thought|reason)", re.IGNORECASE)
_FIRST_MARK = re.compile(r"<[^<>]{1,64}>|\[[^\[\]]{1,64}\]|\S{1,64}")
_SHOWN = 256  # characters at a prompt's end
_BETWEEN = "\n\n"  # what most models write between their thoughts and their answer
_PARTNERS = (("START", "END"), ("begin", "end"), ("BEGIN", "END"), ("start", "end"))


class Ending(Struct, frozen=True):
    """
    The end of thoughts.

    Attributes:
        mark: What they do not hold themselves.
        rest: What stands between the mark and the answer.
    """

    mark: str
    rest: str


class Thoughts(Struct, frozen=True):
    """
    The marks of thoughts that a template shows.

    Attributes:
        begins: What a prompt ends with that has begun them.
        opening: What a model writes itself that begins them; empty where the prompt does, or where that is not known.
        ending: What ends them; None where that is not known.
        is_framed: An answer is marked, too.
    """

    begins: str = ""
    opening: str = ""
    ending: Ending | None = None
    is_framed: bool = False


def probes() -> list[tuple[Sequence[Turn], bool]]:
    """Return the conversations that a template is shown, and whether each is one that the model has to go on with."""
    answer: Turn = {"role": "assistant", "content": _ANSWER}
    return [
        ([_USER], True),
        ([_USER, {**answer, "reasoning_content": _THOUGHT}], False),
        ([_USER, answer], False),
    ]


def learn_marks(made: Sequence[str | None], template: str) -> Thoughts:
    """
    Learn the marks that a template shows.

    Args:
        made: What it makes of the probes; None where it refuses one.
        template: Its text.
    """
    prompt = (made[0] or "").rpartition(_ASKED)[2]
    before, found, after = (made[1] or "").partition(_THOUGHT)
    before, between = before.rpartition(_ASKED)[2], after.partition(_ANSWER)[0]
    ending = _ending(between) if found and _ANSWER in after else None
    plain, answered, _ = (made[2] or "").partition(_ANSWER)
    frame = plain.rpartition(_ASKED)[2].removeprefix(prompt) if answered else ""
    marks = bool(frame.strip()) and plain.rpartition(_ASKED)[2].startswith(prompt)
    if ending is None:
        opening, ending = _pair(template)
        is_framed = marks and (ending is None or ending.mark not in frame)
        return Thoughts("", opening, ending, is_framed)
    is_framed = marks and ending.mark not in frame
    if prompt.startswith(before) and ending.mark not in prompt:  # they are begun, with more or less
        begins = _last_word(prompt) if prompt.rstrip() == before.rstrip() else _last_line(prompt)
        return Thoughts(begins, ending=ending, is_framed=is_framed)
    opening = before.removeprefix(prompt) if before.startswith(prompt) else ""
    return Thoughts(_last_word(before), opening.strip(), ending, is_framed)


def find_open_ending(prompt: str, thoughts: Thoughts) -> Ending | None:
    """Find the end of the thoughts that a prompt has begun; None where it has begun none."""
    shown = prompt[-_SHOWN:].rstrip()
    if thoughts.ending is not None and thoughts.begins and shown.endswith(thoughts.begins):
        return thoughts.ending
    tag = _TAG.search(shown)
    return _partner(tag[0]) if tag else None


def _partner(tag: str) -> Ending | None:
    """Return the end of the thoughts that a tag begins; None where it is not named after them."""
    found = _TAG.search(tag)
    name = (found[1] or found[2]) if found else ""
    if found is None or not _NAMED.match(name):
        return None
    for start, end in _PARTNERS:
        if start in name:
            return Ending(tag.replace(start, end), _BETWEEN)
    return Ending(f"[/{name}]" if found[2] else f"</{name}>", _BETWEEN)


def _pair(template: str) -> tuple[str, Ending | None]:
    """Return the first two tags of a template between which thoughts would stand."""
    for tag in dict.fromkeys(_TAGS.findall(template)):
        if (ending := _partner(tag)) is not None and ending.mark in template:
            return tag, ending
    return "", None


def behind(grammar: str, ending: Ending, opening: str = "", thinks: bool = True) -> str:
    """
    Return a GBNF grammar that begins behind thoughts.

    Args:
        opening: What begins them where the prompt does not; then there may be none.
        thinks: There may be some; else they end where they begin.
    """
    if not thinks:
        over = f"root ::= {literal(ending.mark + ending.rest)} answer-root"
        return "\n".join([over, prefix_rules(grammar, "answer-")]) + "\n"
    first = f"[ \\n]{{0,2}} {literal(opening)} thoughts-0" if opening else "thoughts-0"
    root = f"root ::= {f'({first})?' if opening else first} answer-root"
    return "\n".join([root, *_until(ending), prefix_rules(grammar, "answer-")]) + "\n"


def _until(ending: Ending) -> list[str]:
    """Return rules for any text up to the first mark, and what stands behind it: one for each part of the mark that has been written."""
    mark = ending.mark
    rules = []
    for size in range(len(mark)):
        nexts: dict[str, int] = {}
        for sign in dict.fromkeys(mark):
            text = mark[:size] + sign
            nexts[sign] = next(n for n in range(len(text), -1, -1) if text.endswith(mark[:n]))
        signs = "".join(literal(sign)[1:-1] for sign in nexts)
        choices = [f"[^{signs}] thoughts-0"]
        for sign, reached in nexts.items():
            ends = reached == len(mark)
            choices.append(
                f"{literal(sign)} {literal(ending.rest) if ends else f'thoughts-{reached}'}"
            )
        rules.append(f"thoughts-{size} ::= {' | '.join(choices)}")
    return rules


def _ending(between: str) -> Ending | None:
    """Return the text between thoughts and an answer; None where that is nothing that could be told from either."""
    found = _FIRST_MARK.search(between)
    return Ending(found[0], between[found.end() :]) if found else None


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]


def _last_word(text: str) -> str:
    """Return the end of a text: a tag that begins thoughts, or all behind the last blank."""
    shown = text[-_SHOWN:].rstrip()
    tag = _TAG.search(shown)
    if tag and _partner(tag[0]):
        return tag[0]
    return (shown.split() or [""])[-1]
