"""
The bytes that each layer of a GGUF model keeps of a request: keys and values, of the whole context or of a window, and recurrent state.

Source: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-hparams.cpp
"""

from functools import lru_cache
from itertools import compress
from math import inf
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:  # the child does not need it, and is to start soon
    from unilect.engines.gguf._file import GgufHead

BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32, "q4_0": 18 / 32,
}  # fmt: skip
_CELLS = 256  # llama.cpp rounds up to so many
#: Of so many layers one sees the whole context, by architecture; 1 for those whose window llama.cpp does not use.
_PERIODS = {
    "afmoe": 4, "cohere2": 4, "cohere2moe": 4, "exaone-moe": 4, "exaone4": 4, "gemma-embedding": 6, "gemma2": 2, "gemma3": 6,
    "gemma3n": 5, "gpt-oss": 2, "laguna": 4, "llama": 1, "llama4": 4, "mellum": 4, "modern-bert": 3, "muse-glimmer": 4, "olmo2": 4,
    "phi3": 1, "plamo3": 8, "qwen2": 1, "qwen2moe": 1, "qwen3": 1, "qwen3moe": 1, "smallthinker": 4, "starcoder2": 1,
}  # fmt: skip
#: Architectures without windows whose layers are reckoned here; all keep keys and values, or a state, as their fields say.
_PLAIN = frozenset(
    [
        "apertus",
        "arcee",
        "baichuan",
        "bert",
        "bitnet",
        "bloom",
        "chatglm",
        "command-r",
        "deci",
        "deepseek",
        "deepseek2",
        "dots1",
        "ernie4_5",
        "ernie4_5-moe",
        "exaone",
        "falcon",
        "falcon-h1",
        "gemma",
        "glm4",
        "glm4moe",
        "gpt2",
        "gptneox",
        "granite",
        "granitehybrid",
        "granitemoe",
        "hunyuan-dense",
        "hunyuan-moe",
        "internlm2",
        "jais",
        "jamba",
        "jina-bert-v2",
        "jina-bert-v3",
        "lfm2",
        "lfm2moe",
        "llama",
        "mamba",
        "mamba2",
        "minicpm",
        "mistral3",
        "mpt",
        "nemotron",
        "nemotron_h",
        "nemotron_h_moe",
        "nomic-bert",
        "nomic-bert-moe",
        "olmo",
        "olmoe",
        "orion",
        "phi2",
        "plamo",
        "qwen",
        "qwen3next",
        "qwen35",
        "qwen35moe",
        "refact",
        "rwkv6",
        "rwkv6qwen2",
        "rwkv7",
        "arwkv7",
        "seed_oss",
        "smollm3",
        "stablelm",
        "starcoder",
        "xverse",
    ]
)
_UNKNOWN_PERIOD = 6  # an architecture that is not known counts for as little as any
_WINDOWS = {"gemma2": 4096, "llama4": 8192}  # where the file does not say
_INTERVAL = 4  # of Qwen's hybrids, of so many layers one has attention
_BOTH = "falcon-h1"  # each layer has attention and state


class Layers(Struct, frozen=True):
    """
    The bytes that all layers of a model keep.

    Attributes:
        whole: Bytes of each token of the context.
        windowed: Bytes of each token of the window.
        window: Its tokens; 0 for a model without one.
        state: Bytes of the recurrent state of a request.
        widest: Bytes of the state of one layer.
    """

    whole: float = 0.0
    windowed: float = 0.0
    window: int = 0
    state: int = 0
    widest: int = 0

    def slot(self, context: int, step: int) -> int:
        """Return bytes of a request with the whole context, where so many tokens are read in one step."""
        return int(self.whole * cells(context) + self.windowed * self._window_cells(context, step)) + self.state  # fmt: skip

    def checkpoint(self, context: int, step: int) -> int:
        """Return bytes of what llama.cpp copies of a request to come back to, since it cannot go back by itself."""
        return int(self.windowed * self._window_cells(context, step)) + self.state

    def _window_cells(self, context: int, step: int) -> int:
        return min(cells(context), cells(self.window + step))


