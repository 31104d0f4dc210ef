"""What becomes of the options of llama-swap, LiteLLM, llama-server and Modelfiles, and what is said of the others."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from unilect.cli.imports.command import convert

FILES = Path(__file__).parent / "files"


def made(name: str, kind: str) -> tuple[dict[str, Any], str]:
    """The configuration of a file, and its remarks."""
    file = FILES / name
    text = convert(file.read_text(), kind, file).to_toml("x")
    return tomllib.loads(text), "\n".join(re.findall(r"^# (.*)$", text, re.M))


def of_text(text: str, kind: str) -> tuple[dict[str, Any], str]:
    """The same of a text."""
    written = convert(text, kind, Path("/etc/x/Modelfile.x")).to_toml("x")
    return tomllib.loads(written), "\n".join(re.findall(r"^# (.*)$", written, re.M))


def test_llama_swap() -> None:
    """Commands of llama-server are engines here, macros are put in, variants are presets, and what is preloaded is loaded at the start."""
    config, remarks = made("swap_home.yaml", "llama-swap")
    qwen, embedder = config["models"]["qwen3-8b"], config["models"]["embedder"]

    assert "/srv/models/qwen3-8b-q4_k_m.gguf" == qwen["source"]
    assert (16384, 2, 900, 300) == tuple(qwen[one] for one in ("context", "parallel", "idle_stop_s", "start_timeout_s"))  # fmt: skip
    assert {"temperature": 0.6, "top_p": 0.95} == qwen["defaults"]
    assert (["gpt-4o-mini", "assistant"], {"parallel": 4}) == (qwen["aliases"], qwen["limits"])
    assert {"base": "qwen3-8b", "defaults": {"chat_template_kwargs": {"enable_thinking": False}}} == config["models"]["qwen3-8b:quick"]  # fmt: skip
    assert embedder["pin"]
    assert "pin" not in qwen
    assert (True, "cls", None, None) == (embedder["unlisted"], embedder["pooling"], embedder.get("load"), embedder.get("idle_stop_s"))  # fmt: skip
    for told in ("--override-tensor: has no", "CUDA_VISIBLE_DEVICES", "stripParams", "sendLoadingState: has no", "groups.chat"):  # fmt: skip
        assert told in remarks


def test_servers_that_llama_swap_starts() -> None:
    """llama-server in a container is an engine, another server a model by command; one that no port is known of runs already, or is left out."""
    config, remarks = made("swap_containers.yaml", "llama-swap")

    vllm, whisper = config["models"]["vllm-coder"], config["models"]["whisper"]
    assert ["-p", "127.0.0.1:{port}:8000"] == vllm["command"][8:10]
    assert ("coder", "/health", ["docker", "stop", "vllm-coder"], 600, "demand", {"HF_TOKEN": "${HF_TOKEN}"}) == tuple(
        vllm[one] for one in ("model", "health", "stop_command", "idle_stop_s", "load", "environment")
    )  # fmt: skip
    assert ["/opt/whisper/server", "--port", "{port}", "-m", "{{large}}-$$v3.bin"] == whisper["command"]  # fmt: skip
    assert {"source": "/mnt/models/small coder.gguf", "aliases": ["small-coder"]}.items() <= config["models"]["in-a-container"].items()  # fmt: skip
    assert "gguf:ggml-org/gemma-3-1b-it-GGUF:Q4_K_M" == config["models"]["hub-model"]["source"]
    assert {"source": "http://127.0.0.1:9900/v1", "model": "old"} == config["models"]["old"]
    assert "the model lost is left out: its command starts `/opt/lost`, and nothing says on which port" in remarks  # fmt: skip


def test_peers_of_llama_swap() -> None:
    """Peers are upstreams, with the models that they list or all of theirs; parameters that are none are told."""
    config, remarks = made("swap_peers.yaml", "llama-swap")

    assert ["$SWAP_KEY"] == config["api_keys"]
    assert {"source": "http://192.0.2.10:8080/v1", "api_key": "$PEER_KEY", "model": "qwen-32b"} == config["models"]["qwen-32b"]  # fmt: skip
    assert "*" == config["models"]["anything"]["model"]
    assert {"temperature": 0.2} == config["models"]["small"]["defaults"]
    assert "not_a_parameter: is no parameter" in remarks
    assert "there is no macro missing" in remarks


def test_litellm() -> None:
    """Deployments of one name are one model's sources; settings, prices, limits, aliases and fallbacks have counterparts."""
    config, remarks = made("litellm_team.yaml", "litellm")
    gpt, llama = config["models"]["gpt-4o"], config["models"]["llama"]

    assert ["gpt-4o", "llama"] == list(config["models"])
    assert ["$LITELLM_MASTER_KEY"] == config["api_keys"]
    assert ("$OPENAI_API_KEY", "llama", ["gpt-4"], "report", 120) == tuple(gpt[one] for one in ("api_key", "fallback", "aliases", "unsupported", "timeout_s"))  # fmt: skip
    assert {"prompt": 2.5, "completion": 10.0} == gpt["price"]
    assert {"requests_per_minute": 500, "tokens_per_minute": 200_000} == gpt["limits"]
    assert ["http://192.0.2.20:8000/v1", "http://192.0.2.21:8000/v1"] == llama["source"]
    assert {"requests_per_minute": 120} == llama["limits"]
    for told in ("the model claude is left out", "the model azure-gpt is left out", "success_callback", "database_url", "routing_strategy", "redis_password"):  # fmt: skip
        assert told in remarks


