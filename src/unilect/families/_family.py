"""
A family of models: how it is recognised, how it marks its thoughts, its calls and the end of its turn, and how tools,
calls and results are written for it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from unilect.core.requests import FunctionDefinition, Tool
from unilect.families._writing import LISTED, Arguments, around, as_json, json_tool

#: Ends of turns that models of several families were trained with.
_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end_of_turn|>")


class Marks(Struct, frozen=True):
    """
    The marks around calls.

    Attributes:
        begin: What they begin with.
        end: What they end with; empty where the answer's end is.
        behind: A mark that may follow without a beginning of its own, and says nothing then.
        is_part: The marks belong to the call, and another mark may stand around it: only a known tool is called so.
    """

    begin: str
    end: str = ""
    behind: str = ""
    is_part: bool = False


class CallStyle(Struct, frozen=True):
    """The form of a forced call: the text before its JSON, and the name of the arguments in it."""

    before: str = ""
    arguments: str = "arguments"


class ToolFormat(Struct, frozen=True, kw_only=True):
    """
    The form of tools, calls and their results in a conversation.

    Attributes:
        about: What stands before the tools.
        tool: A tool, as text.
        between: What stands between two tools.
        rules: What stands behind them.
        call: A call with its name, its arguments and its number, as text.
        calls: What stands before all calls of a turn, between two, and behind them.
        result: A result, with the name of its tool, its number and its text, as text.
        in_user: The model has no turn for a system: the tools stand in the user's first.
        tools_turn: What ends the system's turn and begins one for the tools, which stand behind its text then; empty where they stand in it.
        user_turn: What ends a result's turn and begins one of the user; empty where results stand in the user's.
        in_turn: Calls are counted from 1 in each turn; else from 0 in the conversation.
    """

    about: str = LISTED
    tool: Callable[[FunctionDefinition], str] = json_tool
    between: str = "\n"
    rules: str = ""
    call: Callable[[str, Arguments, int], str] = as_json("", "arguments", "")
    calls: tuple[str, str, str] = ("", "\n", "")
    result: Callable[[str, int, str], str] = around("", "")
    in_user: bool = False
    tools_turn: str = ""
    user_turn: str = ""
    in_turn: bool = False

    def tools_text(self, tools: Sequence[Tool]) -> str:
        """Write the description of the tools."""
        told = self.between.join(self.tool(tool.function) for tool in tools)
        return self.about + told + self.rules

    def calls_text(self, calls: Sequence[tuple[str, Arguments]], first: int = 0) -> str:
        """Write calls of one turn as the model would have written them; `first` calls were made before."""
        before, between, behind = self.calls
        told = [
            self.call(name, given, self.number(first, n)) for n, (name, given) in enumerate(calls)
        ]
        return before + between.join(told) + behind

    def number(self, first: int, place: int) -> int:
        """Return the number of a call at this place in a turn before which `first` calls were made."""
        return place + 1 if self.in_turn else first + place


class Family(Struct, frozen=True, kw_only=True):
    """
    A family of models.

    Attributes:
        name: Its name, as `Capabilities.tool_form` has it.
        shown: Pieces of a chat template of which one shows the family.
        called: Pieces of a model's name of which one shows it.
        thoughts: What thoughts begin and end with.
        thinks: Pieces of a template that show that its model marks its thoughts, beside the marks themselves.
        calls: What calls stand between.
        marks: Other special tokens that a call is written with.
        is_bare: A whole answer may be a call, without any mark.
        wraps: What an answer's text may stand between, at its beginning and its end.
        dropped: Marks anywhere in a text that say nothing.
        turn_ends: What ends a turn, where the template has it.
        ended_by: The reasons of an end by which a call is whole.
        force: How a forced call is written.
        written: How tools, calls and results are written into a conversation.
        scanner: Reads its answers; None for one that looks for the marks.
        vllm: The names of vLLM's parsers of its calls and of its thoughts.
        sglang: The same of SGLang's.
    """

    name: str
    shown: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    thoughts: tuple[str, str] = ("<think>", "</think>")
    thinks: tuple[str, ...] = ()
    calls: tuple[Marks, ...] = ()
    marks: tuple[str, ...] = ()
    is_bare: bool = False
    wraps: tuple[tuple[str, str], ...] = ()
    dropped: tuple[str, ...] = ()
    turn_ends: tuple[str, ...] = _ENDS
    ended_by: tuple[str, ...] = ("stop", "tool_calls")
    force: CallStyle = CallStyle()
    written: ToolFormat
    scanner: Callable[..., Any] | None = None
    vllm: tuple[str, str] = ("", "")
    sglang: tuple[str, str] = ("", "")

    @property
    def tokens(self) -> frozenset[str]:
        """Every mark that an answer is read with, special tokens among them."""
        pairs = [*self.wraps, self.thoughts, *((one.begin, one.end, one.behind) for one in self.calls)]  # fmt: skip
        return frozenset({*self.marks, *self.dropped, *(mark for pair in pairs for mark in pair)} - {""})  # fmt: skip
