"""The parameters that the transformers engine supports; see `Capabilities`."""

from unilect.backend import Support
from unilect.parameters.support import TOOL_PARAMETERS, honoured, names
from unilect.tools.messages import takes_effort
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
    **dict.fromkeys(TOOL_PARAMETERS, "tools"),
    "enable_thinking": "enable_thinking",
    "thinking_budget_tokens": THINK[1],
}


def supported(template: str) -> dict[str, Support]:
    """The parameters of a model with this chat template."""
    lacking = [name for name, mark in _SHOWN.items() if mark not in template]
    found = PARAMETERS | dict.fromkeys(lacking, "refused")
    if not takes_effort(template):
        del found["reasoning_effort"]  # ignored, and named
    return found