def test_values_of_yaml_that_toml_has_not() -> None:
    """Keys that are numbers and dates are texts, and what has no value is told and left out."""
    params = "{model: openai/q, api_base: http://a/v1, logit_bias: {50256: -100}, user: 2024-01-01, stop: null}"
    config, remarks = of_text(f"model_list: [{{model_name: a, litellm_params: {params}}}]", "litellm")  # fmt: skip

    assert {"logit_bias": {"50256": -100}, "user": "2024-01-01"} == config["models"]["a"]["defaults"]  # fmt: skip
    assert "model_list[0].litellm_params.stop: has no value; left out." in remarks


def test_addresses_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment whose address is a variable has its value, and one whose variable is not set takes no other one with it."""
    monkeypatch.setenv("BASE_A", "http://a/v1/")
    entries = "".join(f"- {{model_name: m, litellm_params: {{model: openai/q, api_base: {base}}}}}\n" for base in ("os.environ/BASE_B", "os.environ/BASE_A", "http://c/v1"))  # fmt: skip
    config, remarks = of_text(f"model_list:\n{entries}", "litellm")

    assert ["http://a/v1", "http://c/v1"] == config["models"]["m"]["source"]
    assert "model_list[0].litellm_params.api_base: the variable BASE_B is not set" in remarks


@pytest.mark.parametrize(
    ("text", "kind", "keys", "words"),
    [
        ("apiKeys: [12345, 'sk-${env.TAIL}', '${env.ALL}']\nmodels: {}", "llama-swap", ["12345", "$ALL"], "apiKeys[1]: a variable is a part"),
        ("apiKeys: ['${env.A}-${env.B}']\nmodels: {}", "llama-swap", None, "none is left"),
        ("llama-server -m a.gguf --host 0.0.0.0 --api-key 'a b'", "llama-server", None, "host 0.0.0.0: other machines"),
        ("llama-server -m a.gguf --api-key 'a b,c'", "llama-server", ["c"], "has spaces"),
    ],
)  # fmt: skip
def test_keys(text: str, kind: str, keys: list[str] | None, words: str) -> None:
    """A key that is a number is a text; what no key can be is left out and told, and no address is opened without one."""
    config, remarks = of_text(text, kind)

    assert keys == config.get("api_keys")
    assert words in remarks
    assert "host" not in config


def test_paths_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables in paths have their values, and one that is not set is told."""
    monkeypatch.setenv("MODELS_HERE", "/m")
    models = "{a: {cmd: 'llama-server -m ${env.MODELS_HERE}/a.gguf --chat-template-file ${env.MODELS_HERE}/t'}, b: {cmd: 'llama-server -m ${env.NOT_SET_HERE}/b.gguf'}}"
    config, remarks = of_text(f"models: {models}", "llama-swap")

    assert ("/m/a.gguf", "/m/t") == tuple(config["models"]["a"][one] for one in ("source", "chat_template"))  # fmt: skip
    assert "the variable NOT_SET_HERE is not set" in remarks


