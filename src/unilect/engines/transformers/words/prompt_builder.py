"""
Tokenizes texts and conversations for one model. Uses transformers' tokenizer, which is an argument, and not torch.

What a template sees: every content a text, a call's arguments an object, a developer as a system, tools as OpenAI writes them.
"""

from collections.abc import Sequence
from functools import cached_property, partial
from time import strftime
from typing import Any

import msgspec

from unilect.core.errors import ConfigError, InvalidRequest
from unilect.core.requests import ChatRequest, FunctionDefinition, Message, Prompt, Tool
from unilect.engines.process import trial
from unilect.engines.transformers.words.plain_texts import PlainTexts
from unilect.families import PLAIN, of_template, thoughts_of
from unilect.http.error_bodies import unknown_token
from unilect.templates.chat import ChatTemplate
from unilect.templates.probe import takes_tools
from unilect.templates.sandbox import TooMuch
from unilect.templates.takes import Takes, Turn, stands_out, takes
from unilect.templates.takes import probes as takes_probes
from unilect.templates.thoughts import Ending, Thoughts, find_open_ending, learn_marks
from unilect.templates.thoughts import probes as thoughts_probes
from unilect.templates.turns import fit
from unilect.tools.messages import arguments, template_flags, text, tools

LIMIT_S = 2.0  # of the processor, for a conversation; a long one of many tools takes 0.1 s


def try_template(template: str) -> None:
    """
    Hold the conversations of a trial in a template.

    Raises:
        ValueError: It takes too long or too much memory.
    """
    if template:
        try:
            trial.run_trial(partial(_converse, template))
        except trial.TrialError as error:
            raise ValueError(f"chat_template: it cannot be used: {error}.") from error


def _converse(template: str) -> None:
    try:
        chat = ChatTemplate(template, limit_s=trial.TIME_S)
    except ConfigError as error:
        if isinstance(error.__cause__, TooMuch):
            raise ValueError(str(error.__cause__)) from error
        return  # it is told where it is compiled to be used
    for conversation in trial.conversations():
        turns = conversation.pop("messages")
        try:
            chat.render_turns(turns, **conversation)
        except InvalidRequest as error:
            if isinstance(error.__cause__, TooMuch):
                raise ValueError(str(error.__cause__)) from error


