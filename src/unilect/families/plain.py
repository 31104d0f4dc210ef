"""
Models of no family that is known.

An answer is a call where it is JSON, or a list of calls as Python writes it, or where the model marks it in the way that it was trained
with, whatever it was told.
"""

from unilect.families._family import Family, ToolFormat
from unilect.families.apertus import APERTUS
from unilect.families.command import COMMAND
from unilect.families.deepseek import DEEPSEEK, DSML
from unilect.families.gemma4 import GEMMA4
from unilect.families.gigachat import GIGACHAT
from unilect.families.hermes import HERMES
from unilect.families.hunyuan3 import HUNYUAN3
from unilect.families.jamba import JAMBA
from unilect.families.kimi import KIMI, KIMI3
from unilect.families.lfm import LFM2
from unilect.families.llama import LLAMA3, LLAMA4
from unilect.families.minimax import MINIMAX, MINIMAX3
from unilect.families.mistral import MISTRAL
from unilect.families.nemotron import NEMOTRON
from unilect.families.olmo import OLMO3
from unilect.families.phi import PHI
from unilect.families.seed import SEED
from unilect.families.solar import SOLAR
from unilect.families.step import STEP3

_MARKED = (
    *(HERMES, MISTRAL, DEEPSEEK, PHI, DSML, KIMI, KIMI3, GEMMA4, LLAMA3, LLAMA4, MINIMAX, LFM2),
    *(MINIMAX3, HUNYUAN3, SOLAR, SEED, STEP3, COMMAND, APERTUS, NEMOTRON, JAMBA, OLMO3, GIGACHAT),
)
PLAIN = Family(
    name="plain",
    called=("deepseek-r1-distill",),
    calls=tuple({one.begin: one for family in reversed(_MARKED) for one in family.calls}.values()),
    marks=tuple({mark for family in _MARKED for mark in family.marks}),
    is_bare=True,
    written=ToolFormat(
        rules='\n\nTo call one, answer with JSON and with nothing else, one line for each call:\n{"name": <name>, '
        '"arguments": <object>}\nThe result comes back to you. Where no function helps, answer in words.',
        result=lambda name, number, text: f"The result of {name}:\n{text}",
    ),
)