def test_deployments_that_differ() -> None:
    """Deployments with keys of their own answer one after the other; `*` is all that a server has; a key that is not named is the provider's own."""
    config, remarks = made("litellm_mixed.yaml", "litellm")
    local, _ = made("litellm_local.yaml", "litellm")
    fast = config["models"]["fast"]

    assert ("https://api.groq.com/openai/v1", "fast-2") == (fast["source"], fast["fallback"])
    assert (True, 30) == tuple(config["models"]["fast-2"][one] for one in ("unlisted", "timeout_s"))
    assert ("*", "https://api.openai.com/v1") == (config["models"]["all"]["model"], config["models"]["all"]["source"])  # fmt: skip
    assert "http://127.0.0.1:11434/v1" == local["models"]["tiny"]["source"]
    assert ("*", "$GROQ_API_KEY") == tuple(config["models"]["groq"][one] for one in ("model", "api_key"))  # fmt: skip
    assert "$OPENAI_API_KEY" == config["models"]["plain"]["api_key"]
    assert "another source of it is left out: model_list[2] (azure/llama): azure has an API of its own" in remarks  # fmt: skip
    assert "guardrails: has no counterpart here" in remarks


def test_modelfiles() -> None:
    """Parameters are options and defaults, SYSTEM is the system message, and what has no counterpart is told with its line."""
    reviewer, remarks = made("Modelfile.reviewer", "ollama")
    local, told = made("Modelfile.local", "ollama")

    assert {
        "source": "gguf:bartowski/Qwen2.5-Coder-7B-Instruct-GGUF:Q5_K_M",
        "defaults": {"temperature": 0.2},
        "context": 16384,
        "stop": ["<|im_end|>", "<|endoftext|>"],
        "system": "You review code.\nAnswer with a list of faults, the worst first.",
    } == reviewer["models"]["reviewer"]
    assert {
        "source": str(FILES / "tiny.gguf"),
        "lora": [str(FILES / "pirate.gguf")],
        "gpu_layers": 20,
        "threads": 4,
        "defaults": {"seed": 7},
        "system": "Be short.",
    } == local["models"]["local"]
    assert "line 8: PARAMETER tfs_z: has no counterpart here" in remarks
    assert "line 11: MESSAGE has no counterpart here" in remarks
    assert "line 3: TEMPLATE is in Go's language" in told


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("FROM llama3.2:1b", {"source": "http://127.0.0.1:11434/v1", "model": "llama3.2:1b"}),
        ("from /m/a.gguf\nparameter temperature 0.2   # low", {"source": "/m/a.gguf", "defaults": {"temperature": 0.2}}),
        ('FROM a.gguf\nPARAMETER stop "#"\nPARAMETER num_predict 5', {"source": "/etc/x/a.gguf", "stop": ["#"], "defaults": {"max_tokens": 5}}),
        ("FROM a.gguf\nPARAMETER temperature hot\nPARAMETER num_ctx 1", {"source": "/etc/x/a.gguf"}),
        ("FROM\t./a.gguf\nPARAMETER\tnum_ctx\t4096", {"source": "/etc/x/a.gguf", "context": 4096}),
        ('FROM a.gguf\nSYSTEM "You are "M" and\nsay "so".  "', {"source": "/etc/x/a.gguf", "system": 'You are "M" and\nsay "so".'}),
        ("FROM ./a.gguf\nFROM ./b.gguf\nFROM c\nRENDERER qwen\nPARSER qwen", {"source": "/etc/x/a.gguf", "mmproj": "/etc/x/b.gguf"}),
        ('FROM a.gguf\nPARAMETER stop "a b" # one\nPARAMETER stop "\xa0"', {"source": "/etc/x/a.gguf", "stop": ["a b", "\xa0"]}),
    ],
)  # fmt: skip
def test_lines_of_modelfiles(text: str, table: dict[str, Any]) -> None:
    """Instructions in any case, comments behind numbers, models of Ollama's own, and values that no model can have."""
    assert table == of_text(text, "ollama")[0]["models"]["x"]


def test_a_model_in_the_store_of_ollama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that Ollama has on this machine is served from its store, with the options of the Modelfile."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    digest = "a" * 64
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / f"sha256-{digest}").write_bytes(b"GGUF")
    manifest = tmp_path / "manifests/registry.ollama.ai/library/tiny/latest"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}))
    (table,) = of_text("FROM tiny\nPARAMETER num_ctx 512", "ollama")[0]["models"].values()

    assert {"source": "ollama:tiny", "context": 512} == table


