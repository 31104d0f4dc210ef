"""The parameters that the transformers engine supports; see `Capabilities`."""

from msgspec.structs import replace

from unilect.api.backend import Capabilities
from unilect.api.parameters.support import TOOL_PARAMETERS, declare_support, names
from unilect.families import may_think, name_of, of_template, thoughts_of
from unilect.templates import chat as templates
from unilect.tools.messages import takes_effort

_NATIVE = names(
    "temperature top_k top_p min_p typical_p repetition_penalty repeat_penalty repeat_last_n presence_penalty "
    "frequency_penalty logit_bias seed mirostat mirostat_tau mirostat_eta num_beams do_sample grammar ignore_eos "
    "cache_prompt tokenize max_tokens max_completion_tokens stop echo logprobs top_logprobs response_format tools "
    "tool_choice parallel_tool_calls reasoning_effort chat_template_kwargs "
    "enable_thinking thinking_budget_tokens"  # where the template knows them
)
PARAMETERS = declare_support(
    _NATIVE, names("n best_of functions function_call encoding_format dimensions")
)


def with_template(can: Capabilities, template: str, takes_tools: bool) -> Capabilities:
    """
    Return what a model can do with a chat template; its calls can be read where its family is known.

    Args:
        can: What it can do without.
        template: Empty where it has none.
        takes_tools: The template writes a request's tools into the prompt.
    """
    lacking = [] if takes_tools and of_template(template) is not None else list(TOOL_PARAMETERS)
    if "enable_thinking" not in template:
        lacking.append("enable_thinking")
    if thoughts_of(template) is None:
        lacking.append("thinking_budget_tokens")
    parameters = PARAMETERS | dict.fromkeys(lacking, "refused")
    if not takes_effort(template):
        del parameters["reasoning_effort"]  # ignored, and named
    return replace(
        can,
        chat=can.completions and bool(template),
        parameters=parameters,
        thinking=may_think(template),
        template_names=templates.Variables(template) if template else None,
        tool_form=name_of(of_template(template)),
    )
