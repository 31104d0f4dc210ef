"""
Names of options in other servers, with what stands for them here: one table for configuration files and for the command line.

Sources: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md; https://docs.vllm.ai/en/latest/cli/serve/;
https://github.com/ollama/ollama/blob/main/docs/modelfile.md; https://localai.io/advanced/; https://github.com/mostlygeek/llama-swap
"""

from collections.abc import Container

#: our option -> its names elsewhere
_OPTIONS = {
    "accelerator": "gpu_type",
    "aliases": "alias served_model_name model_alias",
    "allowed_origins": "cors cors_origins cors_allow_origins allow_origins origins",
    "api_keys": "api_key keys auth_token",
    "base": "preset preset_of parent",
    "batch": "n_batch batch_size b ub n_ubatch ubatch_size max_num_batched_tokens",
    "cache_ram_mib": "cache_ram cram prompt_cache",
    "cache_type_k": "ctk type_k kv_cache_dtype kv_cache_type",
    "cache_type_v": "ctv type_v",
    "chat_template": "template prompt_template chat_format prompt_format chat_template_file",
    "command": "cmd",
    "context": "c n_ctx num_ctx ctx ctx_size context_size context_length context_window max_model_len max_seq_len max_context",
    "device": "tensor_parallel_size tp gpus num_gpus dev cuda_device",
    "draft_max": "draft draft_n spec_draft_n_max num_speculative_tokens draft_num_predict",
    "environment": "env",
    "fallback": "fallbacks",
    "gpu_layers": "ngl n_gpu_layers num_gpu_layers num_gpu n_gpu",
    "hang_timeout_s": "hang_timeout",
    "health": "check_endpoint health_check",
    "host": "bind address listen hostname listen_address",
    "idle_stop_s": "ttl keep_alive keepalive idle_timeout sleep_idle_seconds unload_after",
    "log_level": "loglevel verbosity verbose debug lv log_verbosity uvicorn_log_level",
    "lora": "loras adapter adapters lora_path lora_adapter lora_modules lora_scaled",
    "main_gpu": "mg",
    "max_age_days": "max_age ttl retention",
    "max_queue": "queue queue_size max_queue_size",
    "max_size_mib": "max_size max_bytes",
    "mmproj": "mm mmproj_url mmproj_file projector clip_model_path",
    "parallel": "np n_parallel num_parallel slots max_num_seqs max_running_requests concurrency",
    "port": "listen_port",
    "quantize": "quantization load_8bit load_4bit load_in_8bit load_in_4bit",
    "queue_timeout_s": "queue_timeout",
    "repack": "no_repack nr no_extra_bufts",
    "requests_per_minute": "rpm rate_limit requests_per_min",
    "rope_scaling": "rope_scale rope_freq_base rope_freq_scale",
    "shutdown_grace_s": "shutdown_timeout grace grace_period",
    "source": "path file url base_url model_path model_file gguf",
    "speculative": "draft_model model_draft md speculative_model speculative_config spec_type",
    "split_mode": "sm",
    "start_timeout_s": "start_timeout load_timeout startup_timeout health_check_timeout",
    "stop_command": "cmd_stop",
    "stop": "stop_words stop_sequences reverse_prompt",
    "system": "system_prompt system_message sys",
    "tensor_split": "ts",
    "threads": "t n_threads num_thread num_threads cpu_threads threads_batch tb",
    "timeout_s": "timeout request_timeout read_timeout",
    "tls_cert": "ssl_certfile ssl_cert_file ssl_cert cert certfile",
    "tls_key": "ssl_keyfile ssl_key_file ssl_key keyfile",
    "tokens_per_day": "tpd",
    "tokens_per_minute": "tpm",
    "unlisted": "hidden",
    "watch": "auto_reload hot_reload watch_config",
}
_MEANT: dict[str, list[str]] = {}
for _ours, _names in _OPTIONS.items():
    for _name in _names.split():
        _MEANT.setdefault(_name, []).append(_ours)
#: a parameter of requests -> its names elsewhere
_PARAMETERS = {
    "enable_thinking": "thinking think reasoning enable_reasoning rea",
    "frequency_penalty": "freq_penalty",
    "max_tokens": "num_predict predict n max_completion",
    "repeat_penalty": "rep_penalty",
    "temperature": "temp",
    "thinking_budget_tokens": "reasoning_budget thinking_budget",
}
_MEANT_PARAMETER = {name: ours for ours, names in _PARAMETERS.items() for name in names.split()}