def test_command_lines() -> None:
    """Each command line of llama-server is a model, the first has the address; redirections, comments and other commands are none."""
    config, remarks = made("start.sh", "llama-server")
    mistral = config["models"]["mistral"]

    assert ("127.0.0.1", 8081, ["$LLAMA_KEY"]) == tuple(config[one] for one in ("host", "port", "api_keys"))  # fmt: skip
    assert (4096, 4, 33, ["assistant"]) == tuple(mistral[one] for one in ("context", "parallel", "gpu_layers", "aliases"))  # fmt: skip
    assert ("mean", "/srv/models/nomic-embed.gguf") == tuple(config["models"]["nomic-embed"][one] for one in ("pooling", "source"))  # fmt: skip
    for told in ("--n-cpu-moe: has no", "CUDA_VISIBLE_DEVICES", "port: one server", "cd: is no"):
        assert told in remarks
    assert "chat.log" not in remarks


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("docker run -v /a/b:/models ghcr.io/ggml-org/llama.cpp:server -m /models/x.gguf", "/a/b/x.gguf"),
        ("export MODEL=/m/y.gguf\nllama-server -m ${MODEL} # mine", "/m/y.gguf"),
        ("./llama-server.exe -m x.gguf --hf-token hf_secret -ot 'a=CPU'", "/etc/x/x.gguf"),
        ("llama-server -hf org/repo:Q8_0 2>/dev/null", "gguf:org/repo:Q8_0"),
        ("# don't\nllama-server -m /m/a.gguf # can't say more", "/m/a.gguf"),
        ("docker run --mount type=bind,src=/data,dst=/models -e LLAMA_ARG_MODEL=/models/x.gguf ghcr.io/ggml-org/llama.cpp:server", "/data/x.gguf"),
        ("[Unit]\nDescription=llama.cpp\n[Service]\nEnvironment=M=/m/u.gguf\nExecStart=-/usr/bin/llama-server \\\n -m ${M}\n[Install]\nWantedBy=x", "/m/u.gguf"),
        ("llama-server -m a.gguf -ts -1,2", "/etc/x/a.gguf"),
        ('DIR=${DIR:-/m}\nFILE="${FILE-$DIR/d.gguf}"\nexec llama-server -m "$FILE"', "/m/d.gguf"),
        ("[*] ; all\nc = 512\n[a] # of mine\nmodel = /m/a.gguf ; the small one", "/m/a.gguf"),
        ("[a]\nhf = org/repo  # Q4_K_M", "gguf:org/repo:Q4_K_M"),
    ],
)  # fmt: skip
def test_forms_of_command_lines(text: str, source: str) -> None:
    """Containers, variables of the file, flags that are none, and the hub; the values of unknown flags are not told."""
    config, remarks = of_text(text, "llama-server")
    (table,) = config["models"].values()

    assert source == table["source"]
    assert "hf_secret" not in remarks


def test_variables_and_quotes_of_command_lines() -> None:
    """Variables of llama-server are flags, which those of the line go before; a quoted text may have line breaks."""
    text = "export LLAMA_ARG_CTX_SIZE=512\nLLAMA_ARG_N_PARALLEL=4 LLAMA_ARG_THREADS=2 CUDA_VISIBLE_DEVICES=0 llama-server -m /m/a.gguf --threads 3 --cache_type_k q8_0 --chat-template-kwargs '{\n\"a\": 1\n}'"
    config, remarks = of_text(text, "llama-server")

    assert {
        "parallel": 4,
        "context": 128,
        "threads": 3,
        "cache_type_k": "q8_0",
        "defaults": {"chat_template_kwargs": {"a": 1}},
        "source": "/m/a.gguf",
        "unsupported": "report",
    } == config["models"]["a"]
    assert "CUDA_VISIBLE_DEVICES: set it for unilect" in remarks
    assert "LLAMA_ARG" not in remarks