class PromptBuilder:
    """
    A tokenizer with a chat template, which turns requests into tokens for one model.

    Args:
        tokenizer: Of transformers.
        template: The chat template; empty where there is none.
        context: The most tokens of prompt and answer.
        stop_ids: Tokens that end an answer.
        size: Rows of the model's output; 0 for as many as the tokenizer has.
        stops: Words that end an answer in this template's format.
        stop_token_ids: The same as token ids.
        foreign: The template is not the model's own, and does not write the token that begins a text.

    Attributes:
        template_fault: Why the template cannot be used; empty where it can, or where there is none.
        takes_tools: The template writes a request's tools into the prompt.
        turn_ends: Special tokens that end a turn in the template, whatever else ends an answer.
        rows: Token ids are below it.
    """

    def __init__(
        self,
        tokenizer: Any,
        template: str,
        context: int,
        stop_ids: frozenset[int],
        size: int,
        stops: Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        foreign: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self.template = template
        self._chat, self.template_fault = _compile(template)
        self._no_tools: dict[str, Any] = {}
        self._no_tools = self._empty_list()
        self.takes_tools = self._chat is not None and takes_tools(self._with_tools)
        self.context = context
        self.stop_ids = stop_ids
        self.stops = tuple(stops)
        self.rows = size or len(tokenizer)
        self.family = of_template(template) or PLAIN
        special = _special(tokenizer)
        # folders that were made of a model of texts often name that model's end only
        turn_ends = {one for one in self.family.turn_ends if one in template}
        ends = {id for id, text in special.items() if text in turn_ends}
        self.turn_ends = frozenset(ends | (set(stop_token_ids) & special.keys()))
        self._begin = tokenizer.bos_token_id if foreign and self._begins() else None
        backend = getattr(
            tokenizer, "backend_tokenizer", None
        )  # none where it is written in Python
        self._texts = None if backend is None else PlainTexts(backend, special.values())

    def _begins(self) -> bool:
        """True where the tokenizer puts a token before every text."""
        begin = self._tokenizer.bos_token_id
        return begin is not None and self.tokens("", special=True)[:1] == [begin]

    @cached_property
    def _silent(self) -> frozenset[int]:
        """Special tokens that are no part of an answer's text."""
        special = _special(self._tokenizer)
        return frozenset(id for id, text in special.items() if text not in self._marks)

    @cached_property
    def _marks(self) -> frozenset[str]:
        """Marks of thoughts and calls that are part of an answer's text, special tokens among them."""
        ending = self._thoughts.ending
        ends = () if ending is None else (ending.mark,)
        return frozenset({*self.family.tokens, *(thoughts_of(self.template) or ()), *ends})

    @cached_property
    def _tool_marks(self) -> frozenset[str]:
        """Special tokens that stand in texts, since they are how tools are written where the template does not write them."""
        if self.takes_tools or self._texts is None:
            return frozenset()
        form, tool = self.family.written, Tool(FunctionDefinition("f"))
        made = form.tools_text([tool]), form.calls_text([("f", {})]), form.result("f", 0, "")
        return self._texts.names_in("".join([*made, form.tools_turn, form.user_turn]))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        return self.text([token for token in tokens if token not in self._silent])

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, all of them."""
        found: str = self._tokenizer.decode(
            list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return found

    def tokens(self, text: str, special: bool) -> list[int]:
        """The token ids of a text; with `special`, those that the tokenizer puts around it too."""
        found: list[int] = self._tokenizer(text, add_special_tokens=special, verbose=False)[
            "input_ids"
        ]
        return found

    def plain_tokens(self, text: str, special: bool) -> list[int]:
        """As `tokens`, of a text in which the names of special tokens are text like any other."""
        if self._texts is not None:
            return self._texts.plain_tokens(text, special)
        found: list[int] = self._tokenizer(
            text, add_special_tokens=special, split_special_tokens=True, verbose=False
        )["input_ids"]
        return found

    def prompt(self, prompt: Prompt, param: str) -> list[int]:
        """
        The tokens of a prompt, at least one.

        Raises:
            InvalidRequest: A token id that the model does not have.
        """
        tokens = self.tokens(prompt, special=True) if isinstance(prompt, str) else prompt
        self.check_ids(tokens, param)
        first = self._tokenizer.bos_token_id
        empty = first if first is not None else min(self.stop_ids, default=0)
        return list(tokens) or [empty]

    def check_ids(self, tokens: list[int], param: str) -> list[int]:
        """
        Token ids that the model has.

        Raises:
            InvalidRequest: It does not have one of them.
        """
        if any(token >= self.rows for token in tokens):
            raise unknown_token(param)
        return tokens

    def render(self, request: ChatRequest) -> str:
        """
        The text of a conversation; the names of special tokens that its own texts hold are hidden in it, see `restore`.

        Raises:
            InvalidRequest: The template refuses it, or there is none.
        """
        if self._chat is None:
            raise InvalidRequest(
                f"This model has {self._lack}. Use /v1/completions, or configure `chat_template`.",
                param="messages",
            )
        more = dict(template_flags(request).get("chat_template_kwargs", {}))
        if request.tools and request.tool_choice != "none":
            more["tools"] = self._without_names(tools(request.tools))
        turns = [
            self._without_names(_turn(message, number), message.role)
            for number, message in enumerate(request.messages)
        ]
        if stands_out(turns):
            turns = fit(turns, self._takes, self.family.written)
        return self._chat.render_turns(turns, **(self._names | more))

    def _without_names(self, value: Any, role: str = "") -> Any:
        """A value without the names of special tokens in its texts; those that belong to an answer stay in an earlier one."""
        kept = self._tool_marks | self._marks if role == "assistant" else self._tool_marks
        return value if self._texts is None else self._texts.hide(value, kept)

    def restore(self, rendered: str) -> str:
        """The text of a conversation with all that its texts hold."""
        return rendered if self._texts is None else self._texts.restore(rendered)

    @property
    def _lack(self) -> str:
        if not self.template_fault:
            return "no chat template"
        return f"a chat template that cannot be used ({self.template_fault})"

    def _empty_list(self) -> dict[str, Any]:
        """Return an empty list of tools for a template that goes through them though there are none; nothing for others."""
        empty: dict[str, Any] = {"tools": []}
        plain = takes_probes()["plain"]
        refuses = self._try_render(plain) is None and self._try_render(plain, **empty) is not None
        return empty if refuses else {}

    def _with_tools(self, turns: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        assert self._chat is not None
        return self._chat.render_turns(turns, **(self._names | {"tools": tools}))

    def find_open_thoughts(self, prompt: str) -> Ending | None:
        """Find the end of the thoughts that a prompt has begun; None where it has begun none."""
        return find_open_ending(prompt, self._thoughts)

    @cached_property
    def _thoughts(self) -> Thoughts:
        """The place of thoughts in the template's turns."""
        made = [
            self._try_render(turns, add_generation_prompt=goes_on)
            for turns, goes_on in thoughts_probes()
        ]
        return learn_marks(made, self.template)

    def _try_render(self, turns: Sequence[Turn], **names: Any) -> str | None:
        """The text of a conversation; None where the template refuses it."""
        if self._chat is None:
            return None
        try:
            return self._chat.render_turns(turns, **(self._names | names))
        except InvalidRequest:
            return None

    @cached_property
    def _takes(self) -> Takes:
        """The conversations that the template takes."""
        chat = self._chat
        assert chat is not None
        return takes(lambda turns: chat.render_turns(turns, **self._names))

    @property
    def _names(self) -> dict[str, Any]:
        """The default variables of a template: the names of special tokens, and those that llama.cpp sets, too."""
        first, last = self._tokenizer.bos_token, self._tokenizer.eos_token
        names: dict[str, Any] = {"date_string": strftime("%d %b %Y"), **self._no_tools}
        if thoughts_of(self.template) is not None:
            names["enable_thinking"] = True
        return {"bos_token": first or "", "eos_token": last or "", **names}

    def chat_tokens(self, text: str) -> list[int]:
        """The tokens of what `render` has made; the model's own template has written the special ones."""
        if self._texts is not None and self._texts.are_in(text):
            found = self._texts.tokens(text)
        else:
            found = self.tokens(text, special=False)
        if self._begin is not None and found[:1] != [self._begin]:
            return [self._begin, *found]
        return found or self.prompt("", "messages")


def _compile(template: str) -> tuple[ChatTemplate | None, str]:
    """A template that is ready to be used, or why it cannot be."""
    try:
        return (ChatTemplate(template, limit_s=LIMIT_S) if template else None), ""
    except ConfigError as error:
        return None, str(error).removeprefix("chat_template: ").rstrip(".")


def _special(tokenizer: Any) -> dict[int, str]:
    """The special tokens of a tokenizer; it has names for a few of them only."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    found = {id: token.content for id, token in added.items() if token.special}
    named = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=False)
    return found | dict(named)


def _turn(message: Message, number: int) -> dict[str, Any]:
    """
    A message as templates know it.

    Raises:
        InvalidRequest: It holds what is no text.
    """
    fields: dict[str, Any] = msgspec.to_builtins(message)
    fields["role"] = {"developer": "system", "function": "tool"}.get(message.role, message.role)
    fields["content"] = text(message, f"messages[{number}].content")
    given = message.tool_calls or []
    fields.pop("tool_calls", None)
    made = [(call.id, call.function) for call in given]
    if message.function_call is not None and not given:
        made = [(f"call_{number}", message.function_call)]
    if made:
        fields["tool_calls"] = [
            {
                "id": id,
                "type": "function",
                "function": {"name": function.name, "arguments": arguments(function.arguments)},
            }
            for id, function in made
        ]
    fields.pop("function_call", None)
    return fields
