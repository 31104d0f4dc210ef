"""Tests of unilect.engines.transformers.words.request and _reader: what a request becomes, and what its tokens say, without a model."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from support.models.torchside import need

need("torch", "transformers", "tokenizers", "llguidance")

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from support.backends.engine import chat, completion
from support.models import thinking_templates as templates
from support.models.strict_templates import CALLED, STYLES, TALK, missing
from unilect.core.errors import InvalidRequest, UnsupportedParameter
from unilect.core.events import Choice, Event, Fold, Usage, fold
from unilect.engines.text import Decoder
from unilect.engines.transformers.batch.constraint import AfterThought, Grammars
from unilect.engines.transformers.job import Failed, Logprob, PromptRead, Step
from unilect.engines.transformers.words.prompt_builder import PromptBuilder
from unilect.engines.transformers.words.request import prepare

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    "{{ tools }}</think><tool_call>"
)
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
CALL = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
WORDS = ["▁a", "▁b", "ab", "▁ab", "中"]
TEXTS = st.text(st.sampled_from("ab 中龘🙂é\n"), min_size=1, max_size=24)


def pieces() -> PreTrainedTokenizerFast:
    """As LLaMA's: blanks are a part of words, the first one is dropped, rare characters are spelled in bytes."""
    signs = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    signs += ["▁", "a", "b", *WORDS]
    made = Tokenizer(
        models.BPE(
            vocab={sign: number for number, sign in enumerate(signs)},
            merges=[("▁", "a"), ("▁", "b"), ("a", "b"), ("▁", "ab")],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    made.add_special_tokens([AddedToken(text, special=True) for text in special])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


def byte_level() -> PreTrainedTokenizerFast:
    """As GPT-2's: every byte is a sign."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def word_pieces() -> PreTrainedTokenizerFast:
    """As BERT's: pieces within a word are marked."""
    signs = ["[UNK]", "a", "b", "##a", "##b", "中", "##é", "é"]
    made = Tokenizer(models.WordPiece({sign: i for i, sign in enumerate(signs)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=made)


TOKENIZERS = {"pieces": pieces(), "byte level": byte_level(), "word pieces": word_pieces()}


class Model:
    """What there is of a model when nothing is computed: its tokenizer and what its words say."""

    def __init__(self, template: str = CHATML, **reader: Any) -> None:
        self.tokenizer = TOKENIZERS["pieces"]
        size = len(self.tokenizer)
        self.reader = PromptBuilder(self.tokenizer, template, 512, frozenset({2}), size, **reader)
        self.grammars = Grammars(self.tokenizer.backend_tokenizer.to_str(), size, [2])

    def ids(self, text: str) -> list[int]:
        """The tokens of an answer's text; the blank that the tokenizer puts before is none of it."""
        found: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    def bind(self, grammar: str, _: str | None) -> Any:
        """The constraint of a grammar."""
        return self.grammars.compile(grammar)

    def events(self, request: Any, tokens: Sequence[int], finish: Any = "stop") -> Iterator[Event]:
        """What an answer of these tokens says."""
        job, answer = prepare(self.reader, request, None, self.bind)
        told = job.logprobs is not None
        prompt = [Logprob(token, -1.0) for token in job.prompt[1:]] if told else []
        words: list[Any] = [PromptRead(len(job.prompt), len(job.prompt), 0, prompt)]
        words += [Step([id], [Logprob(id, -1.0, [(id, -1.0)])] if told else []) for id in tokens]
        for word in [*words, Step(finish=finish)]:
            if not answer.over:
                yield from answer.read(word, self.grammars.bytes_of)

    def answer(self, request: Any, text: str, finish: Any = "stop") -> tuple[Choice, Usage]:
        """What an answer of this text says."""
        folding = Fold()
        folding.add(self.events(request, self.ids(text), finish))
        answer = folding.answer()
        return answer.choices[0], answer.usage


def spelled(choice: Choice) -> str:
    """The text of the tokens whose log probabilities were told."""
    return bytes(byte for token in choice.logprobs or () for byte in token.bytes or ()).decode()


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=TEXTS, size=st.integers(0, 12))
def test_pieces_are_the_whole_text(kind: str, text: str, size: int) -> None:
    """Told token by token, behind a prompt or none, a text is what the tokenizer makes of all tokens at once."""
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(tokens: Sequence[int]) -> str:
        found: str = tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)
        return found

    while decode(ids[:size]).endswith("\ufffd"):
        size += 1
    decoder = Decoder(decode, before=ids[:size])
    told = "".join(map(decoder.feed, ids[size:])) + decoder.end()

    assert decode(ids) == decode(ids[:size]) + told


@pytest.mark.parametrize(
    ("text", "stop", "told", "tokens"),
    [
        ("a ab 中🙂 b", "STOP", " a ab 中🙂 b", " a ab 中🙂 b"),
        ("a ab STOP b", "STOP", " a ab ", " a ab "),
        ("a ST b", "STOP", " a ST b", " a ST b"),
        ("a 中ab ab", "b", " a 中a", " a 中ab"),
        ("a中中🙂 b", "中🙂", " a中", " a中"),
    ],
)
def test_log_probabilities_cover_the_text(text: str, stop: str, told: str, tokens: str) -> None:
    """The tokens that are told with the text of a completion are those that wrote it, before a stop word too."""
    choice, _ = Model().answer(completion("a", logprobs=1, stop=stop), text)

    assert (told, tokens) == (choice.text, spelled(choice))


def test_thoughts_and_calls_have_no_log_probabilities() -> None:
    """In a chat they are those of the text, beside thoughts and calls; where there is no text there are none."""
    request = chat(logprobs=True, top_logprobs=1, tools=[WEATHER])
    choice, usage = Model().answer(request, f"<think>ab ab</think>\n\nab a b\n{CALL}")

    assert ("ab ab", "ab a b") == (choice.reasoning, choice.text)
    assert "ab a b" == spelled(choice).strip()
    assert 0 < (usage.reasoning_tokens or 0) < usage.completion_tokens
    called, _ = Model().answer(request, CALL)
    assert (None, None, 1) == (called.text, called.logprobs, len(called.tool_calls))


def test_an_echo_is_the_prompt_as_it_was_written() -> None:
    """Signs that a tokenizer knows as special ones are in the echo, since they were in the prompt."""
    prompt = "<|im_start|>a  中"
    choice, _ = Model().answer(completion(prompt, echo=True), "ab")

    assert prompt + " ab" == choice.text


def test_special_tokens_are_hidden() -> None:
    """A special token is no text, also where the tokenizer has no name for it; one that is none is text."""
    model = Model()

    assert "a b" == model.reader.decode(model.ids("a<|im_start|>b<|im_end|></s>"))


def test_the_end_of_a_turn_ends_an_answer() -> None:
    """A template's own mark ends a chat, whatever the model's settings name, and no plain completion."""
    model = Model()
    (end,) = model.tokenizer.encode("<|im_end|>", add_special_tokens=False)[-1:]

    assert frozenset({end}) == prepare(model.reader, chat(), None, model.bind)[0].stop_ids
    assert not prepare(model.reader, completion(), None, model.bind)[0].stop_ids


def test_stop_words_of_a_format_are_beside_the_requests() -> None:
    """Both end a chat, and a request may have as many as it may."""
    model = Model(stops=("###",))
    request = chat(stop=[f"word {number}" for number in range(16)])

    assert ("a", "b") == (
        model.answer(request, "a###b")[0].text,
        model.answer(request, "bword 3")[0].text,
    )
    assert "a###b" == model.answer(completion("a"), "a###b")[0].text.strip()  # type: ignore[union-attr]


@pytest.mark.parametrize(("foreign", "expected"), [(True, [1]), (False, [])])
def test_a_format_of_ours_begins_as_the_tokenizer_does(foreign: bool, expected: list[int]) -> None:
    """Where the template is not the model's own, the token that begins a text is put before it, once."""
    from tokenizers import processors

    tokenizer = pieces()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    reader = PromptBuilder(tokenizer, CHATML, 512, frozenset({2}), 0, foreign=foreign)

    assert [*expected, *reader.tokens("ab", special=False)] == reader.chat_tokens("ab")
    assert 1 == reader.chat_tokens("<s>ab").count(1)


@pytest.mark.parametrize("style", STYLES)
def test_conversations_of_agents(style: str) -> None:
    """What agents send is in the prompt of every template, each word once."""
    assert [] == missing(Model(STYLES[style][0]).reader.render(chat(messages=TALK)))


@pytest.mark.parametrize("style", ["mistral", "llama-3", "gpt-oss", "deepseek", "gemma-2"])
def test_calls_of_agents(style: str) -> None:
    """Several calls, ids of any form, cut arguments and calls of the older form are in the prompt of every template."""
    reader = Model(STYLES[style][0]).reader
    for talk, words in CALLED:
        assert [] == missing(reader.render(chat(messages=talk)), words)


@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"mirostat": 2},
        {"logit_bias": {"5": 1}},
        {"logprobs": True},
        {"grammar": 'root ::= "a"'},
        {"response_format": {"type": "json_object"}},
        {"tools": [WEATHER], "tool_choice": "required"},
    ],
    ids=str,
)
def test_what_beams_cannot_do_is_refused(fields: dict[str, Any]) -> None:
    """Beam search tells what it would have to drop."""
    model = Model()

    with pytest.raises(UnsupportedParameter, match="num_beams"):
        prepare(model.reader, chat(num_beams=2, **fields), None, model.bind)