def test_variables_of_presets() -> None:
    """A key of a preset may be a variable of llama-server, whose name is not always its flag's."""
    config, _ = of_text("[a]\nmodel = /m/a.gguf\nLLAMA_ARG_N_PARALLEL = 4\nLLAMA_ARG_BATCH = 64", "llama-server")  # fmt: skip

    assert (4, 64) == tuple(config["models"]["a"][one] for one in ("parallel", "batch"))


def test_models_of_llama_swap() -> None:
    """A model by its address is an engine here; a start has the time that it had; a variant takes no model's name."""
    models = {
        "web": {"cmd": "llama-server --model-url https://h/x.gguf --port ${PORT}", "ttl": 60},
        "v": {"cmd": "vllm serve --port ${PORT}", "filters": {"setParamsByID": {"w": {"seed": 1}}}},
        "w": {"cmd": "llama-server -m /m/w.gguf", "env": ["LLAMA_ARG_CTX_SIZE=512"]},
    }
    config, _ = of_text(json.dumps({"healthCheckTimeout": 500, "models": models}), "llama-swap")
    web, other, own, variant = (config["models"][one] for one in ("web", "v", "w", "w-2"))

    assert ("demand", 60, 500) == tuple(web[one] for one in ("load", "idle_stop_s", "start_timeout_s"))  # fmt: skip
    assert 500 == other["start_silence_s"]
    assert ("/m/w.gguf", 512) == (own["source"], own["context"])
    assert {"base": "v", "defaults": {"seed": 1}} == variant


@pytest.mark.parametrize(
    ("group", "pinned"),
    [
        ({"persistent": True, "swap": False, "members": ["a", "b"]}, True),
        ({"persistent": True, "members": ["a"]}, True),
        ({"persistent": True, "members": ["a", "b"]}, False),
        ({"exclusive": True, "swap": False, "members": ["a", "b"]}, False),
    ],
)
def test_groups_of_llama_swap(group: dict[str, Any], pinned: bool) -> None:
    """Models that stay loaded, all of a group together, are pinned; of any other group it is told that memory decides."""
    models = {one: {"cmd": f"llama-server -m /m/{one}.gguf"} for one in "ab"}
    config, remarks = of_text(json.dumps({"models": models, "groups": {"g": group}}), "llama-swap")

    assert pinned == config["models"]["a"].get("pin", False)
    assert pinned != ("groups.g: has no counterpart" in remarks)


def test_one_wrong_item() -> None:
    """What is wrong in a list of texts is left out of it; of numbers, each of which has its place, all are."""
    config, remarks = of_text('FROM a.gguf\nPARAMETER stop a\nPARAMETER stop ""\nPARAMETER stop b', "ollama")  # fmt: skip
    split, told = of_text("llama-server -m a.gguf -ts 3,-1", "llama-server")

    assert ["a", "b"] == config["models"]["x"]["stop"]
    assert "stop[2]: expected text" in remarks
    assert "tensor_split" not in split["models"]["a"]
    assert "tensor_split[2]: expected a number" in told


def test_a_folder_of_models(tmp_path: Path) -> None:
    """The folder of a router is all models of the folder, with the router's address and flags."""
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    text = f"llama-server --models-dir {tmp_path} --models-max 2 --port 9000 -c 4096"
    config, remarks = of_text(text, "llama-server")
    (table,) = config["models"].values()

    assert (9000, str(tmp_path), "*", 4096) == (config["port"], table["source"], table["model"], table["context"])  # fmt: skip
    assert "--models-max: has no counterpart" in remarks


def test_presets_of_llama_server() -> None:
    """A section is a model, named after one of the hub or with a file of its own; what all have holds for each."""
    config, remarks = made("presets.ini", "llama-server")
    gemma, coder = config["models"].values()

    assert ("gguf:ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", 8192) == (gemma["source"], gemma["context"])
    assert ({"temperature": 0.7}, None) == (gemma["defaults"], gemma.get("load"))
    assert ("q8_0", "demand", "/srv/models/qwen-coder.gguf") == tuple(coder[one] for one in ("cache_type_k", "load", "source"))  # fmt: skip
    assert "--stop-timeout: has no counterpart" in remarks


def test_remarks_behind_values() -> None:
    """A comment may stand behind a section and a value, as llama.cpp reads them."""
    text = (
        "[*];all\nfa = on  # flash\n\n[a]\nmodel = /m/a.gguf\nc = 512 ; or 1024\ntemp = 0.5# cool"
    )
    (table,) = of_text(text, "llama-server")[0]["models"].values()

    assert (512, {"temperature": 0.5}) == (table["context"], table["defaults"])


