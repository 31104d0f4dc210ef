"""
Loads a Hugging Face folder: weights, tokenizer, adapters. The file that imports transformers.

Nothing of a folder is executed and nothing is unpickled unless its owner was told to be trusted.

Source: https://huggingface.co/docs/transformers/main_classes/model
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.utils import logging

from unilect.config.model import RopeScaling
from unilect.engines.transformers.batch.frequencies import freeze_rope
from unilect.engines.transformers.model import devices
from unilect.engines.transformers.model.folder import has_tokenizer
from unilect.engines.transformers.model.half import is_slow, widen
from unilect.engines.transformers.model.int8 import quantize as to_8_bits
from unilect.engines.transformers.model.invariance import NotBatchInvariant, check_batch_invariance
from unilect.engines.transformers.model.lora import Adapters
from unilect.engines.transformers.model.memory import grows_bytes, weight_bytes
from unilect.engines.transformers.model.packed import is_worth_packing, pack
from unilect.engines.transformers.model.rope import stretch
from unilect.runtime.memory import MIB

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_COUNT_BY_MASK = ("bloom", "mpt")  # take no positions, and need none
_COUNT_COLUMNS = ("mpt",)  # masked ones too, by so little that the check misses it in few bits
_CACHE_PART = 8  # of what is free, for all engines of a server together
_GPU_GROWS_BYTES = (
    8 * 2**30
)  # what a GPU's driver and library may take of the machine's memory while they run


class LoadedModel:
    """
    A model of transformers.

    Args:
        settings: As the engine's `_settings` writes them.

    Attributes:
        device: Where its inputs go.
        stop_ids: Tokens that end an answer.
        windowed: Some of its layers see a window only, or count columns: its prompts are read one by one.
        size: Rows of its output.
        warning: What its owner should know; empty where there is nothing.

    Raises:
        ValueError, OSError: It cannot be loaded; the message says why.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        logging.disable_progress_bar()
        self._path = settings["path"]
        self._name = Path(self._path).name
        self._settings = settings
        self._generates: bool = settings["generates"]
        self._ranks: str = settings["ranks"]
        on_gpu = self._weight_bytes(torch.device("cuda"))
        self._devices = devices.resolve(settings["device"], on_gpu)
        self.device = self._devices[0]
        # cuDNN plans its attention anew for each length of a sequence, and so for each token; torch has others
        # (https://github.com/modelscope/FunASR/issues/3704)
        torch.backends.cuda.enable_cudnn_sdp(False)
        self._dtype = _dtype(settings["dtype"], self.device)
        self._trust = {"trust_remote_code": settings["trust_remote_code"]}
        self.warning = self._check_memory()
        self.tokenizer = self._load_tokenizer()
        self._model = self._load_model()
        self._check_tokenizer()
        self.windowed, self.size = False, 0
        self._takes: frozenset[str] = frozenset()
        if self._generates:
            self._look_at_cache()
            self._takes = frozenset(inspect.signature(self._model.forward).parameters)
            output = self._model.get_output_embeddings()
            self.size = getattr(output, "out_features", self._model.config.vocab_size)
        self.stop_ids = self._stops()
        self.adapters = Adapters(self._model, self._dtype, self.device)
        if self._generates:
            freeze_rope(self._model, settings["context"])
            self._try_out()

    def forward(
        self,
        ids: Tensor,
        mask: Tensor,
        positions: Tensor,
        cache: Any,
        adapters: Sequence[str | None],
        all_logits: bool = False,
    ) -> Tensor:
        """The logits; see `Model` of `_prefill`."""
        self.adapters.choose(adapters)
        more: dict[str, Any] = {}
        if "position_ids" in self._takes:
            more["position_ids"] = positions
        if "logits_to_keep" in self._takes:
            more["logits_to_keep"] = 0 if all_logits else 1
        logits: Tensor = self._model(
            input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **more
        ).logits
        return logits if all_logits else logits[:, -1:]

    def embedding(
        self, texts: list[list[int]], pooling: str, adapter: str | None, chunk: int
    ) -> Iterator[list[list[float]] | None]:
        """
        The vectors of texts, pooled, with length 1: so many None as there are chunks to be read, then the vectors.

        Args:
            texts: Token ids, each at least one.
            chunk: Columns that a model that writes reads at once; one that sees both ways needs all of them.
        """
        for pooled in self._pool(texts, pooling, adapter, chunk):
            yield None if pooled is None else nn.functional.normalize(pooled, dim=-1).tolist()

    def scores(
        self, pairs: list[list[int]], types: list[list[int]], adapter: str | None, chunk: int
    ) -> Iterator[list[list[float]] | None]:
        """
        The logits of pairs of texts, each in a list of its own, in steps as `embedding`.

        Args:
            pairs: Token ids.
            types: Which text of the pair each token belongs to; empty lists where the model does not want to know.
        """
        if self._generates:  # what it would say next: yes, or no
            names = self.tokenizer.convert_tokens_to_ids(["yes", "no"])
            for state in self._pool(pairs, "last", adapter, chunk):
                if state is None:
                    yield None
                    continue
                said = self._model.get_output_embeddings()(state.to(self._dtype)).float()[:, names]
                yield (said[:, :1] - said[:, 1:]).tolist()
            return
        pad = self._model.config.pad_token_id
        rows = 1 if pad is None else len(pairs)  # by it a model finds the end of a row
        found: list[list[float]] = []
        for begin in range(0, len(pairs), rows):
            if begin:
                yield None
            some = slice(begin, begin + rows)
            more = {"token_type_ids": self._rows(types[some])[0]} if types[begin] else {}
            ids, mask = self._rows(pairs[some], pad or 0)
            self.adapters.choose([adapter] * len(ids))
            found += self._model(input_ids=ids, attention_mask=mask, **more).logits.float().tolist()
        yield found

    def _rows(self, texts: list[list[int]], pad: int = 0) -> tuple[Tensor, Tensor]:
        """Lists of ids side by side, filled up behind, and which of them are not filled up."""
        width = max(map(len, texts))
        ids = torch.full((len(texts), width), pad, dtype=torch.long)
        mask = torch.zeros(len(texts), width, dtype=torch.long)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.tensor(text)
            mask[row, : len(text)] = 1
        return ids.to(self.device), mask.to(self.device)

    def _pool(
        self, texts: list[list[int]], pooling: str, adapter: str | None, chunk: int
    ) -> Iterator[Tensor | None]:
        """The states of texts, pooled, in steps as `embedding`."""
        ids, mask = self._rows(texts)
        width = ids.shape[1]
        ends = mask.sum(-1) - 1
        pooled: Tensor | None = None
        columns = max(1, chunk // len(texts)) if self._generates else width
        cache = {"past_key_values": DynamicCache(), "use_cache": True} if columns < width else {}
        inner = self._model.base_model if self._generates else self._model
        for begin in range(0, width, columns):
            if begin:
                yield None
            end = min(width, begin + columns)
            self.adapters.choose([adapter] * len(texts))
            states = inner(input_ids=ids[:, begin:end], attention_mask=mask[:, :end], **cache)
            weights = _weights(pooling, mask[:, begin:end], begin, ends)
            part = (states.last_hidden_state.to(self.device).float() * weights[:, :, None]).sum(1)
            pooled = part if pooled is None else pooled + part
        yield pooled

    def _load_tokenizer(self) -> Any:
        given, merged = self._settings["tokenizer"], self._settings["merge"]
        brought = [path for path in merged if has_tokenizer(Path(path))]
        folder = given or next(iter(brought), self._path)
        with _explain_errors(f"The tokenizer of {Path(folder).name} cannot be loaded"):
            return AutoTokenizer.from_pretrained(folder, **self._trust)

    def _load_model(self) -> Any:
        other = AutoModelForSequenceClassification if self._ranks else AutoModel
        auto = AutoModelForCausalLM if self._generates else other
        options: dict[str, Any] = {"dtype": self._dtype, **self._trust}
        if not self._settings["allow_pickle"]:
            options["use_safetensors"] = True
        options |= devices.placement(self._devices)
        quantize = self._settings["quantize"]
        if quantize is not None and not (quantize == "8bit" and self.device.type == "cpu"):
            options["quantization_config"] = _bits_and_bytes(quantize)
        with _explain_errors(f"{self._name} cannot be loaded"):
            options["config"] = AutoConfig.from_pretrained(self._path, **self._trust)
        if given := self._settings["rope_scaling"]:
            scaling = msgspec.convert(given, RopeScaling)
            stretch(options["config"], scaling, self._settings["context"])
        with _explain_errors(f"{self._name} cannot be loaded"):
            model = auto.from_pretrained(self._path, **options)
        model.eval()
        for path in self._settings["merge"]:
            model = self._merge(model, path)
        if self.device.type == "cpu":
            with torch.inference_mode():
                self._suit_processor(model)
        return model

    def _suit_processor(self, model: nn.Module) -> None:
        """Give a model the linear layers that a processor is quickest with."""
        if self._settings["quantize"] == "8bit":
            to_8_bits(model)
        elif is_worth_packing(self._dtype):
            pack(model)
        elif is_slow(self._dtype):
            widen(model)

    def _merge(self, model: Any, path: str) -> Any:
        """The model with an adapter merged into its weights, and its vocabulary grown where the adapter needs more."""
        from peft import PeftModel

        if len(self.tokenizer) > model.get_input_embeddings().weight.shape[0]:
            model.resize_token_embeddings(len(self.tokenizer))
        with _explain_errors(f"lora: {Path(path).name} does not fit this model"):
            merged = PeftModel.from_pretrained(model, path).merge_and_unload().eval()
        output = merged.get_output_embeddings()
        if isinstance(
            output, nn.Linear
        ):  # peft turns its sizes round where it is tied to the input
            output.out_features, output.in_features = output.weight.shape
        return merged

    def _check_tokenizer(self) -> None:
        """
        Raises:
            ValueError: The tokenizer has tokens that the model has not.
        """
        rows = self._model.get_input_embeddings().weight.shape[0]
        most = max(self.tokenizer.get_vocab().values(), default=0)
        if most >= rows:
            folder = self._settings["tokenizer"]
            which = f"tokenizer: {folder}" if folder else "The tokenizer"
            raise ValueError(
                f"{which} does not fit the model: it has {most + 1} tokens, and the model knows {rows}."
            )

    def prompt_cache_tokens(self) -> int:
        """Count the tokens of prompts to cache: as many as `cache_ram_mib` holds, else at most two contexts and a part of what is free."""
        given, usual = self._settings["cache_ram_mib"], 2 * self._settings["context"]
        token_bytes = self._settings["cache_values"] * self._dtype.itemsize
        if given == 0 or not token_bytes:
            return 0 if given == 0 else usual
        if given is not None:
            return int(given * MIB // token_bytes)
        free = devices.free(self._devices)
        share = free / _CACHE_PART / self._settings["engines"]
        return int(min(usual, share // token_bytes))

    def grows_bytes(self, remembered: int) -> int:
        """
        Estimate the bytes that a process takes beside its weights.

        Args:
            remembered: Tokens of cached prompts.
        """
        if self.device.type != "cpu":
            return _GPU_GROWS_BYTES
        return grows_bytes(self._settings, self._dtype.itemsize, remembered)

    def _weight_bytes(self, device: torch.device) -> float:
        """Return the bytes of the weights when they have been loaded."""
        dtype = _dtype(self._settings["dtype"], device)
        on_processor = device.type == "cpu"
        packs = on_processor and is_worth_packing(dtype)
        return weight_bytes(self._settings, dtype.itemsize, on_processor=on_processor, packs=packs)

    def _check_memory(self) -> str:
        """
        Check that the weights and one answer fit; returns a warning of what cannot run at the same time.

        Raises:
            ValueError: The weights, or they and one answer, are larger than the free memory.
        """
        width = self._dtype.itemsize
        kept = needed = self._weight_bytes(self.device)
        if self.device.type == "cpu":  # there they begin wide
            begin = self._settings["size_bytes"] / self._settings["stored_bytes"] * width
            needed = max(kept, begin)
        free, name = devices.free(self._devices), self._name
        reserved = self._settings["reserved_bytes"] if self._devices[0].type == "cpu" else 0
        free -= reserved
        if needed > free:
            raise ValueError(_too_large(name, needed, max(0, free), reserved))
        context, parallel = self._settings["context"], self._settings["parallel"]
        answer = self._settings["cache_values"] * width * context
        left = free - kept
        sizes = (
            f"an answer of {context} tokens (`context`) takes {answer / 1e9:.2f} GB, "
            f"and {left / 1e9:.2f} GB are free after the weights"
        )
        if answer > left:
            raise ValueError(f"{name}: out of memory for the KV cache: {sizes}. Lower `context`.")
        if answer * parallel > left:
            return (
                f"memory may run out: {sizes}, too little for {parallel} concurrent requests "
                "(`parallel`). Lower `parallel` or `context` if answers get that long."
            )
        return ""

    def _stops(self) -> frozenset[int]:
        """Return the ids in the vocabulary that end an answer, by settings and tokenizer; some folders name others, too."""
        ids: set[Any] = set()
        config = getattr(self._model, "generation_config", None)
        for given in (getattr(config, "eos_token_id", None), self.tokenizer.eos_token_id):
            ids |= set(given) if isinstance(given, list) else {given} - {None}
        rows = self.size or self._model.get_input_embeddings().weight.shape[0]
        return frozenset(id for id in ids if 0 <= id < rows)

    def _look_at_cache(self) -> None:
        """
        Raises:
            ValueError: The model remembers in a way that rows of a batch cannot share.
        """
        layers = DynamicCache(config=self._model.config).layers
        if any(type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers):
            raise ValueError(
                f"{self._name}: {self._model.config.model_type} models are not supported: "
                "this engine serves attention-only models."
            )
        config = self._model.config
        local = "local" in getattr(config, "attention_layers", ())  # GPT-Neo's windows
        windows = any(isinstance(layer, DynamicSlidingWindowLayer) for layer in layers)
        self.windowed = windows or local or config.model_type in _COUNT_COLUMNS

    def _try_out(self) -> None:
        """
        Raises:
            ValueError: The model would not answer beside others as it does alone.
        """
        kind = self._model.config.model_type
        refusal = (
            f"{self._name}: {kind} models are not supported: their answers depend on the other "
            "requests of the batch."
        )

        def whole(text: list[int]) -> Tensor:
            ids = torch.tensor([text], device=self.device)
            logits: Tensor = self._model(input_ids=ids, use_cache=False).logits[0]
            return logits

        if "position_ids" not in self._takes and kind not in _COUNT_BY_MASK:
            raise ValueError(refusal)
        exact = self._dtype == torch.float32 and self._settings["quantize"] is None
        rows = self._model.get_input_embeddings().weight.shape[0]
        try:
            if not check_batch_invariance(self.forward, whole, rows, self.device, exact):
                self.windowed = True
        except Exception as error:
            detail = "" if isinstance(error, NotBatchInvariant) else f" ({str(error)[:200]})"
            raise ValueError(refusal + detail) from error


def _weights(pooling: str, mask: Tensor, begin: int, ends: Tensor) -> Tensor:
    """Return the weight of the state of each column in a pooled vector: (n_rows, n_columns)."""
    if pooling == "mean":
        return mask.float()
    columns = torch.arange(begin, begin + mask.shape[1], device=mask.device)[None]
    return (columns == (0 if pooling == "cls" else ends[:, None])).expand(mask.shape).float()


@contextmanager
def _explain_errors(what: str) -> Iterator[None]:
    """Turn any exception into a ValueError of one sentence; transformers raises anything for a broken folder."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ValueError(f"{what}: out of GPU memory.") from error
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"{what}: {reason}") from error


def _dtype(name: str, device: torch.device) -> torch.dtype:
    """float32 on a processor, as exact as can be and as fast as most can; half as wide on a GPU."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return _DTYPES[name]


def _bits_and_bytes(quantize: str) -> Any:
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise ValueError(
            "quantize: requires bitsandbytes; install it with `pip install bitsandbytes`."
        ) from error
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_8bit=quantize == "8bit", load_in_4bit=quantize == "4bit")


def _too_large(name: str, needed: float, free: float, reserved: int) -> str:
    beside = f" beside {reserved / 1e9:.1f} GB of other models that start now" if reserved else ""
    sizes = f" It needs {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free{beside}."
    return f'{name} does not fit into memory.{sizes} Use `dtype = "bfloat16"`, `quantize`, or a smaller model.'
