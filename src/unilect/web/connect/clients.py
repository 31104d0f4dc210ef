"""
The clients, and for each the lines with which it uses a server. A client is one function and one row of `CLIENTS`.

Sources: https://developers.openai.com/codex/config-reference; https://code.claude.com/docs/en/settings; https://opencode.ai/docs/config;
https://aider.chat/docs/config/aider_conf.html; https://docs.continue.dev/reference; https://zed.dev/docs/ai/use-api-access;
https://code.visualstudio.com/docs/copilot/customization/language-models; https://docs.openwebui.com/reference/env-configuration;
https://www.home-assistant.io/integrations/ollama; https://qwenlm.github.io/qwen-code-docs/en/users/configuration/model-providers;
https://github.com/badlogic/pi-mono/blob/main/packages/coding-agent/docs/models.md; `copilot help providers`
"""

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from unilect.config.values import nearest
from unilect.core.errors import ConfigError
from unilect.web.connect import libraries
from unilect.web.connect.lines import PLACEHOLDER, VARIABLE, File, Lines, Model, Server, Text
from unilect.web.connect.settings import Named, Setting

NAME = "unilect"  # what a provider, a table or an entry is called in a client's file
MOST_OF_HOME_ASSISTANT = 131_072  # tokens; its form takes no more
_LEAST_WINDOW_OF_CLAUDE = 100_000  # tokens; Claude Code takes no smaller one
_QUIET = "So that it asks nobody but this server"
_CODEX_QUIET = """check_for_update_on_startup = false
analytics.enabled = false
otel.metrics_exporter = "none"
features.plugins = false
features.apps = false
"""
_OPENCODE_QUIET = "export OPENCODE_DISABLE_MODELS_FETCH=1\nexport npm_config_offline=true\n"
ASSUMED_CONTEXT = 8192  # where the client demands a number and the server tells none


class Client(NamedTuple):
    """
    A client.

    Attributes:
        title: What its makers call it.
        page: Its page in docs/clients.
        lines: Its lines for a server; the second argument has the environment, which may say where its files are.
        also: Other names for it.
    """

    title: str
    page: str
    lines: Callable[[Server, Mapping[str, str]], Lines]
    also: tuple[str, ...] = ()


def find_client(name: str) -> tuple[str, Client]:
    """
    Find the client of a name, however it is spelled, and its own name.

    Raises:
        ConfigError: There is none.
    """
    names = {_plain(other): own for own, one in CLIENTS.items() for other in (own, *one.also)}
    own = names.get(_plain(name))
    if own is None:
        near = names.get(nearest(_plain(name), names))
        meant = f" Is `{near}` meant?" if near else ""
        raise ConfigError(
            f"{name[:100]}: unknown client.{meant} Clients: {', '.join(CLIENTS)}. Others that speak OpenAI's API need the base URL, a key and the name of a model; docs/quickstart.md shows them."
        )
    return own, CLIENTS[own]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _codex(server: Server, environment: Mapping[str, str]) -> Lines:
    provider = {"name": NAME, "base_url": server.url, "wire_api": "responses"}
    if server.needs_key:
        provider["env_key"] = VARIABLE
    settings = (
        Setting(("model",), server.model.name, "shared"),
        Setting(("model_provider",), NAME, "shared"),
        Setting(("model_context_window",), server.model.context, "shared"),
        Setting(("model_providers", NAME), provider),
    )
    path = f"{environment.get('CODEX_HOME') or '~/.codex'}/config.toml"
    shell = _shell(_exports(server), "codex")
    quiet = Text(f"{_QUIET}, before the first table of {path}", "toml", _CODEX_QUIET)
    return Lines((File(path, "toml", settings),), (shell, quiet), _short_context(server, 16384))


