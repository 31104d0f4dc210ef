"""
The lines that the older servers' own documents tell people to type, to the letter, against `unilect compat`.

curl is told to find the documents' addresses at our ports by a configuration file, so that the lines themselves stay as they are.

Sources: https://github.com/lm-sys/FastChat/blob/main/docs/openai_api.md, https://github.com/li-plus/chatglm.cpp/blob/main/README.md,
https://github.com/ymcui/Chinese-LLaMA-Alpaca/blob/main/scripts/openai_server_demo/README.md
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

from support.backends.engine import ENGINES_IN_CI, SOURCES
from support.backends.llama_server import llama_server
from support.servers.serving import Server, serve

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
Shell: TypeAlias = Callable[[str], Any]

ALPACA_COMPLETION = """
curl http://localhost:19327/v1/completions \\
  -H "Content-Type: application/json" \\
  -d '{   
    "prompt": "告诉我中国的首都在哪里"
  }'
"""
ALPACA_BEAMS = """
curl http://localhost:19327/v1/completions \\
  -H "Content-Type: application/json" \\
  -d '{   
    "prompt": "告诉我中国和美国分别各有哪些优点缺点",
    "max_tokens": 90,
    "temperature": 0.7,
    "num_beams": 4,
    "top_k": 40
  }'
"""
ALPACA_CHAT = """
curl http://localhost:19327/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -d '{   
    "messages": [
      {"role": "user","message": "给我讲一些有关杭州的故事吧"}
    ],
    "repetition_penalty": 1.0
  }'
"""
ALPACA_TURNS = """
curl http://localhost:19327/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -d '{   
    "messages": [
      {"role": "user","message": "给我讲一些有关杭州的故事吧"},
      {"role": "assistant","message": "好的，请问您对杭州有什么特别的偏好吗？"},
      {"role": "user","message": "我比较喜欢和西湖，可以给我讲一下西湖吗"}
    ],
    "repetition_penalty": 1.0
  }'
"""
ALPACA_EMBEDDING = """
curl http://localhost:19327/v1/embeddings \\
  -H "Content-Type: application/json" \\
  -d '{
    "input": "今天天气真不错"
  }'
"""
CHATGLM_CHAT = """
curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "你好"}]}'
"""
CHATGLM_LANGCHAIN = """
curl http://127.0.0.1:8000 -H 'Content-Type: application/json' -d '{"prompt": "你好"}'
"""
FASTCHAT_MODELS = """
curl http://localhost:8000/v1/models
"""
FASTCHAT_CHAT = """
curl http://localhost:8000/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "vicuna-7b-v1.3",
    "messages": [{"role": "user", "content": "Hello! What is your name?"}]
  }'
"""
FASTCHAT_COMPLETION = """
curl http://localhost:8000/v1/completions \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "vicuna-7b-v1.3",
    "prompt": "Once upon a time",
    "max_tokens": 41,
    "temperature": 0.5
  }'
"""
FASTCHAT_EMBEDDING = """
curl http://localhost:8000/v1/embeddings \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "vicuna-7b-v1.3",
    "input": "Hello world!"
  }'
"""


def shell(server: Server, folder: Path, *addresses: str) -> Shell:
    """Runs a line in bash; its addresses lead to a server."""
    leading = (f'connect-to = "{address}:127.0.0.1:{server.port}"\n' for address in addresses)
    (folder / ".curlrc").write_text("silent\nshow-error\nfail-with-body\n" + "".join(leading))

    def run(line: str) -> Any:
        environment = os.environ | {"CURL_HOME": str(folder), "no_proxy": "*"}
        found = subprocess.run(
            ["bash", "-c", line], env=environment, capture_output=True, timeout=60, check=True
        )
        return msgspec.json.decode(found.stdout)

    return run


@pytest.fixture(scope="module", params=ENGINES_IN_CI)
def base_model(request: pytest.FixtureRequest) -> str:
    """The bundled model, in either of its forms."""
    return SOURCES[request.param]


@pytest.fixture(scope="module")
def alpaca(base_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell in which Chinese-LLaMA-Alpaca's server is ours, with the bundled model."""
    folder = tmp_path_factory.mktemp("alpaca")
    with serve("--base_model", base_model, command=("compat", "alpaca")) as server:
        yield shell(server, folder, "localhost:19327")


@pytest.fixture(scope="module")
def chatglm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell in which chatglm.cpp's servers are ours, with the bundled model."""
    folder = tmp_path_factory.mktemp("chatglm")
    with serve(command=("compat", "chatglm"), env={"MODEL": "demo:"}) as server:
        yield shell(server, folder, "127.0.0.1:8000")


