"""The options of GGUF models alone, which llama.cpp runs: a part of the table `[models.NAME]`."""

from typing import Annotated, Literal

from msgspec import Meta

from unilect.config import paths
from unilect.config.option import Flag, Table, option
from unilect.config.sizes import wrong_size


def _check_parts(parts: list[float]) -> str:
    if any(parts):
        return ""
    return "gives no GPU a part of the model. Give a number above 0 for each that is to have one, such as [3, 1], or leave it out."


class LlamaCppOptions(Table, frozen=True, kw_only=True):
    """The options of a GGUF model, beside those that other engines have, too."""

    gpu_layers: Annotated[int, Meta(ge=-1, le=10_000)] | None = option(
        None,
        "Number of layers to offload to the GPU; -1 for all. Default: as many as fit if llama.cpp has a GPU. Refused without one; "
        "docs/gpu.md says how to install a build for your GPU.",
        kinds=("gguf", "program"),
        flag=Flag("--gpu-layers", "Layers on the GPU; -1: all."),
        example=-1,
    )
    split_mode: Literal["layer", "row", "none"] = option(
        "layer",
        "How a model is split across several GPUs: by *layer*, by the rows of its weights, or not (*none*: it is on `main_gpu`). Refused without a GPU.",
        kinds=("gguf",),
    )
    tensor_split: Annotated[
        list[Annotated[float, Meta(ge=0, le=1_000_000)]], Meta(max_length=16)
    ] = option(
        [],
        "How much of the model each GPU gets, in any unit: `[3, 1]` is three quarters and one. Default: by their free memory. Refused without a GPU.",
        kinds=("gguf",),
        check=_check_parts,
        example=[3.0, 1.0],
    )
    main_gpu: Annotated[int, Meta(ge=0, le=15)] = option(
        0,
        'Number of the GPU that has the whole model with `split_mode = "none"`, or intermediate results with `row`. Refused without such a GPU.',
        kinds=("gguf",),
    )
    repack: bool = option(
        True,
        "Copy weights of some types into an order that suits the processor, which makes prompts faster. Without it the model takes less memory, by "
        "up to the size of its file.",
        kinds=("gguf",),
    )
    speculative: str | None = option(
        None,
        "Speculative decoding: several tokens are drafted and checked in one step, which makes answers faster and changes none. `ngram` drafts what followed the same words "
        "before in the conversation (good for edits of a text or of code); the path of a small GGUF model with the same vocabulary drafts with that.",
        kinds=("gguf",),
        path=paths.draft,
        flag=Flag("--speculative", "ngram, or the path of a draft model."),
        example="ngram",
    )
    draft_max: Annotated[int, Meta(ge=1, le=64)] | None = option(
        None,
        "Most tokens that are drafted at once. Default: with `ngram` 16, on a GPU 48; 3 with a draft model.",
        kinds=("gguf",),
        needs="speculative",
        example=8,
    )
    context_shift: bool = option(
        False,
        "Go on with an answer where the context is full: the older half of the answer so far is forgotten each time, and the prompt stays. An answer has at most "
        "`context` tokens. By default it ends there, with `length`. Has no effect on models whose memory cannot be shifted (recurrent ones).",
        kinds=("gguf",),
    )
    mmproj: str | None = option(
        None,
        "Multimodal projector (GGUF) of a vision model. Default: the one beside the model's file that has its name, or is for its only model; "
        "an empty text is none.",
        kinds=("gguf",),
        path=paths.plain,
        flag=Flag("--mmproj", "Projector of a vision model."),
        example="mmproj.gguf",
    )
    cache_type_k: Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"] = option(
        "f16",
        "KV cache data type for K. With `f32` for K and V attention is computed in 32 bits, too, without flash attention: the "
        "log probabilities are then those of the transformers engine, to 3 decimals.",
        kinds=("gguf",),
    )
    cache_type_v: Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"] = option(
        "f16", "KV cache data type for V.", kinds=("gguf",)
    )
    slot_save_path: str | None = option(
        None,
        "Folder for what clients save of slots (`POST /slots/{id}?action=save`): the KV cache of a prompt, to be restored later, also "
        "after a restart. Each caller has files of their own, at most 64 for each model. Default: none, nothing is saved.",
        kinds=("gguf",),
        path=paths.output,
        example="slots",
    )
    keep_conversations: str | None = option(
        None,
        "Disk space, such as `2GiB`, for the conversations that are in the slots when the engine is stopped: what was read of them is kept in "
        "`conversations` beside the store's default file, with mode 0600, and is not read again when their caller goes on after the next start. The least "
        "recently used go first. The files hold the texts. Default: none, and what was kept before is deleted.",
        kinds=("gguf",),
        check=wrong_size,
        example="2GiB",
    )