def _claude(server: Server, environment: Mapping[str, str]) -> Lines:
    model = server.model.name
    values = {
        "ANTHROPIC_BASE_URL": server.root,
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
    }
    context = server.model.context
    if context is not None and context >= _LEAST_WINDOW_OF_CLAUDE:
        values["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(context)
    settings = tuple(Setting(("env", name), value, "shared") for name, value in values.items())
    path = f"{environment.get('CLAUDE_CONFIG_DIR') or '~/.claude'}/settings.json"
    shell = _shell(_key(server, "ANTHROPIC_AUTH_TOKEN"), "claude")
    quiet = Text(_QUIET, "sh", "export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1\n")
    notes = (*_short_context(server, 32768), *_window_of_claude(context))
    return Lines((File(path, "json", settings),), (shell, quiet), notes)


def _window_of_claude(context: int | None) -> tuple[str, ...]:
    if context is None or context >= _LEAST_WINDOW_OF_CLAUDE:
        return ()
    told = f"Claude Code says that it takes the context for a million tokens, and cannot be told one below {_LEAST_WINDOW_OF_CLAUDE:,}: it compacts the conversation when the server says that it is too long."
    return (told,)


def _opencode(server: Server, environment: Mapping[str, str]) -> Lines:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": NAME,
        "options": {
            "baseURL": server.url,
            "apiKey": f"{{env:{VARIABLE}}}" if server.needs_key else "none",
        },
        "models": {model.name: _of_opencode(model) for model in server.models},
    }
    settings = (
        Setting(("$schema",), "https://opencode.ai/config.json", "default"),
        Setting(("model",), f"{NAME}/{server.model.name}", "shared"),
        Setting(("small_model",), f"{NAME}/{server.model.name}", "shared"),
        Setting(("provider", NAME), provider),
    )
    path = f"{_config_home(environment)}/opencode/opencode.json"
    shell, quiet = _shell(_exports(server), "opencode"), Text(_QUIET, "sh", _OPENCODE_QUIET)
    return Lines((File(path, "json", settings),), (shell, quiet))


def _of_opencode(model: Model) -> dict[str, Any]:
    found: dict[str, Any] = {"name": model.name, "tool_call": True}
    if model.vision:
        found["attachment"] = True
        found["modalities"] = {"input": ["text", "image"], "output": ["text"]}
    if model.context is not None:
        found["limit"] = {"context": model.context, "output": model.output}
    return found


def _aider(server: Server, environment: Mapping[str, str]) -> Lines:
    name = f"openai/{server.model.name}"
    settings = (
        Setting(("model",), name, "shared"),
        Setting(("openai-api-base",), server.url, "shared"),
    )
    files = [File("~/.aider.conf.yml", "yaml", settings)]
    if server.model.context is not None:
        facts = {
            "max_tokens": server.model.output,
            "max_input_tokens": server.model.context,
            "max_output_tokens": server.model.output,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
            "litellm_provider": "openai",
            "mode": "chat",
        }
        files.append(File("~/.aider.model.metadata.json", "json", (Setting((name,), facts),)))
    return Lines(tuple(files), (_shell(_key(server, "OPENAI_API_KEY"), "aider"),))


def _continue(server: Server, environment: Mapping[str, str]) -> Lines:
    entries = [_of_continue(server, model) for model in server.models]
    settings = (
        Setting(("name",), "Local Config", "default"),
        Setting(("version",), "1.0.0", "default"),
        Setting(("schema",), "v1", "default"),
        *(Setting(("models", Named("name", entry["name"])), entry) for entry in entries),
    )
    files = [File("~/.continue/config.yaml", "yaml", settings)]
    if server.needs_key:
        key = (Setting((VARIABLE,), server.key),)
        files.append(File("~/.continue/.env", "dotenv", key, secret=True))
    return Lines(tuple(files))


def _of_continue(server: Server, model: Model) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": f"{NAME} {model.name}",
        "provider": "openai",
        "model": model.name,
        "apiBase": server.url,
        "apiKey": f"${{{{ secrets.{VARIABLE} }}}}" if server.needs_key else "none",
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use", *(["image_input"] if model.vision else [])],
    }
    if model.context is not None:
        found["defaultCompletionOptions"] = {
            "contextLength": model.context,
            "maxTokens": model.output,
        }
    return found


def _qwen(server: Server, environment: Mapping[str, str]) -> Lines:
    entries = []
    for model in server.models:
        entry: dict[str, Any] = {
            "id": model.name,
            "name": f"{NAME} {model.name}",
            "baseUrl": server.url,
            "envKey": VARIABLE,
        }
        if model.context is not None:
            entry["generationConfig"] = {
                "contextWindowSize": model.context,
                "samplingParams": {"max_tokens": model.output},
            }
        entries.append(entry)
    settings = (
        *(
            Setting(("modelProviders", "openai", Named("name", one["name"])), one)
            for one in entries
        ),
        Setting(("security", "auth", "selectedType"), "openai", "shared"),
        Setting(("model", "name"), server.model.name, "shared"),
    )
    shell = _shell(_key(server, VARIABLE), "qwen")
    file = File("~/.qwen/settings.json", "json", settings)
    return Lines((file,), (shell,), _short_context(server, 32768))


