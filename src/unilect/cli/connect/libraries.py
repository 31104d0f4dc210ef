"""The programs with which client libraries use a server, as short as they run."""

import json

from unilect.cli.connect.server import VARIABLE, Server


def langchain(server: Server) -> tuple[str, str]:
    """LangChain's chat model for OpenAI, of the package langchain-openai."""
    return (
        "python",
        f"""\
{_import_os(server)}from langchain_openai import ChatOpenAI

model = ChatOpenAI(
    model={_text(server.model.name)},
    base_url={_text(server.url)},
    api_key={_python_key(server)},
)
print(model.invoke("Hello!").content)
""",
    )


def llamaindex(server: Server) -> tuple[str, str]:
    """LlamaIndex's class for servers of OpenAI's API, of the package llama-index-llms-openai-like."""
    context = server.model.context
    window = "" if context is None else f"    context_window={context},\n"
    return (
        "python",
        f"""\
{_import_os(server)}from llama_index.llms.openai_like import OpenAILike

model = OpenAILike(
    model={_text(server.model.name)},
    api_base={_text(server.url)},
    api_key={_python_key(server)},
    is_chat_model=True,
    is_function_calling_model=True,
{window})
print(model.complete("Hello!"))
""",
    )


def aisdk(server: Server) -> tuple[str, str]:
    """The AI SDK with its provider for OpenAI, of the packages ai and @ai-sdk/openai."""
    key = f"process.env.{VARIABLE}" if server.needs_key else '"none"'
    return (
        "js",
        f"""\
import {{ createOpenAI }} from "@ai-sdk/openai";
import {{ generateText }} from "ai";

const unilect = createOpenAI({{ baseURL: {_text(server.url)}, apiKey: {key} }});
const {{ text }} = await generateText({{ model: unilect({_text(server.model.name)}), prompt: "Hello!" }});
console.log(text);
""",
    )


def openai_agents(server: Server) -> tuple[str, str]:
    """The Agents SDK, of the package openai-agents; its traces would go to OpenAI."""
    return (
        "python",
        f"""\
{_import_os(server)}from agents import Agent, Runner, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url={_text(server.url)}, api_key={_python_key(server)})
set_default_openai_client(client, use_for_tracing=False)
set_tracing_disabled(True)
agent = Agent(name="Assistant", model={_text(server.model.name)})
print(Runner.run_sync(agent, "Hello!").final_output)
""",
    )


def pydantic_ai(server: Server) -> tuple[str, str]:
    """Pydantic AI with its model for OpenAI's Responses, of the package pydantic-ai-slim[openai]."""
    return (
        "python",
        f"""\
{_import_os(server)}from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(
    base_url={_text(server.url)},
    api_key={_python_key(server)},
)
agent = Agent(OpenAIResponsesModel({_text(server.model.name)}, provider=provider))
print(agent.run_sync("Hello!").output)
""",
    )


def _import_os(server: Server) -> str:
    return "import os\n\n" if server.needs_key else ""


def _python_key(server: Server) -> str:
    return f'os.environ["{VARIABLE}"]' if server.needs_key else '"none"'


def _text(value: str) -> str:
    """A text as a literal of Python and of JavaScript."""
    return json.dumps(value)
