"""Published chat templates: names of special tokens in a conversation's texts are text, whatever a template makes of them."""

import re

import pytest

from support.backends.engine import chat
from support.models.published import chat_templates
from support.models.torchside import need

need("torch", "transformers", "tokenizers")

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from unilect.core.errors import InvalidRequest
from unilect.engines.transformers.words.prompt_builder import PromptBuilder

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]  # the templates may have to be fetched
NAME = re.compile(
    r"<[|｜][^<>| ]{1,40}[|｜]>|\[/?[A-Z_]{3,20}\]|<\w{1,16}_of_turn>|<\|\w+>|<\w+\|>"
)
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
LEAST = 60  # others refuse the conversation, or have their tools written into texts, marks and all


def test_names_in_texts() -> None:
    """The text of a prompt is what the template makes of it, and its special tokens are those of a conversation without names."""
    read = 0
    for key, template in chat_templates().items():
        names = sorted({*NAME.findall(template), "<s>", "</s>"})
        made = Tokenizer(models.BPE({sign: place for place, sign in enumerate(BYTES)}, []))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        made.add_special_tokens([AddedToken(name, special=True) for name in names])
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=made, bos_token="<s>", eos_token="</s>"
        )
        reader = PromptBuilder(tokenizer, template, 10**6, frozenset(), 0)
        counts = []
        try:
            for text in ("x", " a\n" + " b".join(names)):
                said = [("user", text), ("assistant", "y"), ("user", text)]
                talk = [{"role": role, "content": content} for role, content in said]
                rendered = reader.render(chat(messages=talk))
                ids = reader.chat_tokens(rendered)
                assert reader.text(ids) == reader.restore(rendered), key
                counts.append(sum(id >= len(BYTES) for id in ids))
        except InvalidRequest:
            continue
        assert text.strip() in reader.restore(rendered), key
        if reader._tool_marks:
            continue
        assert counts[0] == counts[1], key
        read += 1
    assert read >= LEAST
