"""llama.cpp's built-in chat templates by name: the prompts are those that llama.cpp itself makes."""

import ctypes
from pathlib import Path
from typing import Any

import pytest
import xllamacpp

from support.backends.engine import engine
from unilect.core.requests import ChatRequest, Message
from unilect.templates import chat as templates

MOST = 65536
CONVERSATIONS = [
    [("user", "U1")],
    [("user", " U1"), ("assistant", "A1 "), ("user", "U2\nx")],
    [("system", "  S1 "), ("user", " U1 "), ("assistant", " A1 "), ("user", "U2")],
    [("system", "S"), ("user", "U1"), ("assistant", "A1")],
    [("user", "U1"), ("assistant", "A1"), ("user", "U2"), ("assistant", "A2"), ("user", "U3")],
]
#: Names that older servers gave to other formats, which keep them.
OLDER = {"chatglm3", "chatglm4", "deepseek", "gemma", "llama2", "llama3", "vicuna", "zephyr"}
#: llama.cpp drops the system's text there.
DROPS_SYSTEM = {"yandex"}


class _Turn(ctypes.Structure):
    """`llama_chat_message` of llama.h."""

    _fields_ = [("role", ctypes.c_char_p), ("content", ctypes.c_char_p)]


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    """llama.cpp itself, as the wheel has it."""
    (path,) = Path(xllamacpp.__file__).parent.glob("xllamacpp*.so")
    found = ctypes.CDLL(str(path))
    found.llama_chat_apply_template.restype = ctypes.c_int32
    found.llama_chat_builtin_templates.restype = ctypes.c_int32
    return found


def names(library: ctypes.CDLL) -> list[str]:
    """The names of llama.cpp's built-in templates."""
    count = library.llama_chat_builtin_templates(None, ctypes.c_size_t(0))
    found = (ctypes.c_char_p * count)()
    library.llama_chat_builtin_templates(found, ctypes.c_size_t(count))
    return [name.decode() for name in found if name is not None]


def applied(library: ctypes.CDLL, name: str, talk: list[tuple[str, str]], opens: bool) -> str:
    """The prompt that llama.cpp makes."""
    turns = (_Turn * len(talk))(*[_Turn(role.encode(), text.encode()) for role, text in talk])
    buffer = ctypes.create_string_buffer(MOST)
    size = library.llama_chat_apply_template(name.encode(), turns, ctypes.c_size_t(len(talk)), ctypes.c_bool(opens), buffer, ctypes.c_int32(MOST))  # fmt: skip
    assert 0 <= size <= MOST
    return buffer.raw[:size].decode()


def test_every_name_is_known(library: ctypes.CDLL) -> None:
    """Every built-in name of llama.cpp is a format here."""
    assert 50 < len(names(library))
    assert [] == [name for name in names(library) if templates.find_named(name) is None]


@pytest.mark.parametrize("opens", [True, False])
def test_the_same_prompts(library: ctypes.CDLL, opens: bool) -> None:
    """Conversations with and without a system, with blanks around their texts, open or not, give llama.cpp's prompts."""
    compared = 0
    for name in sorted(set(names(library)) - OLDER):
        found: Any = templates.find_named(name)
        for talk in CONVERSATIONS:
            if name in DROPS_SYSTEM and talk[0][0] == "system":
                continue
            turns = [Message(role=role, content=text) for role, text in talk]  # type: ignore[arg-type]
            prompt = found.render(turns, add_generation_prompt=opens)
            assert applied(library, name, talk, opens) == prompt, (name, talk)
            compared += 1

    assert 200 < compared


@pytest.mark.parametrize("name", ["command-r", "llama2-sys-bos", "mistral-v3", "rwkv-world"])
async def test_in_front_of_a_file(library: ctypes.CDLL, name: str) -> None:
    """As `chat_template` of a GGUF model a name gives that prompt."""
    talk = CONVERSATIONS[2]
    turns = [Message(role=role, content=text) for role, text in talk]  # type: ignore[arg-type]
    async with engine(context=512, parallel=1, chat_template=name) as running:
        assert applied(library, name, talk, opens=True) == await running.render(
            ChatRequest(messages=turns)
        )
