"""The prompts of the five older servers, character by character."""

import pytest

from unilect.core.requests import Message
from unilect.templates import chat as templates

TALK = [
    Message("system", "S."),
    Message("user", "U1"),
    Message("assistant", "A1"),
    Message("user", "U2"),
]
ASSISTANT = [
    Message("system", "You are an assistant."),
    Message("user", "How are you?"),
    Message("assistant", "I'm fine. And you?"),
    Message("user", "Fine. Thanks."),
]
CHAT = "A chat between a curious user and an artificial intelligence assistant. The assistant follows the given rules no matter what."

#: FastChat's formats for "S.", "U1", "A1", "U2"; of gemma and Yi those of the models, which keep the system text.
FASTCHAT = {
    "vicuna_v1.1": "S. USER: U1 ASSISTANT: A1</s>USER: U2 ASSISTANT:",
    "zero_shot": "S.\n### Human: U1\n### Assistant: A1\n### Human: U2\n### Assistant:",
    "raw": "S.U1A1U2",
    "alpaca": "S.\n\n### Instruction: U1\n\n### Response: A1</s>### Instruction: U2\n\n### Response:",
    "chatglm": "S.\n[Round 0]\n问：U1\n答：A1\n[Round 1]\n问：U2\n答：",
    "chatglm2": "S.\n\n[Round 1]\n\n问：U1\n\n答：A1\n\n[Round 2]\n\n问：U2\n\n答：",
    "chatglm3": "<|system|>\nS.<|user|>\nU1<|assistant|>\nA1<|user|>\nU2<|assistant|>",
    "llama-2": "[INST] <<SYS>>\nS.\n<</SYS>>\n\nU1 [/INST] A1 </s><s>[INST] U2 [/INST]",
    "chinese-alpaca2": "[INST] <<SYS>>\nS.\n<</SYS>>\n\nU1 [/INST] A1 </s><s>[INST] U2 [/INST]",
    "chinese-alpaca-2": "[INST] <<SYS>>\nS.\n<</SYS>>\n\nU1 [/INST] A1</s><s>[INST] U2 [/INST]",
    "llama-3": (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nU1<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nA1<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nU2<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "qwen-7b-chat": (
        "<|im_start|>system\nS.<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
        "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n"
    ),
    "mistral": "[INST] S.\nU1 [/INST] A1</s>[INST] U2 [/INST]",
    "gemma": (
        "<bos><start_of_turn>user\nS.\n\nU1<end_of_turn>\n<start_of_turn>model\nA1<end_of_turn>\n"
        "<start_of_turn>user\nU2<end_of_turn>\n<start_of_turn>model\n"
    ),
    "Yi-34b-chat": (
        "<|im_start|>system\nS.<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
        "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n"
    ),
    "internlm-chat": "S.\n\n<|User|>:U1<eoh>\n<|Bot|>:A1<eoa>\n<|User|>:U2<eoh>\n<|Bot|>:",
    "baichuan-chat": "S.<reserved_102>U1<reserved_103>A1<reserved_102>U2<reserved_103>",
    "alpaca-zh": "S.\n\n### Instruction:\nU1\n\n### Response: A1\n\n### Instruction:\nU2\n\n### Response: ",
    "glm-4": "[gMASK]<sop><|system|>\nS.<|user|>\nU1<|assistant|>\nA1<|user|>\nU2<|assistant|>",
}


@pytest.mark.parametrize("name", FASTCHAT)
def test_named_formats(name: str) -> None:
    """A format's prompt is that of the server that named it."""
    assert FASTCHAT[name] == templates.find(name).render(TALK)


def test_one_shot() -> None:
    """FastChat's one_shot has two turns of an example between the system and the conversation."""
    prompt = templates.find("one_shot").render(TALK)

    assert prompt.startswith("S.\n### Human: ")
    assert prompt.endswith("\n### Human: U1\n### Assistant: A1\n### Human: U2\n### Assistant:")
    assert 3 == prompt.count("### Human: ")


def test_api_like_oai_of_2023() -> None:
    """The format of llama.cpp's script as PowerInfer ships it."""
    expected = (
        f"{CHAT}\n\nASSISTANT's RULE: You are an assistant.\nUSER: How are you?\nASSISTANT: I'm fine. And you?</s>"
        "\nUSER: Fine. Thanks.\nASSISTANT:"
    )
    assert expected == templates.find("oai-like-2023").render(ASSISTANT)


def test_vicuna_has_a_system_of_its_own() -> None:
    """A conversation without a system gets Vicuna's."""
    expected = (
        "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
        "and polite answers to the user's questions. USER: U ASSISTANT:"
    )
    assert expected == templates.find("vicuna_v1.1").render([Message("user", "U")])


def test_one_message_of_chatglm_stands_alone() -> None:
    """The first question to ChatGLM is its own prompt; ChatGLM2 counts it as round 1."""
    hello = [Message("user", "你好")]

    assert "你好" == templates.find("chatglm").render(hello)
    assert "[Round 1]\n\n问：你好\n\n答：" == templates.find("chatglm2").render(hello)
    assert "<|user|>\n你好<|assistant|>" == templates.find("chatglm3").render(hello)
    assert "[gMASK]<sop><|user|>\n你好<|assistant|>" == templates.find("glm-4").render(hello)
    assert "<|User|>:你好<eoh>\n<|Bot|>:" == templates.find("internlm").render(hello)


def test_a_plain_completion_of_alpaca() -> None:
    """Chinese-LLaMA-Alpaca wraps a plain prompt, with four blanks on the second line."""
    expected = (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n"
        "    \n### Instruction:\n告诉我中国的首都在哪里\n\n### Response: "
    )
    prompt = templates.find("alpaca-completion").render([Message("user", "告诉我中国的首都在哪里")])

    assert expected == prompt


def test_alpaca_zh_has_a_system_of_its_own() -> None:
    """A conversation without a system gets Alpaca's instruction."""
    expected = (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\na\n\n### Response: b\n\n### Instruction:\nc\n\n### Response: "
    )
    talk = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]

    assert expected == templates.find("alpaca-zh").render(talk)


def test_chinese_alpaca_2_has_a_system_of_its_own() -> None:
    """A conversation without a system gets that of Chinese-LLaMA-Alpaca-2."""
    expected = "[INST] <<SYS>>\nYou are a helpful assistant. 你是一个乐于助人的助手。\n<</SYS>>\n\nU [/INST]"
    assert expected == templates.find("chinese-alpaca-2").render([Message("user", "U")])
