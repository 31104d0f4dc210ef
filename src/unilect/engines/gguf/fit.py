"""The memory of a GGUF model on this machine, without loading it: what it needs, whether that is there, and the context for which it is."""

import asyncio
import logging
import tempfile
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from unilect.api.backend import Capabilities, MemoryNeed
from unilect.config.model import ModelConfig
from unilect.core.errors import BackendUnavailable, ConfigError, ModelTooLarge
from unilect.engines.gguf._dry_run import dry_run
from unilect.engines.gguf._file import GgufHead, read_model
from unilect.engines.gguf._layers import is_known, number
from unilect.engines.gguf._memory import Needs, budget, memory_error, needs, size_error
from unilect.engines.gguf._model import ranks
from unilect.engines.gguf._settings import child_settings, load_recorder
from unilect.engines.gguf.head import is_head
from unilect.engines.settings import context_of, read_checked
from unilect.hub.download import RemoteFile
from unilect.hub.heads import fetch_heads
from unilect.residency.ledger import LEDGER
from unilect.runtime.gpus import GpuMemory, gpu_memory
from unilect.runtime.memory import MIB, free_bytes, total_bytes

log = logging.getLogger("unilect")
_LEAST_CONTEXT = 2048  # of a model whose context nobody has set: less is of little use
_FOR_LOADED = 7 / 8  # of the memory, where the context is chosen: more comes while it answers
_STEP = 256  # llama.cpp rounds up to so many tokens
_TRIED_CONTEXTS = (2048, 4096)  # of an architecture that is not known here
_LEAST_BESIDE = 512 * MIB


class Room(Struct, frozen=True):
    """
    The memory that a model may take, in bytes.

    Attributes:
        free: What can be allocated now; None where only its child finds that out, or nobody.
        total: The same, if nothing else ran.
    """

    free: int | None
    total: int | None


class MachineMemory:
    """
    The memory of this machine as it was when this was made.

    Attributes:
        free, total: Bytes without its GPUs'; None where the system does not say.
    """

    def __init__(self) -> None:
        self.free, self.total = free_bytes(), total_bytes()

    @cached_property
    def gpus(self) -> list[GpuMemory] | None:
        """The memory of the GPUs that llama.cpp uses; None where one of them does not tell. Their driver may take a second to wake up."""
        return gpu_memory(torch=False)


def room_of(
    config: ModelConfig, memory: int | None = None, machine: MachineMemory | None = None
) -> Room:
    """
    Return the memory for a model: that of the machine, and of its GPUs where it may use them.

    Args:
        memory: Bytes that all engines may take together; None for all that is there.
        machine: The machine's; None to look now.
    """
    machine = machine or MachineMemory()
    gpus = [] if config.gpu_layers == 0 else machine.gpus
    free, total = machine.free, machine.total
    if gpus is None or free is None or total is None:
        return Room(None, None)
    most = total + _place(config, [one.total for one in gpus])
    most = most if memory is None else min(most, memory)
    return Room(min(most, free + _place(config, [one.free for one in gpus])), most)


def _place(config: ModelConfig, sizes: list[int]) -> int:
    """Return the bytes that a model may take of GPUs of so many bytes each: of one alone, by its shares, or of all."""
    if config.split_mode == "none":
        return sum(sizes[config.main_gpu :][:1])
    shares = config.tensor_split
    if not shares:
        return sum(sizes)
    parts = [
        size * sum(shares) / share for size, share in zip(sizes, shares, strict=False) if share
    ]
    return int(min(parts, default=0))


def place_need(
    need: Needs, config: ModelConfig, layers: int, gpus: Sequence[GpuMemory]
) -> tuple[int, ...]:
    """
    Return the bytes that llama.cpp puts on each GPU where all have room: the weights and caches of the layers that go there, and buffers.

    Args:
        layers: How many the model has.
    """
    every = layers + 1  # the output counts as one
    chosen = every if config.gpu_layers in (None, -1) else min(every, config.gpu_layers or 0)
    shares = [0.0 + one.total for one in gpus]
    if config.split_mode == "none":
        shares = [float(number == config.main_gpu) for number in range(len(gpus))]
    elif sum(config.tensor_split):
        shares = [*config.tensor_split, *[0.0] * len(gpus)][: len(gpus)]
    if not chosen or not sum(shares):
        return ()
    size = need.work + (need.weights + need.cache) * chosen / every
    return tuple(int(size * share / sum(shares)) for share in shares)


def require_room(name: str, need: Needs, room: Room) -> None:
    """
    Check the memory that a model takes, as its child does before it loads it.

    Raises:
        ModelTooLarge: It can never fit.
        BackendUnavailable: It does not fit now.
    """
    if why := size_error(name, need, room.total):
        raise ModelTooLarge(why)
    if why := memory_error(name, need, room.free):
        raise BackendUnavailable(why)