@pytest.mark.parametrize("text", ["a b", "<think>ab</think>a b", f"{CALL}\n{CALL} and on"])
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_beams_are_told_as_other_answers(text: str, finish: Any) -> None:
    """What comes all at once says the same as token by token: thoughts are counted, and calls bounded."""
    model = Model()
    fields = {"tools": [WEATHER], "parallel_tool_calls": False}
    ids = model.ids(text)
    told = []
    for steps in (
        [Step(ids, [], finish)],
        [*(Step([id]) for id in ids[:-1]), *last_steps(ids[-1], finish)],
    ):
        _, reader = prepare(model.reader, chat(num_beams=2, **fields), None, model.bind)
        folding = Fold()
        for step in steps:
            if not reader.over:
                folding.add(reader.read(step, model.grammars.bytes_of))
        told.append(folding.answer())

    assert told[1].usage == told[0].usage
    assert [told[1].choices[0].text, told[1].choices[0].reasoning] == [
        told[0].choices[0].text,
        told[0].choices[0].reasoning,
    ]


def last_steps(token: int, finish: Any) -> list[Step]:
    """How a loop tells the last token: an end is a token of its own, a limit comes with one."""
    return [Step([token]), Step(finish="stop")] if finish == "stop" else [Step([token], [], finish)]


