"""Tests of unilect.upstreams.fastchat._conversation: the prompts that FastChat's templates make."""

from typing import Any

import msgspec
import pytest

from unilect.core.errors import BackendError, InvalidRequest
from unilect.core.requests import ImagePart, ImageUrl, Message, TextPart
from unilect.upstreams.fastchat._conversation import STYLES, Conv, chat_prompt, decode, style

VICUNA = "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and polite answers to the user's questions."
CHAT = [
    Message("system", "S."),
    Message("user", "U1"),
    Message("assistant", "A1"),
    Message("user", "U2"),
]


def conv(name: str, style: int, **fields: Any) -> Conv:
    """What a worker says of its template, as its JSON is read."""
    body = {"name": name, "sep_style": style, "system_template": "{system_message}"} | fields
    return decode(msgspec.json.encode({"conv": body}))


#: name, number up to 0.2.36, number later, fields, and the prompt for CHAT (its names are ours, so that no named format is taken)
TEMPLATES: list[tuple[str, int, int, dict[str, Any], str]] = [
    (
        "vicuna",
        2,
        2,
        {"roles": ["USER", "ASSISTANT"], "sep": " ", "sep2": "</s>", "system_message": VICUNA},
        "S. USER: U1 ASSISTANT: A1</s>USER: U2 ASSISTANT:",
    ),
    (
        "zero",
        1,
        1,
        {"roles": ["Human", "Assistant"], "sep": "\n### "},
        "S.\n### Human: U1\n### Assistant: A1\n### Human: U2\n### Assistant:",
    ),
    ("plain", 4, 4, {"roles": ["", ""], "sep": ""}, "S.U1A1U2"),
    (
        "instruct",
        2,
        2,
        {"roles": ["### Instruction", "### Response"], "sep": "\n\n", "sep2": "</s>"},
        "S.\n\n### Instruction: U1\n\n### Response: A1</s>### Instruction: U2\n\n### Response:",
    ),
    (
        "chatglm",
        8,
        9,
        {"roles": ["问", "答"], "sep": "\n"},
        "S.\n[Round 0]\n问：U1\n答：A1\n[Round 1]\n问：U2\n答：",
    ),
    (
        "chatglm2",
        8,
        9,
        {"roles": ["问", "答"], "sep": "\n\n"},
        "S.\n\n[Round 1]\n\n问：U1\n\n答：A1\n\n[Round 2]\n\n问：U2\n\n答：",
    ),
    (
        "chatglm3",
        16,
        17,
        {
            "roles": ["<|user|>", "<|assistant|>"],
            "system_template": "<|system|>\n{system_message}",
            "stop_token_ids": [64795, 64797, 2],
        },
        "<|system|>\nS.<|user|>\nU1<|assistant|>\nA1<|user|>\nU2<|assistant|>",
    ),
    (
        "inst",
        7,
        7,
        {
            "roles": ["[INST]", "[/INST]"],
            "sep": " ",
            "sep2": " </s><s>",
            "system_template": "[INST] <<SYS>>\n{system_message}\n<</SYS>>\n\n",
        },
        "[INST] <<SYS>>\nS.\n<</SYS>>\n\nU1 [/INST] A1 </s><s>[INST] U2 [/INST]",
    ),
    (
        "qwen",
        9,
        10,
        {
            "roles": ["<|im_start|>user", "<|im_start|>assistant"],
            "sep": "<|im_end|>",
            "system_template": "<|im_start|>system\n{system_message}",
            "stop_str": "<|endoftext|>",
        },
        "<|im_start|>system\nS.<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
        "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n",
    ),
    (
        "yi",
        9,
        10,
        {"roles": ["<|im_start|>user", "<|im_start|>assistant"], "sep": "<|im_end|>"},
        "<|im_start|>system\nS.<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
        "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n",
    ),
    (
        "mistral-like",
        7,
        7,
        {
            "roles": ["[INST]", "[/INST]"],
            "sep": " ",
            "sep2": "</s>",
            "system_template": "[INST] {system_message}\n",
        },
        "[INST] S.\nU1 [/INST] A1</s>[INST] U2 [/INST]",
    ),
    (
        "internlm-chat",
        10,
        11,
        {"roles": ["<|User|>", "<|Bot|>"], "sep": "<eoh>", "sep2": "<eoa>"},
        "S.<s><|User|>:U1<eoh>\n<|Bot|>:A1<eoa>\n<s><|User|>:U2<eoh>\n<|Bot|>:",
    ),
    (
        "dolly_v2",
        11,
        12,
        {"roles": ["### Instruction", "### Response"], "sep": "\n\n", "sep2": "### End"},
        "S.### Instruction:\nU1\n\n### Response:\nA1### End\n\n### Instruction:\nU2\n\n### Response:\n",
    ),
    (
        "rwkv",
        12,
        13,
        {"roles": ["Bob", "Alice"]},
        "S.Bob: U1\n\nAlice: A1\n\nBob: U2\n\nAlice:",
    ),
    (
        "phoenix",
        13,
        14,
        {"roles": ["Human", "Assistant"]},
        "S.Human: <s>U1</s>Assistant: <s>A1</s>Human: <s>U2</s>Assistant: <s>",
    ),
    (
        "Robin",
        14,
        15,
        {"roles": ["###Human", "###Assistant"], "sep": "\n"},
        "S.\n###Human:\nU1\n###Assistant:\nA1\n###Human:\nU2\n###Assistant:\n",
    ),
    (
        "falcon-chat",
        15,
        16,
        {"roles": ["User", "Falcon"], "sep": "\n"},
        "S.\nUser: U1\nFalcon: A1\nUser: U2\nFalcon:",
    ),
    (
        "deepseek-chat",
        17,
        18,
        {"roles": ["User", "Assistant"], "sep": "\n\n", "sep2": "<EOS>"},
        "S.User: U1\n\nAssistant: A1<EOS>User: U2\n\nAssistant:",
    ),
    (
        "metamath",
        18,
        19,
        {"roles": ["### Instruction", "### Response"], "sep": "\n\n", "sep2": "Let's think."},
        "S.\n\n### Instruction:\nU1\n\n### Response: Let's think.A1### Instruction:\nU2\n\n### Response: Let's think.",
    ),
    ("yuan2", 19, 20, {"sep": "<sep>", "sep2": "\n"}, "S.\nU1<n>A1<n>U2<sep>"),
    (
        "new-lines",
        6,
        6,
        {"roles": ["### Instruction:", "### Response:"], "sep": "\n"},
        "S.\n### Instruction:\nU1\n### Response:\nA1\n### Instruction:\nU2\n### Response:\n",
    ),
    (
        "spaces",
        3,
        3,
        {"roles": ["Human", "Assistant"], "sep": "\n"},
        "S.\nHuman: U1\nAssistant: A1\nHuman: U2\nAssistant: ",
    ),
    (
        "cute",
        5,
        5,
        {"roles": ["问：", "答："], "sep": "\n", "sep2": "\n<end>"},
        "S.问：U1\n答：A1\n<end>问：U2\n答：",
    ),
]
LATER_ONLY: list[tuple[str, int, dict[str, Any], str]] = [
    (
        "llama-3",
        8,
        {
            "roles": ["user", "assistant"],
            "system_template": "<|start_header_id|>system<|end_header_id|>\n\n{system_message}<|eot_id|>",
        },
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
        "U1<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA1<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
        "U2<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    (
        "gemma",
        21,
        {"roles": ["user", "model"], "sep": "<end_of_turn>\n"},
        "<bos><start_of_turn>user\nS.\n\nU1<end_of_turn>\n<start_of_turn>model\nA1<end_of_turn>\n"
        "<start_of_turn>user\nU2<end_of_turn>\n<start_of_turn>model\n",
    ),
]


