"""
LiteLLM's configuration of its proxy, a YAML file: deployments by name, settings, a master key.

Source: https://docs.litellm.ai/docs/proxy/config_settings
"""

from typing import Any

from unilect.cli.imports._draft import Draft
from unilect.config.hints import parameters

#: provider -> its address where an entry names none; those with OpenAI's API
_PROVIDERS = {
    "openai": "https://api.openai.com/v1",
    "text-completion-openai": "https://api.openai.com/v1",
    "hosted_vllm": "",
    "vllm": "",
    "openai_like": "",
    "custom_openai": "",
    "litellm_proxy": "",
    "lm_studio": "http://127.0.0.1:1234/v1",
    "llamafile": "http://127.0.0.1:8080/v1",
    "ollama": "http://127.0.0.1:11434/v1",
    "ollama_chat": "http://127.0.0.1:11434/v1",
    "groq": "https://api.groq.com/openai/v1",
    "mistral": "https://api.mistral.ai/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "together_ai": "https://api.together.xyz/v1",
    "fireworks_ai": "https://api.fireworks.ai/inference/v1",
    "xai": "https://api.x.ai/v1",
    "cerebras": "https://api.cerebras.ai/v1",
}
#: Providers with an API of their own, which an address does not change.
_OTHERS = frozenset((
    "ai21", "anthropic", "azure", "azure_ai", "azure_text", "bedrock", "clarifai", "cloudflare", "cohere", "cohere_chat", "databricks", "gemini",
    "github_copilot", "huggingface", "nlp_cloud", "palm", "petals", "predibase", "replicate", "sagemaker", "sagemaker_chat", "snowflake",
    "triton", "vertex_ai", "vertex_ai_beta", "watsonx",
))  # fmt: skip
_OLLAMA = ("ollama", "ollama_chat")
_COSTS = {
    "input_cost_per_token": "prompt",
    "cache_read_input_token_cost": "cached",
    "output_cost_per_token": "completion",
}
_MAX_SOURCES = 500  # of a model
_TOKENS = 1_000_000  # that prices are for
_LIMITS = {
    "rpm": "requests_per_minute",
    "tpm": "tokens_per_minute",
    "max_parallel_requests": "parallel",
}


def read(data: dict[str, Any], draft: Draft) -> None:
    """Take in all of a file."""
    settings = draft.mapping(data.pop("litellm_settings", None), "litellm_settings")
    router = draft.mapping(data.pop("router_settings", None), "router_settings")
    general = draft.mapping(data.pop("general_settings", None), "general_settings")
    names: dict[str, str] = {}
    for number, value in enumerate(draft.items(data.pop("model_list", None), "model_list")):
        _add(draft.mapping(value, f"model_list[{number}]"), number, names, draft)
    _apply_settings(settings, draft)
    for where, found in (("litellm_settings", settings), ("router_settings", router)):
        for entry in draft.items(found.pop("fallbacks", None), f"{where}.fallbacks"):
            for name, others in draft.mapping(entry, f"{where}.fallbacks").items():
                _set_fallbacks(name, draft.items(others, f"{where}.fallbacks.{name}"), names, draft)
    for alias, value in draft.mapping(router.pop("model_group_alias", None), "model_group_alias").items():  # fmt: skip
        target = value.get("model") if isinstance(value, dict) else value
        if isinstance(target, str) and target in names:
            table = draft.models[names[target]]
            table.setdefault("aliases", []).append(alias)
        else:
            draft.remark(f"router_settings.model_group_alias.{alias}: there is no such model here.")
    if key := general.pop("master_key", None):
        draft.server["api_keys"] = [draft.key(key, "general_settings.master_key")]
    draft.absent(settings, "litellm_settings.")
    draft.absent(router, "router_settings.")
    draft.absent(general, "general_settings.")
    for name in draft.mapping(data.pop("environment_variables", None), "environment_variables"):
        draft.remark(f"environment_variables.{name}: set it for unilect.")
    draft.absent(data, "")


