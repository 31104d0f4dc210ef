"""
Fields of other servers' requests that would change an answer: they are refused, never only reported in a header.

A listed field is refused by name if the backend does not support it, unless its value is neutral. An unlisted
field is ignored and reported. llama.cpp's own fields are parameters here (`requests.LLAMACPP_PARAMETERS`), listed in each backend's table.

Sources: the request schemas of vLLM, SGLang, llama.cpp's server, Ollama, TGI, text-generation-webui, TabbyAPI, Mistral and OpenAI;
the values are their defaults, and those that SillyTavern, Open WebUI, LangChain and the AI SDK send unasked.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from unilect.constraints.schema import names

Values: TypeAlias = tuple[Any, ...]
Said: TypeAlias = Mapping[str, Any]


#: What binds an answer to a form. Each is put into our words (see `parameters.constraints`), or refused.
CONSTRAINTS = names(
    "guided_json guided_regex guided_choice guided_grammar guided_json_object structured_outputs json_schema format regex "
    "ebnf structural_tag grammar_string"
)

#: The values that ask for nothing where nothing else is said below; null always asks for nothing.
EMPTY: Values = (False, 0, "", [], {})

_EMPTY_IS_NEUTRAL = names("""
    min_tokens min_new_tokens min_length stop_token_ids stop_regex no_stop_trim stop_sequences include_stop_str_in_output bad_words
    logits_processors custom_logit_processor custom_params documents chat_template mm_processor_kwargs vllm_xargs
    early_stopping return_tokens_as_token_ids return_token_ids return_hidden_states logprob_token_ids
    input_ids input_embeds prompt_embeds image_data video_data multimodal_data lora_path adapter_id adapters
    guided_whitespace_pattern thinking_token_budget reasoning
    dynamic_temperature grammar_lazy
    thinking_forced_open generation_prompt
    top_a epsilon_cutoff eta_cutoff smoothing_factor negative_prompt penalty_alpha no_repeat_ngram_size custom_token_bans
    banned_tokens banned_strings ban_eos_token instruction_template instruction_template_str character preset continue_ token_healing
    skew mirostat_mode
    options template system
    parameters inputs watermark return_full_text top_n_tokens truncate tool_prompt guideline decoder_input_details
    instructions previous_response_id generation_config safe_prompt enable_search
    prompt_name input_type
""")
_NULL_IS_NEUTRAL = names("""
    allowed_token_ids prompt_logprobs truncate_prompt_tokens thinking thinking_budget think
    random_seed eos_token_id
""")
_TRUE_IS_NEUTRAL = names("""
    skip_special_tokens spaces_between_special_tokens add_special_tokens add_bos_token include_reasoning
    separate_reasoning stream_reasoning parse_tool_calls normalize
""")
_ONE_IS_NEUTRAL = names(
    "length_penalty tfs tfs_z typical rep_pen guidance_scale encoder_repetition_penalty"
)
#: What to do instead, where that is not to leave a field out.
INSTEAD = {
    "input_type": "the model has no prompts for types of inputs; write the prefix into `input`",
    "lora": "the model has no adapters whose scales a request can choose",
    "suffix": "the model has no fill-in-the-middle tokens, or its backend does not use them",
}
#: The orders of samplers that ask for nothing: llama.cpp's own, and SillyTavern's.
SAMPLER_ORDERS = (
    "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature",
    "penalties;dry;top_n_sigma;top_k;typ_p;tfs_z;typical_p;xtc;top_p;min_p;adaptive_p;temperature",
)

#: The name of a field -> the values at which it asks for nothing.
CHANGES_ANSWER: dict[str, Values] = {
    **dict.fromkeys(_EMPTY_IS_NEUTRAL, EMPTY),
    **dict.fromkeys(_NULL_IS_NEUTRAL, ()),
    **dict.fromkeys(CONSTRAINTS, ()),
    "guided_json_object": (False,),
    "num_predict": (-1, -2),  # as much as there is room for
    "max_output_tokens": (-1,),
    **dict.fromkeys(("format", "grammar_string"), ("",)),
    **dict.fromkeys(_TRUE_IS_NEUTRAL, (True,)),
    **dict.fromkeys(_ONE_IS_NEUTRAL, (1,)),
    "reasoning_budget": (-1,),
}
#: The name of a field -> ours for the same: SillyTavern says each thing by the names that all its servers have.
SAME_AS: dict[str, tuple[str, ...]] = {
    "num_predict": ("max_tokens", "max_completion_tokens"),
    "max_output_tokens": ("max_tokens", "max_completion_tokens"),
    "random_seed": ("seed",),
    "rep_pen": ("repeat_penalty", "repetition_penalty"),
    "typical": ("typical_p",),
    "nsigma": ("top_n_sigma",),
    "mirostat_mode": ("mirostat",),
    "ban_eos_token": ("ignore_eos",),
    "stop_sequences": ("stop",),
    "grammar_string": ("grammar",),
}
#: A chat's prompt is written by its template, special tokens included.
CHANGES_CHAT: dict[str, Values] = {"add_special_tokens": (False,)}
#: Any value below zero, and zero, asks for nothing.
OFF_BELOW_ZERO = frozenset({"nsigma"})
CHANGES_ANSWER |= dict.fromkeys(OFF_BELOW_ZERO, (0,))


def is_neutral(name: str, value: Any, chat: bool) -> bool:
    """True for a value at which a field of `CHANGES_ANSWER` asks for nothing."""
    if value is None:
        return True
    if name in OFF_BELOW_ZERO and isinstance(value, int | float):
        return value <= 0
    if chat and name in CHANGES_CHAT:
        return value in CHANGES_CHAT[name]
    return value in CHANGES_ANSWER[name]


def is_said(name: str, value: Any, ours: Said) -> bool:
    """
    True for a field of `CHANGES_ANSWER` that asks for nothing more than our own parameters do.

    Args:
        ours: What the request says by our names.
    """
    if any(ours.get(same) == value for same in SAME_AS.get(name, ())):
        return True
    match name:
        case "dynamic_temperature":
            return value is True and bool(ours.get("dynatemp_range"))
        case "min_tokens":  # an answer that only its length ends
            return ours.get("ignore_eos") is True and not ours.get("stop")
        case "custom_token_bans" if isinstance(value, str):
            biases = ours.get("logit_bias") or {}
            return all(biases.get(token.strip()) is False for token in value.split(","))
    return False