class EngineMemory:
    """
    The memory of one child of a model: reckoned from the head of its file, and measured once it has been loaded.

    Args:
        head: Of its file.
        path: The file.
        config: The settings of the model.
        settings: Those of the child, as of `child_settings`.
        machine: The memory before it is loaded; None where it does not matter, as where `learn` says all.

    Attributes:
        recorder: Measures its loads.
    """

    def __init__(
        self,
        head: GgufHead,
        path: Path,
        config: ModelConfig,
        settings: dict[str, Any],
        machine: MachineMemory | None = None,
    ) -> None:
        self._head, self._config, self._settings = head, config, settings
        self._machine = machine
        self._takes = msgspec.convert(settings["needs"], Needs)
        self._most: Needs | None = None  # with what may be remembered
        self.recorder = load_recorder(path, settings)

    @property
    def need(self) -> MemoryNeed:
        """The need, as far as it is known."""
        if self._most is None:
            cache, engines = self._settings["cache_ram_mib"], self._settings["engines"]
            memory = self._settings["memory_bytes"]
            free = None if self._machine is None else self._machine.free
            self._most = budget(self._takes, cache, free, engines, memory)
        gpus = self._find_gpus()
        if (known := self.recorder.known) is None:
            return MemoryNeed(self._most.loaded, self._most.grows, gpus=gpus)
        grows = max(known.grown, self._most.grows)
        return MemoryNeed(known.ready, grows, known.count > 0, gpus)

    def _find_gpus(self) -> tuple[int, ...]:
        """Return what it takes of each GPU."""
        if self._machine is None or self._config.gpu_layers == 0 or not self._machine.gpus:
            return ()
        layers = number(self._head, "block_count")
        return place_need(self._takes, self._config, layers, self._machine.gpus)

    def learn(self, told: Needs) -> None:
        """Take over what the child has said when it was loaded."""
        self._most = told

    async def require_room(self) -> None:
        """
        Check that there is room for it, before it is started. Of an architecture that is not known here llama.cpp is asked first.

        Raises:
            ModelTooLarge: It can never fit.
            BackendUnavailable: It does not fit now.
        """
        known = self.recorder.known
        if not is_known(self._head) and (known is None or not known.count):
            found = await dry_run(self._settings)
            if found is not None:
                self._takes, self._most = found, None
                self.recorder.note_reckoned(found.loaded)
        # a GPU's driver may take a second to wake up
        room = await asyncio.to_thread(room_of, self._config, self._settings["memory_bytes"])
        require_room(self._settings["name"], self._takes, room)


def choose_size(
    name: str,
    head: GgufHead,
    config: ModelConfig,
    embedding: bool,
    memory: int | None = None,
    machine: MachineMemory | None = None,
) -> tuple[int, int]:
    """
    Return the tokens of each request, and how many requests are answered at a time: as they are set, else as usual, or fewer where there
    is no memory for them; see `longest_size`.

    Args:
        memory, machine: As of `room_of`.

    Raises:
        ConfigError: More tokens are set than the model was made for.
    """
    usual, most = context_of(head.context, config), config.most_parallel
    if config.context is not None and config.parallel is not None:
        return usual, most
    room = room_of(config, memory, machine)
    if (
        room.free is not None and room.total is not None
    ):  # what other models hold they may leave for this one
        room = Room(min(room.total, room.free + LEDGER.claimed), room.total)
    context, parallel = longest_size(head, config, embedding, _reckon_needs(head, config, embedding), room)  # fmt: skip
    if (context, parallel) != (usual, most):
        log.warning(
            "%s: its `context` is %d and its `parallel` %d instead of %d and %d, for which there is no memory. Set them for other sizes.",
            *(name, context, parallel, usual, most),
        )
    return context, parallel


def longest_size(
    head: GgufHead,
    config: ModelConfig,
    embedding: bool,
    need_of: Callable[[int], Callable[[int], Needs]],
    room: Room,
) -> tuple[int, int]:
    """
    Return the tokens of each request, and how many at a time: of what is not set as many requests as there is memory for with the usual
    tokens, and with one alone as many tokens as there is memory for. Where there is none for either it is as if there were: that is refused
    with its sizes.

    Args:
        need_of: Returns, for requests at a time, the need by tokens.

    Raises:
        ConfigError: More tokens are set than the model was made for.
    """
    usual, most = context_of(head.context, config), config.most_parallel
    least = most if config.parallel is not None or embedding else 1
    for parallel in range(most, least - 1, -1):
        context = longest_context(need_of(parallel), usual, room)
        if context == usual:
            break
    if not context:
        return usual, most
    return usual if config.context is not None else context, parallel