_DRAFT = "`speculative` and `draft_max` are all that is set of speculative decoding: leave it out"
_GPU_MEMORY = "a model takes what it needs: `context`, `parallel` and `gpu_layers` decide how much memory that is"
_TOOLS = "tool calls work with every model, and need no parser of their own: leave it out"
_MMAP = "model files are mapped into memory: leave it out"
#: A name elsewhere -> why there is no such option here, and what to do, as the rest of a sentence.
_ABSENT = {
    **dict.fromkeys((
        "draft_min", "draft_p_min", "spec_draft_n_min", "spec_draft_p_min", "spec_draft_ngl",
        "ngld", "gpu_layers_draft", "n_gpu_layers_draft", "ctx_size_draft", "cd", "device_draft", "devd", "spec_replace",
        "lookup_cache_static", "lookup_cache_dynamic"), _DRAFT),
    **dict.fromkeys(("hf_repo_draft", "hfd"), "download the draft model, and name its path in `speculative`"),
    **dict.fromkeys(("gpu_memory_utilization", "mem_fraction_static", "swap_space", "cpu_offload_gb", "fit"), _GPU_MEMORY),
    **dict.fromkeys(("enable_auto_tool_choice", "tool_call_parser", "tools"), _TOOLS),
    "reasoning_format": "a request may have it; answers have thoughts apart anyway: leave it out",
    "jinja": "chat templates are always Jinja: leave it out",
    **dict.fromkeys(("flash_attn", "fa"), "flash attention is used where llama.cpp has it: leave it out"),
    **dict.fromkeys(("mlock", "mmap", "no_mmap", "use_mmap", "use_mlock", "direct_io"), _MMAP),
    **dict.fromkeys(("cont_batching", "cb", "continuous_batching"), "requests are always batched as they come: leave it out"),
    "no_context_shift": "an answer ends where the context is full, unless `context_shift` is set: leave it out",
    **dict.fromkeys(("enable_prefix_caching", "cache_reuse", "swa_full", "slot_prompt_similarity", "sps"), "prompts are cached without it (`cache_ram_mib`, `share_cache`): leave it out"),
    **dict.fromkeys(("kv_unified", "kvu"), "each request has a context of its own: leave it out, and `parallel`, too, for as many as there is memory for"),
    "enforce_eager": "there are no CUDA graphs to leave out: leave it out",
    **dict.fromkeys(("embedding", "embeddings", "embed"), "/v1/embeddings is always served: leave it out"),
    **dict.fromkeys(("rerank", "reranking"), "a reranker is told by its file, or by `pooling = \"rank\"`: leave it out"),
    **dict.fromkeys(("metrics", "prometheus"), "/metrics is always served: leave it out"),
    **dict.fromkeys(("props", "endpoints"), "it is always served as far as it is here: leave it out"),
    **dict.fromkeys(("webui", "no_webui", "ui", "no_ui", "webui_config"), "every server has a page, which `page = false` turns off: leave it out"),
    **dict.fromkeys(("warmup", "no_warmup"), "engines are ready when the server answers: leave it out"),
    **dict.fromkeys(("log_file", "log_disable", "disable_log_requests", "disable_log_stats", "access_log"), "the log goes to stderr; `log_level` says how much"),
    **dict.fromkeys(("models_path", "models_dir"), "a folder of GGUF files is the `source` of a model's table with `model = \"*\"`"),
    **dict.fromkeys(("download_dir", "cache_dir"), "models of the hub are in the hub's own cache: set HF_HOME"),
    "models_max": "leave it out: a model is stopped after its `idle_stop_s`",
    **dict.fromkeys(("galleries", "preload_models", "modelfile", "adapter_path"), "there is no gallery: name each model by its path, or as gguf:org/repo/file.gguf"),
    **dict.fromkeys(("hf_token", "hft", "token"), "the hub's own variable has it: set HF_TOKEN"),
    "revision": "`main` is fetched: for another revision download the file, and name its path",
    **dict.fromkeys(("workers", "threads_http", "api_server_count", "data_parallel_size"), "one process answers all requests: leave it out"),
    **dict.fromkeys(("root_path", "api_prefix", "base_path"), "the paths are fixed: let a proxy change them"),
    **dict.fromkeys(("daemon", "detach", "background"), "the server runs in the foreground: use systemd (deploy/), tmux, or `nohup unilect serve ... &`"),
    **dict.fromkeys(("proxy", "macros", "groups"), "`unilect config import FILE` makes a configuration of llama-swap's"),
    **dict.fromkeys(("n_cpu_moe", "ncmoe", "cpu_moe", "cmoe", "override_tensor", "ot"), "layers are placed by `gpu_layers` alone: lower it"),
    **dict.fromkeys(("grammar", "grammar_file", "json_schema", "j"), "a grammar or a schema comes with a request (`response_format`)"),
}  # fmt: skip


def options_meant(name: str) -> list[str]:
    """Return our options that other servers know by this name, the likeliest first."""
    return _MEANT.get(name.lower(), [])


def option_meant(name: str, among: Container[str]) -> str:
    """Return the one of some options that other servers know by this name; empty for none."""
    return next((ours for ours in options_meant(name) if ours in among), "")


def parameter_meant(name: str) -> str:
    """Return the parameter of requests that other servers know by this name; empty for none."""
    return _MEANT_PARAMETER.get(name.lower(), "")


def why_absent(name: str) -> str:
    """Return why there is no option of this name of another server, and what to do; empty where nothing is known of it."""
    name = name.lower()
    return _ABSENT.get(name) or _ABSENT.get(name.removeprefix("no_"), "")