@lru_cache(maxsize=16)  # both children of a model and its context ask, one after the other
def layers(head: "GgufHead", key_type: str, value_type: str) -> Layers:
    """Reckon the bytes that the layers of a model keep, with these types of keys and values; what is not known counts for nothing."""
    count = number(head, "block_count")
    heads, recurrent = _heads(head, count), _recurrent(head, count)
    has_keys = [True] * count if head.architecture == _BOTH else [not one for one in recurrent]
    for layer in range(max(0, count - number(head, "attention.shared_kv_layers")), count):
        has_keys[layer] = False
    window = number(head, "attention.sliding_window") or number(head, "attention.chunk_size")
    window = window or _WINDOWS.get(head.architecture, 0)
    behind = _window_layers(head, count) if window else [False] * count

    def per_token(flags: list[bool], suffix: str = "") -> float:
        key, value = (_width(head, what, suffix) for what in ("key", "value"))
        each = key * BYTES[key_type] + value * BYTES[value_type]
        return sum(compress(heads, flags)) * each

    whole = [has and not narrow for has, narrow in zip(has_keys, behind, strict=True)]
    narrow = [has and narrow for has, narrow in zip(has_keys, behind, strict=True)]
    widest = _state(head)
    return Layers(
        per_token(whole), per_token(narrow, "_swa"), window, widest * sum(recurrent), widest
    )


def is_known(head: "GgufHead") -> bool:
    """Return True if the layers of a model's architecture are reckoned here; of another one llama.cpp knows better."""
    return head.architecture in _PLAIN or head.architecture in _PERIODS


def cells(tokens: int) -> int:
    """Round a number of tokens up to the number that llama.cpp makes room for."""
    return -(-tokens // _CELLS) * _CELLS


def field(head: "GgufHead", name: str) -> Any:
    """Return a value of the architecture's own; None where the file has none."""
    return head.fields.get(f"{head.architecture}.{name}")


def number(head: "GgufHead", name: str) -> int:
    """Return a number of the architecture's own, of a list the largest; 0 where the file has none."""
    value = field(head, name)
    if isinstance(value, list):
        value = max((one for one in value if isinstance(one, int)), default=0)
    return value if isinstance(value, int) and value > 0 else 0


def _heads(head: "GgufHead", count: int) -> list[float]:
    """Heads of keys and values, layer by layer."""
    given = field(head, "attention.head_count_kv")
    if given is None:
        given = field(head, "attention.head_count")
    if isinstance(given, list):
        return ([*map(_of_heads, given)] + [0.0] * count)[:count]
    return [_of_heads(given)] * count


def _of_heads(told: Any) -> float:
    """Return a number of heads; 0 for what is none."""
    return float(told) if isinstance(told, int | float) and 0 <= told < inf else 0.0


def _window_layers(head: "GgufHead", count: int) -> list[bool]:
    """Which layers see a window only."""
    pattern = field(head, "attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return ([bool(one) for one in pattern] + [False] * count)[:count]
    period = number(head, "attention.sliding_window_pattern")
    period = period or _PERIODS.get(head.architecture, _UNKNOWN_PERIOD)
    return [layer % period < period - 1 for layer in range(count)]


def _recurrent(head: "GgufHead", count: int) -> list[bool]:
    """Which layers have a state."""
    if not _state(head):
        return [False] * count
    told = field(head, "attention.recurrent_layers")
    heads = field(head, "attention.head_count_kv")
    if isinstance(told, list):
        return ([bool(one) for one in told] + [False] * count)[:count]
    if isinstance(heads, list):
        wide = field(head, "feed_forward_length")  # a layer of Nemotron's is one of three kinds
        wide = wide if isinstance(wide, list) and head.architecture.startswith("nemotron_h") else []
        both = zip(heads, (wide + [0] * len(heads))[: len(heads)], strict=True)
        return ([not (one or other) for one, other in both] + [False] * count)[:count]
    interval = number(head, "full_attention_interval")
    if not interval and head.architecture.startswith(("qwen3next", "qwen35")):
        interval = _INTERVAL
    return [not interval or (layer + 1) % interval != 0 for layer in range(count)]


def _state(head: "GgufHead") -> int:
    """Return bytes of the state of one layer that has one."""
    width = number(head, "embedding_length")
    if step := number(head, "wkv.head_size"):
        return 4 * width * (step + (number(head, "token_shift_count") or 2))
    if reach := number(head, "shortconv.l_cache"):
        return 4 * width * (reach - 1)
    reach = max(0, number(head, "ssm.conv_kernel") - 1)
    if step := number(head, "kda.head_dim"):
        return 4 * step * number(head, "attention.head_count") * (3 * (reach or 3) + step)
    inner, size = number(head, "ssm.inner_size"), number(head, "ssm.state_size")
    return 4 * (reach * (inner + 2 * number(head, "ssm.group_count") * size) + size * inner)


def _width(head: "GgufHead", what: str, suffix: str = "") -> float:
    """Numbers in a key, or a value, of one head."""
    if what == "value" and field(head, "attention.kv_lora_rank") is not None:
        return 0.0  # kept within the keys
    given = number(head, f"attention.{what}_length{suffix}")
    given = given or number(head, f"attention.{what}_length")
    heads = number(head, "attention.head_count")
    return float(given) if given or heads < 1 else number(head, "embedding_length") / heads