def test_what_asks_for_nothing_does_not_stop_beams() -> None:
    """Neutral values beside beams are no request."""
    model = Model()
    neutral = {"repetition_penalty": 1.0, "logit_bias": {}, "response_format": {"type": "text"}}

    job, _ = prepare(model.reader, chat(num_beams=2, **neutral), None, model.bind)

    assert 2 == job.sampling.num_beams


def test_a_bias_for_a_token_that_there_is_not() -> None:
    """It is named, with the size of the vocabulary."""
    model = Model()

    with pytest.raises(InvalidRequest, match=str(model.reader.rows)):
        prepare(model.reader, chat(logit_bias={"100000": 5}), None, model.bind)


@pytest.mark.parametrize(
    ("why", "fields", "param"),
    [
        (Failed("x", of_request=True), {"grammar": 'root ::= "a"'}, "grammar"),
        (Failed("x", of_request=True), {}, "logit_bias"),
        (Failed("x", of_reader=True), {}, None),
    ],
    ids=["grammar", "bias", "reader"],
)
def test_who_is_to_blame(why: Failed, fields: dict[str, Any], param: str | None) -> None:
    """What leaves no token is named; whoever only reads too slowly is blamed for no parameter."""
    model = Model()
    _, answer = prepare(model.reader, chat(**fields), None, model.bind)

    with pytest.raises(InvalidRequest) as caught:
        answer.read(why, model.grammars.bytes_of)

    assert param == caught.value.param


