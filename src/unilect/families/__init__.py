"""
The families of models: one file for each, and the families in the order in which they are recognised.

A family that is not in the list is not guessed: its tools are emulated, and its thoughts are told as text.
"""

from functools import lru_cache

from unilect.families._calls import new_call_id
from unilect.families._family import CallStyle, Family, Marks, ToolFormat
from unilect.families._scanner import MarkScanner, Reading, Scanner
from unilect.families._typing import Tools
from unilect.families.apertus import APERTUS
from unilect.families.chatglm import CHATGLM3
from unilect.families.command import COMMAND, COMMAND_R
from unilect.families.deepseek import DEEPSEEK, DSML
from unilect.families.functionary import FUNCTIONARY
from unilect.families.gemma import GEMMA
from unilect.families.gemma4 import GEMMA4
from unilect.families.gigachat import GIGACHAT, GIGACHAT3
from unilect.families.glm import GLM, GLM45
from unilect.families.gpt_oss import GPT_OSS
from unilect.families.granite import GRANITE
from unilect.families.hermes import HERMES, QWEN_CODER
from unilect.families.hunyuan import HUNYUAN
from unilect.families.hunyuan3 import HUNYUAN3
from unilect.families.jamba import APRIEL, JAMBA
from unilect.families.kimi import KIMI, KIMI3
from unilect.families.lfm import LFM2
from unilect.families.llama import LLAMA3, LLAMA4
from unilect.families.minicpm import MINICPM
from unilect.families.minimax import MINIMAX, MINIMAX3
from unilect.families.mistral import MISTRAL
from unilect.families.muse import MUSE
from unilect.families.nemotron import NEMOTRON
from unilect.families.olmo import OLMO3
from unilect.families.phi import FUNCTOOLS, PHI
from unilect.families.plain import PLAIN
from unilect.families.seed import SEED
from unilect.families.solar import SOLAR
from unilect.families.step import STEP3

__all__ = ["FAMILIES", "PLAIN", "CallStyle", "Family", "MarkScanner", "Marks", "Reading", "Scanner", "ToolFormat", "Tools", "new_call_id"]  # fmt: skip

#: The first that a template shows, or that a name has, counts: families whose marks are a part of others' come later.
FAMILIES = (
    DSML, PLAIN, DEEPSEEK, KIMI3, KIMI, GEMMA4, GPT_OSS, MINIMAX, MINIMAX3, SEED, COMMAND, COMMAND_R, APERTUS, APRIEL, MUSE, SOLAR,
    HUNYUAN3, FUNCTIONARY, HUNYUAN, JAMBA, LFM2, OLMO3, GIGACHAT, GIGACHAT3, CHATGLM3, GLM45, QWEN_CODER, STEP3, NEMOTRON, MINICPM,
    HERMES, MISTRAL, GRANITE, PHI, FUNCTOOLS, LLAMA4, LLAMA3, GEMMA, GLM,
)  # fmt: skip
_BY_NAME = {family.name: family for family in FAMILIES}


@lru_cache(64)
def of_template(template: str) -> Family | None:
    """Return the family whose chat template this is; None where it shows none."""
    return next((one for one in FAMILIES if any(mark in template for mark in one.shown)), None)


def of_name(*names: str) -> Family | None:
    """Return the family that the names of a model, or of its template, show; None where they show none."""
    return next(
        (one for name in names for one in FAMILIES if any(piece in name.lower()[:256] for piece in one.called)),
        None,
    )  # fmt: skip


def find(name: str) -> Family:
    """Find the family of this name; that of unknown models where there is none."""
    return _BY_NAME.get(name, PLAIN)


def name_of(family: Family | None) -> str:
    """Return the family's name; empty for none."""
    return family.name if family is not None else ""


def may_think(template: str) -> bool:
    """Return True for the chat template of a model that may think before it answers."""
    return "enable_thinking" in template or thoughts_of(template) is not None


@lru_cache(64)
def thoughts_of(template: str) -> tuple[str, str] | None:
    """Return the marks that thoughts stand between in a model's answers; None where its template shows none."""
    family = of_template(template) or PLAIN
    if any(mark in template for mark in family.thinks):
        return family.thoughts
    return next((one for one in (family.thoughts, PLAIN.thoughts) if one[1] in template), None)


def has_begun(prompt: str, thoughts: tuple[str, str] | None) -> bool:
    """Return True where a prompt has begun the thoughts of the answer."""
    return thoughts is not None and prompt.rstrip().endswith(thoughts[0].rstrip())
