"""The parameters that the transformers engine supports; see `Capabilities`."""

from msgspec.structs import replace

from unilect.backend import Capabilities
from unilect.parameters.support import TOOL_PARAMETERS, honoured, names
from unilect.templates import variables
from unilect.tools.forms import of_template
from unilect.tools.messages import takes_effort, thinks
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


def with_template(can: Capabilities, template: str, takes_tools: bool) -> Capabilities:
    """
    Return what a model can do with a chat template.

    Args:
        can: What it can do without.
        template: Empty where it has none.
        takes_tools: The template writes a request's tools into the prompt.
    """
    lacking = [name for name, mark in _SHOWN.items() if mark not in template]
    lacking += [] if takes_tools else TOOL_PARAMETERS
    parameters = PARAMETERS | dict.fromkeys(lacking, "refused")
    if not takes_effort(template):
        del parameters["reasoning_effort"]  # ignored, and named
    return replace(
        can,
        parameters=parameters,
        thinking=thinks(template),
        template_names=variables(template) if template else None,
        tool_form=of_template(template),
        chat=can.completions and bool(template),
    )