@pytest.fixture(autouse=True)
def _no_named_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the fields count, also where a format of this name is known."""
    monkeypatch.setattr("unilect.templates.chat.find_named", lambda name: None)


@pytest.mark.parametrize(
    ("name", "number", "fields", "expected"),
    [(name, number, fields, text) for name, number, _, fields, text in TEMPLATES],
)
def test_prompt(name: str, number: int, fields: dict[str, Any], expected: str) -> None:
    """The prompt of a release up to 0.2.36 is the one that its own server makes, but no system text is lost."""
    assert expected == chat_prompt(conv(name, number, **fields), CHAT).text


@pytest.mark.parametrize(
    ("name", "number", "fields", "expected"),
    [(name, number, fields, text) for name, _, number, fields, text in TEMPLATES] + LATER_ONLY,
)
def test_prompt_with_moved_numbers(
    name: str, number: int, fields: dict[str, Any], expected: str
) -> None:
    """The same template comes out right with the numbers that later code has, told by its name or by its newer fields."""
    newer = {"system_message_vision": "", "max_image_size_mb": None}

    assert expected == chat_prompt(conv(name, number, **fields, **newer), CHAT).text
    if name != "chatglm2":  # which alone counts its rounds from one
        assert expected == chat_prompt(conv("unheard-of", number, **fields, **newer), CHAT).text


def test_unknown_name_is_told_by_its_marks() -> None:
    """A template that nobody knows by name is ChatML where its separators say so, whatever its number."""
    fields = {"roles": ["<|im_start|>user", "<|im_start|>assistant"], "sep": "<|im_end|>"}

    assert STYLES["CHATML"] is style(conv("mine", 10, **fields))
    assert STYLES["CHATML"] is style(conv("mine", 9, **fields))
    assert STYLES["CHATGLM"] is style(conv("mine", 8, roles=["问", "答"]))


@pytest.mark.parametrize("number", [None, 0, -1, 99])
def test_unknown_number(number: Any) -> None:
    """A number that means nothing is an error that says what to do."""
    with pytest.raises(BackendError, match="Set `chat_template`"):
        style(conv("mine", number))


@pytest.mark.parametrize("body", [b"", b"{}", b'{"conv":[]}', b'{"conv":{"roles":"x"}}', b"\xff"])
def test_no_conv(body: bytes) -> None:
    """What is no template is told as the worker's fault."""
    with pytest.raises(BackendError):
        decode(body)