def test_thoughts_before_a_grammar_have_to_end() -> None:
    """While thoughts are free nothing is forbidden but the answer's end; behind their mark the grammar binds."""
    model = Model()
    inner = model.grammars.compile('root ::= "ab"')
    bound = AfterThought(inner, "</think>", model.reader.text, [2])
    size = model.reader.rows

    assert [2] == forbidden(bound, size)
    assert not any([bound.accept(token) for token in model.ids("a ab</think>")])
    assert {"ab"} == allowed(bound, model)


@pytest.mark.parametrize(
    "grammar",
    ["%llguidance {}\nstart: /(a?){2000}a{2000}/", '%llguidance {}\nstart: "a"{1000000}'],
    ids=["lexer", "parser"],
)
def test_a_matcher_that_gives_up(grammar: str) -> None:
    """A matcher that gives up in the middle of an answer fails it, where it said before that the answer is finished."""
    model = Model()
    bound = model.grammars.compile(grammar)
    letter = model.tokenizer.get_vocab()["a"]
    with pytest.raises(ValueError, match="exceeded the parser"):
        for _ in range(50):
            bound.mask(torch.zeros(model.reader.rows))
            assert not bound.accept(letter)


def test_an_answer_that_ends_too_early() -> None:
    """An answer that ends before its grammar is satisfied fails, and one that ends where it is satisfied does not."""
    model = Model()
    bound = model.grammars.compile('root ::= "a"{2,3}')
    letter = model.tokenizer.get_vocab()["a"]

    assert not bound.accept(letter)
    with pytest.raises(ValueError, match="ended before its grammar"):
        bound.accept(2, True)
    assert not bound.accept(letter)
    assert bound.accept(2, True)


def forbidden(constraint: Any, size: int) -> list[int]:
    """The tokens that may not come next."""
    logits = torch.zeros(size)
    constraint.mask(logits)
    return [int(token) for token in logits.isinf().nonzero()[:, 0]]


def allowed(constraint: Any, model: Model) -> set[str]:
    """The signs that may come next."""
    never = set(forbidden(constraint, model.reader.rows))
    signs: dict[str, int] = model.tokenizer.get_vocab()
    return {sign for sign, token in signs.items() if token not in never}


def test_one_call_where_one_may_be() -> None:
    """`parallel_tool_calls: false` ends the answer behind its first call."""
    request = chat(tools=[WEATHER], parallel_tool_calls=False)
    choice, _ = Model().answer(request, f"{CALL}\n{CALL} and on")

    assert (1, None, "tool_calls") == (
        len(choice.tool_calls),
        choice.text,
        choice.finish_reason,
    )


@pytest.mark.parametrize(
    ("text", "finish", "called"),
    [("Paris", "length", True), ("ParisEND", "stop", False), ("Paris", "stop", True)],
)
def test_a_call_that_is_cut(text: str, finish: str, called: bool) -> None:
    """A limit leaves a call with what there is of its arguments, the client's stop word none; a model that forgets the end of one has made it."""
    said = f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{text}"
    choice, _ = Model().answer(chat(tools=[WEATHER], stop=["END"]), said, finish)

    assert (int(called), not called) == (len(choice.tool_calls), bool(choice.text))
    assert all(
        (call.parse_arguments() is None) == (finish == "length") for call in choice.tool_calls
    )


HARMONY = "<|start|>{{ messages[0].content }}<|end|>{{ tools }}<|start|>assistant{# <|channel|> #}"