def _pi(server: Server, environment: Mapping[str, str]) -> Lines:
    models = []
    for model in server.models:
        found: dict[str, Any] = {
            "id": model.name,
            "input": ["text", *(["image"] if model.vision else [])],
        }
        if model.context is not None:
            found |= {"contextWindow": model.context, "maxTokens": model.output}
        models.append(found)
    provider = {
        "baseUrl": server.url,
        "api": "openai-completions",
        "apiKey": VARIABLE if server.needs_key else "none",
        "models": models,
    }
    path = f"{environment.get('PI_CODING_AGENT_DIR') or '~/.pi/agent'}/models.json"
    file = File(path, "json", (Setting(("providers", NAME), provider),))
    shell = _shell(_exports(server), shlex.join(["pi", "--model", f"{NAME}/{server.model.name}"]))
    return Lines((file,), (shell,))


def _copilot(server: Server, environment: Mapping[str, str]) -> Lines:
    model = server.model
    values: dict[str, Any] = {"BASE_URL": server.url}
    if model.context is not None:
        values["MAX_PROMPT_TOKENS"] = model.context - _output(model)
        values["MAX_OUTPUT_TOKENS"] = _output(model)
    provider = (
        f"export COPILOT_PROVIDER_{name}={shlex.quote(str(value))}"
        for name, value in values.items()
    )
    key = _exports(server, "COPILOT_PROVIDER_API_KEY")
    choice = f"export COPILOT_MODEL={shlex.quote(model.name)}"
    exports = (*provider, *key, choice, "export COPILOT_OFFLINE=true")
    return Lines((), (_shell(exports, "copilot"),), _short_context(server, 32768))


def _lines_of_zed(server: Server, environment: Mapping[str, str]) -> Lines:
    provider = {
        "api_url": server.url,
        "available_models": [
            {
                "name": model.name,
                "max_tokens": model.context or ASSUMED_CONTEXT,
                "max_output_tokens": model.output or ASSUMED_CONTEXT // 4,
                "capabilities": {
                    "tools": True,
                    "images": model.vision,
                    "parallel_tool_calls": True,
                    "prompt_cache_key": False,
                },
            }
            for model in server.models
        ],
    }
    settings = (Setting(("language_models", "openai_compatible", NAME), provider),)
    path = f"{_config_home(environment)}/zed/settings.json"
    shell = _shell(_key(server, VARIABLE), "zed")  # Zed makes this name from the provider's
    return Lines((File(path, "json", settings),), (shell,), _note_assumed(server))


def _vscode(server: Server, environment: Mapping[str, str]) -> Lines:
    entry = {
        "name": NAME,
        "vendor": "customendpoint",
        "apiKey": server.key if server.needs_key else "none",
        "apiType": "chat-completions",
        "models": [
            {
                "id": model.name,
                "name": model.name,
                "url": f"{server.url}/chat/completions",
                "toolCalling": True,
                "vision": model.vision,
                "maxInputTokens": (model.context or ASSUMED_CONTEXT) - _output(model),
                "maxOutputTokens": _output(model),
            }
            for model in server.models
        ],
    }
    path = f"{_config_home(environment)}/Code/User/chatLanguageModels.json"
    settings = (Setting((Named("name", NAME),), entry),)
    file = File(path, "json", settings, secret=server.needs_key)
    return Lines((file,), (), _note_assumed(server))


def _output(model: Model) -> int:
    return model.output or ASSUMED_CONTEXT // 4


def _openwebui(server: Server, environment: Mapping[str, str]) -> Lines:
    key = _key(server, "OPENAI_API_KEY")
    url = f"export OPENAI_API_BASE_URL={shlex.quote(server.url)}"
    model = f"export DEFAULT_MODELS={shlex.quote(server.model.name)}"
    exports = (url, *key, model, "export ENABLE_OLLAMA_API=false")
    return Lines((), (_shell(exports, "open-webui serve"),), _far(server, "Open WebUI"))


