"""
Reads a model's folder without torch: its task, its context size, and whether it can be loaded.

Source: https://huggingface.co/docs/transformers/main_classes/configuration; https://sbert.net (modules.json, pooling);
https://huggingface.co/docs/safetensors (the head of a file)
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from unilect.api.parameters.support import names
from unilect.core.errors import ConfigError, join_names
from unilect.engines.transformers.model.rope import reach
from unilect.hub.repository_files import ggufs

_WHOLE_LAYERS = names("modules_to_save trainable_token_indices target_parameters layer_replication")
_OTHER_KINDS = ("use_dora", "use_qalora", "use_bdlora", "lora_bias", "alora_invocation_tokens")
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "n_ctx")
_WIDTH_NAMES = ("hidden_size", "n_embd", "d_model")
#: Keys and values that are compressed, shared by heads or by layers, or no keys and values at all.
_OTHER_CACHES = names(
    "kv_lora_rank multi_query multi_query_attention num_kv_shared_layers layers_block_type"
)
#: Bytes of a weight as safetensors names its type; of packed ones nothing is known.
_STORED = {"F32": 4, "F16": 2, "BF16": 2}
_MAX_HEAD_BYTES = 100_000_000  # safetensors' own limit
_CLASSIFIER = "ForSequenceClassification"
_QWEN3_RERANKER = re.compile(r"^# Qwen3-Reranker", re.MULTILINE)
_MAX_CARD = 64 * 1024  # of a model card, that are looked through
_TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")
#: Families that number positions from the one behind the padding's id on, so that the first ones are never used.
_POSITIONS_AFTER_PADDING = names(
    "roberta xlm-roberta xlm-roberta-xl camembert mpnet longformer data2vec-text"
)
#: What sentence-transformers puts behind a model that is done here, too.
_MODULES = ("Transformer", "Pooling", "Normalize")
_POOLING = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}


class _Tensor(Struct):
    """The entry of one tensor in a safetensors header."""

    dtype: str = ""
    data_offsets: tuple[int, int] = (0, 0)


class Folder(Struct, frozen=True):
    """
    A model's folder.

    Attributes:
        text_config: What `config.json` says of the part that reads text.
        positions: The positions that it names; a context may reach further.
        context: The most tokens that the model was made for.
        generates: It writes text, or has the layers for that; else it only embeds, or ranks.
        ranks: It is a reranker: one that has learnt to read a `pair` of texts, or Qwen's; empty for any other.
        pooling: How it wants to be pooled for embeddings, where it says so.
        size_bytes: Of its weights.
        stored_bytes: Of one weight.
        embedding_values: Numbers of its embeddings; 0 where that is not known.
        tied: Its output is the embeddings once more, or it has none.
        cache_values: Numbers that a token leaves in the KV cache; 0 where that is not known.
        own_code: It brings code of its own.
        pickled: Its weights are pickles only.
        template: Its chat template; empty where it has none.
    """

    path: Path
    text_config: dict[str, Any]
    positions: int
    context: int
    generates: bool
    ranks: Literal["", "pair", "qwen3"]
    pooling: Literal["mean", "cls", "last"] | None
    size_bytes: int
    stored_bytes: int
    embedding_values: int
    tied: bool
    cache_values: int
    own_code: bool
    pickled: bool
    template: str


def read_folder(path: Path) -> Folder:
    """
    Look into a folder.

    Raises:
        ConfigError: It holds no model.
    """
    config = _json(path / "config.json", "is not a transformers model")
    safe = _weights(path)
    pickles = sorted(path.glob("pytorch_model*.bin"))
    if not safe and not pickles:
        raise ConfigError(
            f"{path}: has a config.json and no weights (*.safetensors). Fetch them, or convert those of another format to safetensors."
        )
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    assert isinstance(text, dict)
    lengths = [text[name] for name in _CONTEXT_NAMES if isinstance(text.get(name), int)]
    if lengths and config.get("model_type") in _POSITIONS_AFTER_PADDING:
        lengths[0] -= (text.get("pad_token_id", 1) or 0) + 1
    names = [str(name) for name in config.get("architectures") or ()]
    _check_modules(path)
    pooling = _pooling(path)
    writes = any(
        name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")) for name in names
    )
    own_class = "AutoModelForCausalLM" in (config.get("auto_map") or {})
    positions = lengths[0] if lengths else 2048
    generates = writes or own_class
    return Folder(
        path,
        text,
        positions,
        reach(text, positions),
        generates,
        _ranks(path, config, names),
        pooling,
        sum(file.stat().st_size for file in safe or pickles),
        _bytes_per_weight(safe, text),
        _number(text, "vocab_size") * _number(text, *_WIDTH_NAMES),
        bool(text.get("tie_word_embeddings", True)) or not generates,
        cache_values(text),
        bool(config.get("auto_map")),
        not safe,
        own_template(path),
    )


def _ranks(
    path: Path, config: dict[str, Any], names: Sequence[str]
) -> Literal["", "pair", "qwen3"]:
    """
    Return the form in which a model reads the pairs that it ranks; empty where it does not rank.

    Qwen3-Reranker is recognised by its model card, for its configuration is that of any Qwen 3.
    """
    card = path / "README.md"
    if config.get("model_type") == "qwen3" and card.is_file():
        with card.open(errors="replace") as text:
            if _QWEN3_RERANKER.search(text.read(_MAX_CARD)):
                return "qwen3"
    labels = config.get("id2label")
    one = config.get("num_labels") == 1 or (isinstance(labels, dict) and len(labels) == 1)
    return "pair" if one and any(name.endswith(_CLASSIFIER) for name in names) else ""


def check_folder(path: Path, tokenizers: Sequence[Path] = ()) -> None:
    """
    All that can be seen of a folder before anything is installed for it, or loaded from it.

    Args:
        tokenizers: Folders whose tokenizer is used where they have one.

    Raises:
        ConfigError: It holds no model, or parts of it are missing or cut off.
    """
    if not (path / "config.json").exists():
        raise ConfigError(f"{path}: {_what_it_holds(path)}")
    folder = read_folder(path)
    for file in _weights(path):
        _check_weights(file)
    if not folder.own_code and not any(map(has_tokenizer, [path, *tokenizers])):
        raise ConfigError(
            f"{path}: holds a model and no tokenizer (no tokenizer.json, tokenizer.model or vocab file). Copy the "
            "tokenizer's files there, or name their folder with `tokenizer` in the model's configuration."
        )


def _what_it_holds(path: Path) -> str:
    """Describe the contents of a folder without a config.json, and what can be done, as sentences."""
    files = sorted(file.name for file in path.iterdir())
    models = ggufs(files)
    if not files:
        return (
            "this folder is empty. Name a transformers folder (config.json, *.safetensors and a tokenizer), or a "
            "GGUF file."
        )
    if len(models) == 1:
        return f"this folder is not a transformers model; it contains {models[0]}. Name that file: {path / models[0]}."
    if models:
        return f"this folder holds GGUF files: {join_names(models)}. Name one of them, such as {path / models[0]}."
    if "adapter_config.json" in files:
        return (
            "this folder is a LoRA adapter, not a model. Name its base model as the source, and this folder as "
            "`lora`."
        )
    inner = sorted(str(file.parent) for file in path.glob("*/config.json"))
    rest = f" Its folders hold models: {join_names(inner, 5)}." if inner else ""
    return (
        "this folder is not a transformers model (no config.json). Name a folder with config.json, *.safetensors and a "
        f"tokenizer, or a GGUF file.{rest}"
    )


def _check_weights(file: Path) -> None:
    """
    Raises:
        ConfigError: A file of safetensors is not as long as its head says, or has none.
    """
    if file.suffix != ".safetensors":
        return
    size = file.stat().st_size
    with file.open("rb") as weights:
        length = int.from_bytes(weights.read(8), "little")
    tensors = _head(file) if 8 + length <= size else []
    wanted = 8 + length + max((tensor.data_offsets[1] for tensor in tensors), default=0)
    if not tensors:
        raise ConfigError(
            f"{file}: not a valid safetensors file: its header cannot be read. Fetch it again."
        )
    if size != wanted:
        raise ConfigError(
            f"{file}: is incomplete: it has {size} bytes, and its header declares {wanted}. Fetch it again; a download "
            "may have been cut off."
        )


def _weights(path: Path) -> list[Path]:
    """The files that are loaded; what lies beside them (`consolidated.safetensors`) is the same once more."""
    if (whole := path / "model.safetensors").exists():
        return [whole]
    index = path / "model.safetensors.index.json"
    named = _json(index, "has no index").get("weight_map") if index.exists() else None
    parts = {path / str(name) for name in named.values()} if isinstance(named, dict) else set()
    return sorted(filter(Path.exists, parts)) or sorted(path.glob("*.safetensors"))


def _bytes_per_weight(files: list[Path], config: dict[str, Any]) -> int:
    """Bytes of one weight: as most of the first file has them, else as the configuration says, which often says nothing."""
    sizes: dict[str, int] = {}
    for tensor in _head(files[0]) if files else ():
        begin, end = tensor.data_offsets
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + end - begin
    if sizes:
        return _STORED.get(max(sizes, key=lambda dtype: sizes[dtype]), 2)
    return 4 if (config.get("dtype") or config.get("torch_dtype")) == "float32" else 2


def _head(file: Path) -> list[_Tensor]:
    """The tensors of a file; none where it is broken, which is told when it is loaded."""
    with file.open("rb") as weights:
        length = int.from_bytes(weights.read(8), "little")
        head = weights.read(min(length, _MAX_HEAD_BYTES))
    try:
        named = msgspec.json.decode(head, type=dict[str, _Tensor])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    return [tensor for name, tensor in named.items() if name != "__metadata__"]


def cache_values(config: dict[str, Any]) -> int:
    """
    The numbers that a token leaves in the KV cache of a model: for each layer and head a key and a value.

    Args:
        config: Of the text model.

    Returns:
        0 where the model keeps something else, or is not told in words that are known.
    """
    if any(config.get(name) for name in _OTHER_CACHES):
        return 0
    layers = _number(config, "num_hidden_layers", "n_layer", "num_layers")
    heads = _number(config, "num_attention_heads", "n_head")
    shared = _number(config, "num_key_value_heads", "num_kv_heads") or heads
    width = _number(config, "head_dim") or _number(config, *_WIDTH_NAMES) // max(1, heads)
    return 2 * layers * shared * width


def _number(config: dict[str, Any], *names: str) -> int:
    """Return the number that a configuration has under one of these names; 0 where it has none."""
    return next((config[name] for name in names if isinstance(config.get(name), int)), 0)


def must_merge(adapter: Path) -> bool:
    """
    True where an adapter is more than factors beside linear layers, and has to be merged into the weights.

    Raises:
        ConfigError: The folder holds no adapter.
    """
    if adapter.is_file():
        raise ConfigError(
            f"lora: {adapter} is a file, and an adapter for a transformers model is a peft folder (adapter_config.json "
            "and adapter_model.safetensors). Name that folder; an adapter in GGUF form goes with a GGUF model."
        )
    if not adapter.exists():
        raise ConfigError(f"lora: {adapter}: no such folder. Check the path.")
    config = _json(adapter / "adapter_config.json", "is not a PEFT LoRA adapter")
    if not (adapter / "adapter_model.safetensors").exists():
        raise ConfigError(
            f"lora: {adapter} has no adapter_model.safetensors; pickled adapters are not supported. Save it as safetensors."
        )
    if config.get("peft_type") != "LORA":
        raise ConfigError(
            f"lora: {adapter} is {config.get('peft_type')}, and not LORA. Name a LoRA adapter."
        )
    bias = config.get("bias", "none") != "none"
    return bias or any(config.get(name) for name in (*_WHOLE_LAYERS, *_OTHER_KINDS))


def _json(file: Path, otherwise: str, type: Any = dict[str, Any]) -> Any:
    try:
        return msgspec.json.decode(file.read_bytes(), type=type)
    except FileNotFoundError as error:
        raise ConfigError(f"{file.parent}: {otherwise} (no {file.name}).") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read as JSON. Fetch it again.") from error


def _pooling(path: Path) -> Literal["mean", "cls", "last"] | None:
    file = path / "1_Pooling" / "config.json"
    if not file.exists():
        return None
    config = _json(file, "holds no pooling")
    wanted = [name for name, value in config.items() if name.startswith("pooling_mode_") and value]
    if any(name not in _POOLING for name in wanted) or len(wanted) > 1:
        raise ConfigError(
            f"{path}: its embeddings are pooled by {', '.join(wanted)}; known are one of {', '.join(_POOLING)}."
        )
    return _POOLING[wanted[0]] if wanted else None  # type: ignore[return-value]


def _check_modules(path: Path) -> None:
    """
    Raises:
        ConfigError: Embeddings of this folder go through layers that are not known here; without them they would be others.
    """
    file = path / "modules.json"
    if not file.exists():
        return
    modules = _json(file, "holds no modules", list[dict[str, Any]])
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if unknown := next((kind for kind in kinds if kind not in _MODULES), None):
        raise ConfigError(
            f"{path}: its embeddings go through a layer of the kind {unknown}, which is not known here. Serve it with the software that it was made for."
        )


def has_tokenizer(path: Path) -> bool:
    """True for a folder that holds a tokenizer."""
    return any(next(path.glob(pattern), None) is not None for pattern in _TOKENIZERS)


def own_template(path: Path) -> str:
    """The chat template that a folder brings; empty where it brings none."""
    file = path / "chat_template.jinja"
    if file.exists():
        return file.read_text(errors="replace")
    if not (path / "tokenizer_config.json").exists():
        return ""
    given = _json(path / "tokenizer_config.json", "has no tokenizer").get("chat_template") or ""
    if isinstance(given, list):  # several by name, as older folders have them
        named = {one.get("name"): one.get("template") for one in given if isinstance(one, dict)}
        return one_template(named)
    return given if isinstance(given, str) else ""


def one_template(named: Mapping[Any, Any]) -> str:
    """Several templates by name as one, which does what transformers does with them: `tool_use` is for requests with tools."""
    texts = {name: text.removesuffix("\n") for name, text in named.items() if isinstance(text, str)}
    default, tool_use = texts.get("default", ""), texts.get("tool_use", "")
    if not default or not tool_use:
        return default or tool_use
    return f"{{% if tools is not none %}}\n{tool_use}{{% else %}}\n{default}{{% endif %}}"
