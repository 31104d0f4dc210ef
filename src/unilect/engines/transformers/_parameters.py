"""The parameters that the transformers engine supports; see `Capabilities`."""

from unilect.backend import Support
from unilect.parameters.support import TOOL_PARAMETERS, honoured, names
from unilect.tools.parser import THINK

_NATIVE = names(
    "temperature top_k top_p min_p typical_p repetition_penalty repeat_penalty repeat_last_n presence_penalty "
    "frequency_penalty logit_bias seed mirostat mirostat_tau mirostat_eta num_beams do_sample grammar ignore_eos "
    "cache_prompt tokenize max_tokens max_completion_tokens stop echo logprobs top_logprobs response_format tools "
    "tool_choice parallel_tool_calls reasoning_effort chat_template_kwargs "
    "enable_thinking thinking_budget_tokens"  # where the template knows them
)
PARAMETERS = honoured(
    _NATIVE, names("n best_of functions function_call encoding_format dimensions")
)
#: What stands in the templates of models that have a parameter.
_SHOWN = {
    "enable_thinking": "enable_thinking",
    "thinking_budget_tokens": THINK[1],
}


def supported(template: str, takes_tools: bool) -> dict[str, Support]:
    """The parameters of a model with this chat template, which writes a request's tools into the prompt or does not."""
    lacking = [name for name, mark in _SHOWN.items() if mark not in template]
    lacking += [] if takes_tools else TOOL_PARAMETERS
    return PARAMETERS | dict.fromkeys(lacking, "refused")