def test_channels() -> None:
    """A model whose template has channels has its thoughts, its calls and its answer told as such."""
    model = Model(HARMONY)
    text = (
        "<|channel|>analysis<|message|>ab<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        "<|constrain|>json<|message|>{}"
    )
    choice = fold([list(model.events(chat("a", tools=[WEATHER]), model.ids(text)))]).choices[0]
    said = fold([list(model.events(chat("a"), model.ids("<|channel|>final<|message|>a b")))])

    assert ("ab", None, "tool_calls") == (choice.reasoning, choice.text, choice.finish_reason)
    assert [("get_weather", "{}")] == [(call.name, call.arguments) for call in choice.tool_calls]
    assert "a b" == said.choices[0].text


@pytest.mark.parametrize(
    ("flags", "expected"),
    [({}, "True "), ({"enable_thinking": False, "date_string": "1 Jan 2025"}, "False 1 Jan 2025")],
)
def test_what_llama_cpp_tells_a_template(flags: dict[str, Any], expected: str) -> None:
    """A model whose template shows thoughts thinks, and is told the date, where a request does not say otherwise, as on the GGUF engine."""
    model = Model("{{ enable_thinking }} {{ date_string }}{% if false %}<think></think>{% endif %}")
    told = model.reader.render(chat("a", chat_template_kwargs=flags))

    assert told.startswith(expected)
    assert re.fullmatch(r"\w+ \d\d? \w{3} \d{4}", told)


def test_a_template_that_goes_through_no_tools() -> None:
    """It gets an empty list of tools where it refuses none at all; others are told that there are none."""
    goes_through = (
        "{% for tool in tools %}{{ tool.function.name }}{% endfor %}{{ messages[0].content }}"
    )

    assert "a" == Model(goes_through).reader.render(chat("a"))
    assert "get_weathera" == Model(goes_through).reader.render(chat("a", tools=[WEATHER]))
    assert "None a" == Model("{{ tools }} {{ messages[0].content }}").reader.render(chat("a"))


def test_names_that_the_tokenizer_has_too() -> None:
    """What a request gives to the template comes before the tokenizer's own, whatever it is called."""
    model = Model("{{ bos_token }}{{ eos_token }}{{ turns }}{{ messages[0].content }}")
    flags = {"bos_token": "x", "turns": 7, "self": 1, "messages": []}
    request = chat("a", chat_template_kwargs=flags)

    assert "x</s>7a" == model.reader.render(request)


def test_plain_tokens_of_a_tokenizer_in_python() -> None:
    """A tokenizer that is written in Python reads the names of special tokens as text, too, with those around a text where they are wanted."""
    reader = PromptBuilder(ByT5Tokenizer(), "", 512, frozenset(), 0)
    letters = [byte + 3 for byte in b"a</s>"]

    assert reader.tokens("a</s>", special=False) != letters
    assert letters == reader.plain_tokens("a</s>", special=False)
    assert [*letters, 1] == reader.plain_tokens("a</s>", special=True)


@pytest.mark.parametrize(
    ("template", "mark"),
    [(templates.BEGUN, "</think>"), (templates.WORDS, "[BEGIN FINAL RESPONSE]")],
    ids=["tag", "words"],
)
def test_thoughts_that_the_prompt_has_begun(template: str, mark: str) -> None:
    """A grammar begins behind the mark that the template shows, and what stands before the mark is no text of the answer."""
    marks: list[str | None] = []
    model = Model(template)
    request = chat(grammar='root ::= "ab"')
    prepare(model.reader, request, None, lambda _, mark: marks.append(mark))
    choice, _ = model.answer(chat(), f"a b{mark}ab")

    assert [mark] == marks
    assert ("a b", "ab") == (choice.reasoning, choice.text)


def test_a_forced_call_ends_thoughts() -> None:
    """A call that must come stands behind the thoughts that the prompt has begun, and behind none where they are over."""
    model = Model(templates.BEGUN_WITH_TOOLS)
    for flags, between in (({}, "\n\n"), ({"enable_thinking": False}, "")):
        asked = chat(tools=[WEATHER], tool_choice="required", chat_template_kwargs=flags)
        job, _ = prepare(model.reader, asked, None, model.bind)
        assert model.reader.text(job.prompt).endswith(f"<think></think>{between}<tool_call>\n")
