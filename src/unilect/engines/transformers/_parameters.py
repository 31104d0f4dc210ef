"""The parameters that the transformers engine supports; see `Capabilities`."""

from unilect.parameters.support import honoured, names

_NATIVE = names(
    "temperature top_k top_p min_p typical_p repetition_penalty repeat_penalty repeat_last_n presence_penalty "
    "frequency_penalty logit_bias seed mirostat mirostat_tau mirostat_eta num_beams do_sample grammar ignore_eos "
    "cache_prompt tokenize max_tokens max_completion_tokens stop echo logprobs top_logprobs response_format tools "
    "tool_choice parallel_tool_calls reasoning_effort chat_template_kwargs "
    "enable_thinking"  # where the template knows it
)
PARAMETERS = honoured(
    _NATIVE, names("n best_of functions function_call encoding_format dimensions")
)