COMPOSE = """
services:
  a:
    image: ghcr.io/ggml-org/llama.cpp:server
    volumes: [./models:/models]
    environment: {LLAMA_ARG_MODEL: /models/a.gguf, LLAMA_ARG_CTX_SIZE: 4096, CUDA_VISIBLE_DEVICES: 0}
  b:
    image: ghcr.io/ggml-org/llama.cpp:server-cuda
    command: -m /m/b.gguf -c 512
  c:
    image: ghcr.io/ggml-org/llama.cpp:server
    environment: [LLAMA_ARG_MODEL=/m/c.gguf]
    command: ["--pooling", "mean"]
  web:
    image: open-webui
"""


def test_services_of_compose() -> None:
    """A service of Docker Compose is what its container is started with; one that is no llama-server is told."""
    config, remarks = of_text(COMPOSE, "llama-server")
    a, b, c = config["models"].values()

    assert [("/etc/x/models/a.gguf", 4096), ("/m/b.gguf", 512)] == [(one["source"], one["context"]) for one in (a, b)]  # fmt: skip
    assert ("/m/c.gguf", "mean") == (c["source"], c["pooling"])
    assert "services.web: is no llama-server." in remarks
    assert "CUDA_VISIBLE_DEVICES: set it for unilect" in remarks


def test_a_list_that_has_no_effect() -> None:
    """A list that another kind of source has is left out, though each of its items is right."""
    config, remarks = of_text("FROM nowhere-here\nADAPTER ./l.gguf", "ollama")

    assert "lora" not in config["models"]["x"]
    assert "lora: applies to GGUF models" in remarks
    assert "/etc/x: there is no such file" in of_text("FROM .", "ollama")[1]


def test_sections_of_files() -> None:
    """A section that is called as a file is that file, whose folder is the router's; a flag with a short name is what it is on a command line."""
    config, remarks = of_text("[m-Q6_K.gguf]\nub = 4096\nngl = 99", "llama-server")
    (table,) = config["models"].values()

    assert "/etc/x/m-Q6_K.gguf" == table["source"]
    assert "m-Q6_K.gguf: put the path of the router's folder" in remarks
    assert "-ub: no effect" in remarks


@pytest.mark.parametrize(
    ("flags", "speculative", "told"),
    [
        ("--spec-type draft-mtp", None, "--spec-type draft-mtp: has no counterpart here."),
        ("--spec-type draft-eagle3,ngram-mod", "ngram", "--spec-type draft-eagle3: has no"),
        ("--spec-draft-model /m/d.gguf --spec-draft-n-max 3 --spec-draft-p-min 0.7", "/m/d.gguf", "--spec-draft-p-min: no effect"),
    ],
)  # fmt: skip
def test_kinds_of_speculation(flags: str, speculative: str | None, told: str) -> None:
    """What drafts tokens is what it was there, by the names that its flags have by now, or told."""
    config, remarks = of_text(f"llama-server -m /m/a.gguf {flags}", "llama-server")

    assert speculative == config["models"]["a"].get("speculative")
    assert told in remarks


@pytest.mark.parametrize(("flags", "told"), [("-c 0", True), ("", True), ("-c 512", False)])
def test_a_context_that_nobody_sets(flags: str, told: bool) -> None:
    """The context of a model that has its own there is told, where fewer tokens may be here."""
    _, remarks = of_text(f"llama-server -m /m/a.gguf {flags}", "llama-server")

    assert told == ("at most 8192 tokens here" in remarks)


def test_parameters_that_are_taken_away() -> None:
    """A filter of llama-swap is told by its older name, too."""
    models = {"a": {"cmd": "llama-server -m /m/a.gguf", "filters": {"strip_params": "top_k"}}}

    assert "stripParams (top_k): no parameter" in of_text(json.dumps({"models": models}), "llama-swap")[1]  # fmt: skip


def test_an_address_without_a_key() -> None:
    """No address that other machines reach is opened without a key because a file says so."""
    config, remarks = made("docker.sh", "llama-server")

    assert "host" not in config
    assert "host 0.0.0.0: other machines reach it" in remarks