def longest_context(need_of: Callable[[int], Needs], most: int, room: Room) -> int:
    """
    Return the longest context, up to `most`, for which a model fits into the memory with its weights.

    Returns:
        The shortest one of use where the weights have no room beside it, or little, but it can be loaded: they are read from the disk again
        and again, and each token more would leave them less. 0 where not even that can be; `most` where nobody knows the memory.
    """

    def is_loaded_whole(context: int) -> bool:
        need = need_of(context)
        return need.loaded <= (room.free or 0) * _FOR_LOADED and not size_error(
            "", need, room.total
        )

    if room.free is None or is_loaded_whole(most):
        return most
    least = min(most, _LEAST_CONTEXT)
    if not is_loaded_whole(least):
        need = need_of(least)
        return 0 if size_error("", need, room.total) or memory_error("", need, room.free) else least
    low, high = least // _STEP, -(-most // _STEP)  # the one fits, the other does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_loaded_whole(middle * _STEP) else (low, middle)
    return max(least, low * _STEP)


class Estimate(Struct, frozen=True):
    """
    The memory that a file would take, without loading it.

    Attributes:
        quantization: The type of most of its weights; empty where it does not say.
        context: The tokens of each request that it is for.
        parallel: How many of these at a time.
        need: What it takes.
        longest: The longest context that fits with so many; 0 for none.
    """

    quantization: str
    context: int
    parallel: int
    need: MemoryNeed
    longest: int


async def estimate(path: Path, config: ModelConfig, room: Room) -> Estimate:
    """
    Estimate the memory of a file, of which the head is enough; llama.cpp is asked where it is installed.

    Raises:
        ConfigError: It is no valid GGUF file, or the context is longer than the model was made for.
    """
    head = read_checked(read_model, path)
    embedding = head.embedding_only or ranks(head, config)

    async def reckon(config: ModelConfig, context: int) -> tuple[Needs, EngineMemory]:
        made = child_settings(
            *(path.stem, path, head, config),
            context=context,
            threads=1,
            lora=[],
            template=None,
            engines=1,
            memory=None,
            embedding=embedding,
        )
        found = await dry_run(made) or msgspec.convert(made["needs"], Needs)
        return found, EngineMemory(head, path, config, made)

    need_of = _reckon_needs(head, config, embedding)
    if not is_known(head):
        need_of = _between(*[(await reckon(config, one))[0] for one in _TRIED_CONTEXTS])
    context, parallel = longest_size(head, config, embedding, need_of, room)
    takes, memory = await reckon(replace(config, parallel=parallel), context)
    memory.learn(budget(takes, 0 if embedding else config.cache_ram_mib, room.free))
    return Estimate(
        head.description.quantization or "",
        context,
        parallel,
        memory.need,
        longest_context(need_of(parallel), head.context, room),
    )


def may_fit(config: ModelConfig, files: Sequence[RemoteFile], memory: int | None = None) -> bool:
    """
    Return True where a model can be loaded on this machine, whatever is loaded now: reckoned as by `estimate` from its head, which is
    fetched, and from its size alone where that cannot be read.

    Args:
        files: Its parts, the first first.
        memory: As of `room_of`.
    """
    total, size = room_of(config, memory).total, sum(one.size for one in files)
    if total is None or size > total:
        return total is None
    try:
        with tempfile.TemporaryDirectory(prefix="unilect-", ignore_cleanup_errors=True) as folder:
            path = fetch_heads(files, Path(folder), is_head)
            need = asyncio.run(estimate(path, config, Room(total, total))).need
            most = need.ready if memory is None else need.ready + need.grows
            return max(most, need.ready / (_FOR_LOADED if config.context is None else 1)) <= total
    except ConfigError as error:
        log.info("%s Its size alone says if it fits.", error)
        return size + size // 8 + _LEAST_BESIDE <= total


def _reckon_needs(
    head: GgufHead, config: ModelConfig, embedding: bool
) -> Callable[[int], Callable[[int], Needs]]:
    """Return the needs by requests at a time and tokens, as reckoned from a file."""

    def need_of(parallel: int, context: int) -> Needs:
        return needs(head, replace(config, parallel=parallel), context, embedding)

    return lambda parallel: partial(need_of, parallel)


def _between(short: Needs, long: Needs) -> Callable[[int], Callable[[int], Needs]]:
    """Return the needs by requests at a time and tokens, on the line through those for two numbers of tokens."""
    per_token = (long.slot - short.slot) / (long.context - short.context)

    def need_of(parallel: int, context: int) -> Needs:
        slot = int(short.slot + per_token * (context - short.context))
        return replace(long, context=context, slot=max(0, slot), parallel=parallel)

    return lambda parallel: partial(need_of, parallel)


def check_fit(name: str, path: Path, config: ModelConfig, can: Capabilities) -> None:
    """
    Check the memory that a model takes, for a configuration that is looked at and not served.

    Args:
        can: What its backend can do.

    Raises:
        ConfigError: It does not fit.
    """
    writes = can.chat or can.completions
    config = replace(config, parallel=can.slots)
    need = needs(read_checked(read_model, path), config, can.context or 0, not writes)
    try:
        require_room(name, need, room_of(config))
    except BackendUnavailable as error:
        raise ConfigError(f"models.{error.message}", ("models", name, "context")) from error