def _homeassistant(server: Server, environment: Mapping[str, str]) -> Lines:
    key = PLACEHOLDER if server.needs_key else "(empty)"
    tagged = server.model.name if ":" in server.model.name else f"{server.model.name}:latest"
    form = [f"URL: {server.root}", f"API key: {key}", f"Model: {tagged}"]
    if server.model.context is not None:
        form.append(f"Context window size: {min(server.model.context, MOST_OF_HOME_ASSISTANT)}")
    where = "Settings > Devices & services > Add integration > Ollama"
    text = Text(where, "text", "\n".join(form) + "\n")
    return Lines((), (text,), _far(server, "Home Assistant"))


def _shell(exports: tuple[str, ...], command: str) -> Text:
    return Text("In the shell", "sh", "\n".join([*exports, command]) + "\n")


def _exports(server: Server, variable: str = VARIABLE) -> tuple[str, ...]:
    """Return the lines that put the key into the environment, also under a client's own name for it."""
    if not server.needs_key:
        return ()
    lines = [] if server.exported else [f"export {VARIABLE}={PLACEHOLDER}"]
    return tuple(lines if variable == VARIABLE else [*lines, f'export {variable}="${VARIABLE}"'])


def _key(server: Server, variable: str) -> tuple[str, ...]:
    """Return the same for a client that uses no server without a key: such a server takes any."""
    return _exports(server, variable) if server.needs_key else (f"export {variable}=none",)


def _short_context(server: Server, least: int) -> tuple[str, ...]:
    model = server.model
    if model.context is None or model.context >= least:
        return ()
    told = f"The context of {model.name} is {model.context} tokens, and the first request alone needs more: set `context` of the model to at least {least}."
    return (told,)


def _far(server: Server, program: str) -> tuple[str, ...]:
    told = f"The address works on this machine only: for {program} on another one or in a container, listen on an address that it reaches (`--host`), and use that one."
    return (told,) if server.is_near else ()


def _config_home(environment: Mapping[str, str]) -> str:
    return environment.get("XDG_CONFIG_HOME") or "~/.config"


def _note_assumed(server: Server) -> tuple[str, ...]:
    names = [model.name for model in server.models if model.context is None]
    told = (
        f"The server does not tell the context of {', '.join(names)}; {ASSUMED_CONTEXT} is assumed."
    )
    return (told,) if names else ()


def _library(program: str, language: str = "python") -> Callable[..., Lines]:
    """Make the function for a client library: a program, and no file of its own."""

    def lines(server: Server, environment: Mapping[str, str]) -> Lines:
        heading = "In a program" if language == "python" else "In a module"
        key = _exports(server)
        shell = (Text("In the shell", "sh", "\n".join(key) + "\n"),) if key else ()
        return Lines((), (*shell, Text(heading, language, libraries.fill(program, server))))

    return lines


#: name -> client
CLIENTS: Mapping[str, Client] = {
    "codex": Client("Codex", "codex.md", _codex),
    "claude": Client("Claude Code", "claude-code.md", _claude, ("claude-code", "anthropic")),
    "opencode": Client("opencode", "opencode.md", _opencode),
    "aider": Client("aider", "aider.md", _aider),
    "continue": Client("Continue", "continue.md", _continue, ("continue.dev",)),
    "qwen": Client("Qwen Code", "qwen-code.md", _qwen, ("qwen-code",)),
    "pi": Client("pi", "pi.md", _pi, ("pi-coding-agent",)),
    "copilot-cli": Client("Copilot CLI", "copilot-cli.md", _copilot, ("github-copilot-cli",)),
    "zed": Client("Zed", "zed.md", _lines_of_zed),
    "vscode": Client("VS Code", "vscode.md", _vscode, ("code", "copilot", "github-copilot")),
    "openwebui": Client("Open WebUI", "open-webui.md", _openwebui, ("webui",)),
    "homeassistant": Client("Home Assistant", "home-assistant.md", _homeassistant, ("hass",)),
    "langchain": Client("LangChain", "langchain.md", _library(libraries.LANGCHAIN), ("langchain-openai",)),
    "llamaindex": Client("LlamaIndex", "llamaindex.md", _library(libraries.LLAMAINDEX), ("llama-index",)),
    "aisdk": Client("AI SDK", "ai-sdk.md", _library(libraries.AISDK, "js"), ("ai", "vercel-ai-sdk")),
    "openai-agents": Client("OpenAI Agents SDK", "openai-agents.md", _library(libraries.OPENAI_AGENTS), ("agents",)),
    "pydantic-ai": Client("Pydantic AI", "pydantic-ai.md", _library(libraries.PYDANTIC_AI)),
}  # fmt: skip