def _add(entry: dict[str, Any], number: int, names: dict[str, str], draft: Draft) -> None:
    """Take in a deployment: a model, or another source of one."""
    where = f"model_list[{number}]"
    params = draft.mapping(entry.pop("litellm_params", None), f"{where}.litellm_params")
    info = draft.mapping(entry.pop("model_info", None), f"{where}.model_info")
    model = draft.text(params.pop("model", None), f"{where}.litellm_params.model")
    name = draft.text(entry.pop("model_name", None), f"{where}.model_name") or model
    base = draft.text(params.pop("api_base", None) or params.pop("base_url", None), f"{where}.api_base")  # fmt: skip
    provider, slash, rest = model.partition("/")
    if not slash or provider not in _PROVIDERS:
        foreign = slash and (not base or provider in _OTHERS)
        provider, rest = (provider if foreign else "openai"), model
    if not name or provider not in _PROVIDERS or not (base or _PROVIDERS[provider]):
        why = "has no `api_base`" if provider in _PROVIDERS else f"{provider[:64]} has an API of its own, and no server here speaks it"  # fmt: skip
        draft.leave_out(f"{name or where}", f"{where} ({model[:128]}): {why}.")
        return
    base, missing = draft.put_in(base.strip())
    if missing:
        why = f"{where}.litellm_params.api_base: the variable {missing[0]} is not set here."
        draft.leave_out(name, why)
        return
    source = base.rstrip("/") or _PROVIDERS[provider]
    if provider in _OLLAMA and not source.endswith("/v1"):
        source += "/v1"
    table: dict[str, Any] = {"source": source, "model": rest}
    key = draft.key(params.pop("api_key", None), f"{where}.api_key")
    if not (key or base) and source.startswith("https:"):
        key = f"${provider.removeprefix('text-completion-').upper()}_API_KEY"
    table |= {"api_key": key} if key else {}
    limits = _numbers(params, _LIMITS, f"{where}.litellm_params", draft)
    if seconds := draft.number(params.pop("timeout", None), f"{where}.timeout"):
        table["timeout_s"] = seconds
    prices = _numbers(params, _COSTS, where, draft) | _numbers(info, _COSTS, where, draft)
    own = {param: params.pop(param) for param in sorted(params.keys() & parameters())}
    table |= {"limits": {one: int(most) for one, most in limits.items()}} if limits else {}
    table |= {"price": {one: round(cost * _TOKENS, 9) for one, cost in prices.items()}} if prices else {}  # fmt: skip
    table |= {"defaults": own} if own else {}
    made = _put(name, table, names, draft)
    draft.absent(params, f"{where}.litellm_params.", made)
    draft.absent([one for one in info if one not in ("id", "mode")], f"{where}.model_info.", made)
    draft.absent(entry, f"{where}.", made)


def _numbers(
    given: dict[str, Any], meant: dict[str, str], where: str, draft: Draft
) -> dict[str, float]:
    """Take the numbers of some names out of a table, by their names here."""
    found: dict[str, float] = {}
    for theirs, ours in meant.items():
        if (number := draft.number(given.pop(theirs, None), f"{where}.{theirs}")) is not None:
            found[ours] = number
    return found


def _put(name: str, table: dict[str, Any], names: dict[str, str], draft: Draft) -> str:
    """
    Take a table in; returns its name. Of a model that is there already it is another source where all else is alike, and else a model
    that answers after it.
    """
    if table["model"] == "*" or name == "*":
        made = draft.add(name.replace("*", "").strip("/") or "all", table | {"model": "*"})
        draft.remark(f"{name[:128]}: its models have their own names here.", made)
        names.setdefault(name, made)
        return made
    if name not in names:
        names[name] = draft.add(name, table)
        return names[name]
    at = names[name]
    while True:
        known = draft.models[at]
        shared = ("source", "limits", "fallback")
        if all(known.get(one) == table.get(one) for one in {*known, *table} - {*shared}):
            if not isinstance(known["source"], list):
                known["source"] = [known["source"]]
            if len(known["source"]) >= _MAX_SOURCES:
                draft.leave_out(name, f"it has more than {_MAX_SOURCES}.")
                return at
            known["source"].append(table["source"])
            for one, most in table.get("limits", {}).items():
                known["limits"] = known.get("limits", {}) | {one: known.get("limits", {}).get(one, 0) + most}  # fmt: skip
            return at
        if "fallback" not in known:
            break
        at = known["fallback"]
    made = draft.add(name, table | {"unlisted": True})
    draft.models[at]["fallback"] = made
    draft.remark(f"answers where {at} cannot: sources of one model have one `model` and one `api_key` here, so requests are not spread over both.", made)  # fmt: skip
    return made


def _apply_settings(settings: dict[str, Any], draft: Draft) -> None:
    """Set what holds for all models."""
    drops = settings.pop("drop_params", None) is True
    seconds = draft.number(settings.pop("request_timeout", None), "litellm_settings.request_timeout")  # fmt: skip
    for table in draft.models.values():
        if drops:
            table["unsupported"] = "report"
        if seconds and seconds > 0:
            table.setdefault("timeout_s", seconds)


def _set_fallbacks(name: str, others: list[Any], names: dict[str, str], draft: Draft) -> None:
    """Set the fallback of a model, behind those of its own that it has already."""
    if name not in names:
        draft.remark(f"fallbacks.{name[:128]}: there is no such model here.")
        return
    at, seen = names[name], {names[name]}
    for other in others:
        if not isinstance(other, str) or other not in names or names[other] in seen:
            draft.remark(f"fallbacks.{name[:128]}: {str(other)[:128]} is no other model here.")
            continue
        while (after := draft.models[at].get("fallback")) is not None and after not in seen:
            seen.add(after)
            at = after
        if names[other] in seen:
            continue
        draft.models[at]["fallback"] = names[other]
        at = names[other]
        seen.add(at)