def test_default_system_and_examples() -> None:
    """The template's own system text and examples stand where the client gives no system message."""
    mine = conv(
        "shots",
        1,
        system_message="Be kind.",
        roles=["Human", "Assistant"],
        messages=[["Human", "Hi"], ["Assistant", "Hello"]],
        sep="\n### ",
        stop_str="###",
    )

    made = chat_prompt(mine, [Message("user", "U")])

    assert (
        "Be kind.\n### Human: Hi\n### Assistant: Hello\n### Human: U\n### Assistant:" == made.text
    )
    assert ["###"] == made.stop


@pytest.mark.parametrize(
    ("number", "fields", "expected"),
    [
        (7, {"roles": ["[INST]", "[/INST]"], "sep": " "}, "[INST] U [/INST]"),
        (15, {"roles": ["User", "Falcon"]}, "User: U\nFalcon:"),
        (16, {"roles": ["<u>", "<a>"], "system_template": "<s>{system_message}"}, "<u>\nU<a>"),
        (1, {"roles": ["User", "Falcon"]}, "\nUser: U\nFalcon:"),
    ],
)
def test_no_system_text(number: int, fields: dict[str, Any], expected: str) -> None:
    """Without a system text its frame is left out where FastChat leaves it out."""
    assert expected == chat_prompt(conv("x", number, **fields), [Message("user", "U")]).text


def test_blank_lines_end_a_turn_of_rwkv() -> None:
    """A blank line within a message would end the turn, so it is taken out."""
    made = chat_prompt(conv("rwkv", 12, roles=["Bob", "Alice"]), [Message("user", "a\r\n\r\nb")])

    assert "Bob: a\nb\n\nAlice:" == made.text


def test_braces_in_a_system_text() -> None:
    """Braces in a system message are text."""
    messages = [Message("system", "{sep} {0}"), Message("user", "{x}")]

    assert "{sep} {0}{x}" == chat_prompt(conv("plain", 4, roles=["", ""], sep=""), messages).text


def test_other_roles_are_refused() -> None:
    """A tool's message has no place in these templates, and is refused by its place."""
    with pytest.raises(InvalidRequest) as caught:
        chat_prompt(
            conv("plain", 4), [Message("user", "U"), Message("tool", "T", tool_call_id="1")]
        )

    assert "messages[1].role" == caught.value.param


def test_images() -> None:
    """Each image has its place in the text, and goes beside it without its URL's head."""
    parts: list[Any] = [
        TextPart("What is this?"),
        ImagePart(ImageUrl("data:image/png;base64,AAAA")),
    ]

    made = chat_prompt(conv("v", 2, sep=" ", sep2="</s>"), [Message("user", parts)])

    assert (" USER: $$<image>$$What is this? ASSISTANT:", ["AAAA"]) == (made.text, made.images)
