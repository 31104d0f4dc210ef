"""The programs with which client libraries use a server, as short as they run."""

import json

from unilect.web.connect.lines import VARIABLE, Server

#: LangChain's chat model for OpenAI, of the package langchain-openai.
LANGCHAIN = """\
from langchain_openai import ChatOpenAI

model = ChatOpenAI(
    model={model},
    base_url={url},
    api_key={key},
)
print(model.invoke("Hello!").content)
"""
#: LlamaIndex's class for servers of OpenAI's API, of the package llama-index-llms-openai-like.
LLAMAINDEX = """\
from llama_index.llms.openai_like import OpenAILike

model = OpenAILike(
    model={model},
    api_base={url},
    api_key={key},
    is_chat_model=True,
    is_function_calling_model=True,
{window})
print(model.complete("Hello!"))
"""
#: The AI SDK with its provider for OpenAI, of the packages ai and @ai-sdk/openai.
AISDK = """\
import {{ createOpenAI }} from "@ai-sdk/openai";
import {{ generateText }} from "ai";

const unilect = createOpenAI({{ baseURL: {url}, apiKey: {js_key} }});
const {{ text }} = await generateText({{ model: unilect({model}), prompt: "Hello!" }});
console.log(text);
"""
#: The Agents SDK, of the package openai-agents; its traces would go to OpenAI.
OPENAI_AGENTS = """\
from agents import Agent, Runner, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url={url}, api_key={key})
set_default_openai_client(client, use_for_tracing=False)
set_tracing_disabled(True)
agent = Agent(name="Assistant", model={model})
print(Runner.run_sync(agent, "Hello!").final_output)
"""
#: Pydantic AI with its model for OpenAI's Responses, of the package pydantic-ai-slim[openai].
PYDANTIC_AI = """\
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(
    base_url={url},
    api_key={key},
)
agent = Agent(OpenAIResponsesModel({model}, provider=provider))
print(agent.run_sync("Hello!").output)
"""


def fill(program: str, server: Server) -> str:
    """Put a server into a program."""
    context = server.model.context
    keys = f'os.environ["{VARIABLE}"]', f"process.env.{VARIABLE}"
    key, js_key = keys if server.needs_key else ('"none"', '"none"')
    imports = "import os\n\n" if "{key}" in program and server.needs_key else ""
    return imports + program.format(
        model=json.dumps(server.model.name),  # a literal of Python and of JavaScript
        url=json.dumps(server.url),
        key=key,
        js_key=js_key,
        window="" if context is None else f"    context_window={context},\n",
    )