@pytest.fixture(scope="module")
def fastchat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell in which FastChat's server is ours, in front of a controller with a worker of the documents' model name."""
    folder = tmp_path_factory.mktemp("fastchat")
    with serve("demo:", config="fastchat_controller = true") as controller:
        worker = f'fastchat_register = "{controller.root}"'
        with serve("vicuna-7b-v1.3=demo:", config=worker):
            flags = ("--controller-address", controller.root)
            with serve(*flags, command=("compat", "fastchat")) as server:
                yield shell(server, folder, "localhost:8000")


def test_alpaca_completion(alpaca: Shell) -> None:
    """The capital of China is asked for as the document prints it, and its answer is the printed one."""
    answer = alpaca(ALPACA_COMPLETION)

    assert ("text_completion", "chinese-llama-alpaca") == (answer["object"], answer["model"])
    assert [(0, "中国的首都是北京。")] == [(one["index"], one["text"]) for one in answer["choices"]]


def test_alpaca_beams(alpaca: Shell, base_model: str) -> None:
    """A beam search is made where the engine has it, and else reported, and the question answered without it."""
    answer = alpaca(ALPACA_BEAMS)

    ignored = answer.get("unilect", {}).get("ignored", [])
    assert ([] if base_model == SOURCES["hf"] else ["num_beams"]) == ignored
    assert 0 < answer["usage"]["completion_tokens"] <= 90
    assert answer["choices"][0]["text"]


@pytest.mark.parametrize(("line", "turns"), [(ALPACA_CHAT, 1), (ALPACA_TURNS, 3)])
def test_alpaca_chat(alpaca: Shell, line: str, turns: int) -> None:
    """A chat is answered with the whole conversation, of which the answer is the last choice."""
    choices = alpaca(line)["choices"]
    *said, answer = [one["message"] for one in choices]

    assert list(range(turns + 1)) == [one["index"] for one in choices]
    assert (turns, "给我讲一些有关杭州的故事吧") == (len(said), said[0]["content"])
    assert "assistant" == answer["role"]
    assert answer["content"].strip()


def test_alpaca_embedding(alpaca: Shell) -> None:
    """A text is embedded as one vector of length 1."""
    (item,) = alpaca(ALPACA_EMBEDDING)["data"]

    assert ("embedding", 0) == (item["object"], item["index"])
    assert 1 == pytest.approx(sum(value * value for value in item["embedding"]), abs=1e-3)


def test_chatglm_chat(chatglm: Shell) -> None:
    """A greeting without a model's name is answered by the model that there is."""
    answer = chatglm(CHATGLM_CHAT)

    assert "assistant" == answer["choices"][0]["message"]["role"]
    assert "你好" in answer["choices"][0]["message"]["content"]
    assert "stop" == answer["choices"][0]["finish_reason"]


def test_chatglm_langchain(chatglm: Shell) -> None:
    """LangChain's protocol answers at the root, and gives the history back with the new turn."""
    answer = chatglm(CHATGLM_LANGCHAIN)

    assert 200 == answer["status"]
    assert "你好" in answer["response"]
    assert [["你好", answer["response"]]] == answer["history"]


def test_fastchat_models(fastchat: Shell) -> None:
    """The controller's models, its workers' and its own, are listed under their own names, with FastChat's permissions."""
    cards = {card["id"]: card for card in fastchat(FASTCHAT_MODELS)["data"]}

    assert {"vicuna-7b-v1.3", "demo"} == cards.keys()
    assert "model_permission" == cards["vicuna-7b-v1.3"]["permission"][0]["object"]


def test_fastchat_chat(fastchat: Shell) -> None:
    """A worker's model tells its name."""
    answer = fastchat(FASTCHAT_CHAT)

    assert "vicuna-7b-v1.3" == answer["model"]
    assert answer["choices"][0]["message"]["content"].strip()
    assert "stop" == answer["choices"][0]["finish_reason"]


def test_fastchat_completion(fastchat: Shell) -> None:
    """A text is continued within its limit of tokens."""
    answer = fastchat(FASTCHAT_COMPLETION)

    assert answer["choices"][0]["text"]
    assert 0 < answer["usage"]["completion_tokens"] <= 41


def test_fastchat_embedding(fastchat: Shell) -> None:
    """A text is embedded by the worker."""
    answer = fastchat(FASTCHAT_EMBEDDING)

    assert 192 <= len(answer["data"][0]["embedding"])


@pytest.fixture(scope="module")
def llamacpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell in which api_like_OAI.py is ours, in front of a real llama-server whose address has no scheme."""
    folder = tmp_path_factory.mktemp("llamacpp")
    with llama_server() as url:
        flags = ("--llama-api", url.removeprefix("http://"), "--chat-prompt", "", "--stop", "</s>")
        with serve(*flags, command=("compat", "llamacpp")) as server:
            yield shell(server, folder, "127.0.0.1:8081")


@pytest.mark.parametrize("path", ["/v1/completions", "/completions"])
def test_llamacpp_completion(llamacpp: Shell, path: str) -> None:
    """A text is continued without a Content-Type that says JSON, and `n_predict` is heard."""
    answer = llamacpp(
        f"curl http://127.0.0.1:8081{path} -d "
        """'{"prompt": "Once upon a time", "n_predict": 8, "temperature": 0, "tokenize": true}'"""
    )

    assert (8, "length", False) == (
        answer["usage"]["completion_tokens"],
        answer["choices"][0]["finish_reason"],
        answer["truncated"],
    )
    assert answer["promptToken"]


def test_llamacpp_chat(llamacpp: Shell) -> None:
    """A chat is read in the script's own format, and answered."""
    answer = llamacpp(
        """curl http://127.0.0.1:8081/chat/completions -d '{"messages": [{"role": "user", "content": "Hello!"}],"""
        """ "max_tokens": 16, "stop": "USER:"}'"""
    )

    assert answer["choices"][0]["message"]["content"]
    assert 16 >= answer["usage"]["completion_tokens"]


def test_llamacpp_native(llamacpp: Shell) -> None:
    """llama-server's own calls go through the same address."""
    tokens = llamacpp("""curl http://127.0.0.1:8081/tokenize -d '{"content": "Hello"}'""")["tokens"]
    line = f"""curl http://127.0.0.1:8081/detokenize -d '{{"tokens": {tokens}}}'"""

    assert "Hello" == llamacpp(line)["content"]
