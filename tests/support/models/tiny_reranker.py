"""Tiny rerankers of transformers with random weights: cross-encoders, and one of the form of Qwen3-Reranker."""

import string
from pathlib import Path
from typing import Any

CONTEXT = 96
WORDS = [
    "paris",
    "berlin",
    "bread",
    "is",
    "the",
    "capital",
    "of",
    "france",
    "cat",
    "sleeps",
    "what",
    "yes",
    "no",
    "user",
    "assistant",
    "system",
]
QUERY = "capital of france"
DOCUMENTS = ["berlin", "paris is the capital of france", "the cat sleeps", "", "bread " * 9]
_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.4,  # far more than usual: scores of a random model are all the same else
}


def cross_encoder(folder: Path, kind: str = "bert", tokenizer: Any = None, **fields: Any) -> Path:
    """A classifier of one label that has learnt nothing, as transformers writes it; with a tokenizer of its own by default."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    torch.manual_seed(5)
    tokenizer = tokenizer or _tokenizer(bert=kind == "bert")
    given = {"vocab_size": len(tokenizer), "num_labels": 1, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, **_SIZES | given | fields)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def qwen3_reranker(folder: Path) -> Path:
    """A Qwen 3 with the model card of Qwen3-Reranker."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(6)
    tokenizer = _tokenizer(bert=False)
    config = AutoConfig.for_model(
        "qwen3", **_SIZES | {"vocab_size": len(tokenizer), "max_position_embeddings": 512}
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Qwen3-Reranker-0.0001B\n")
    return folder


def _tokenizer(bert: bool) -> Any:
    """Whole words, and single characters for what is none."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<|im_start|>", "<|im_end|>"]
    characters = [*sorted(set(string.printable) - {" "}), " "]
    names = [*special, *WORDS, *characters]
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys(names))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("[a-z]+|."), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens(special)
    names = ["input_ids", "attention_mask"]
    if bert:
        marks = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=marks
        )
        names.append("token_type_ids")
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_input_names=names,
        pad_token="[PAD]",
        unk_token="[UNK]",
        eos_token="<|im_end|>",
    )


def direct_scores(folder: Path, query: str, documents: list[str]) -> list[float]:
    """What transformers itself makes of pairs, one by one: sigmoids of logits."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        pairs = [tokenizer(query, document, return_tensors="pt") for document in documents]
        return [torch.sigmoid(model(**pair).logits[0, 0]).item() for pair in pairs]


def card_scores(folder: Path, query: str, documents: list[str]) -> list[float]:
    """The same by the code of Qwen3-Reranker's model card."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    task = "Given a web search query, retrieve relevant passages that answer the query"
    before = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    found = []
    for document in documents:
        asked = f"{before}<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}{after}"
        with torch.inference_mode():
            ids = tokenizer(asked, add_special_tokens=False, return_tensors="pt")["input_ids"]
            logits = model(ids).logits[0, -1]
        both = logits[tokenizer.convert_tokens_to_ids(["no", "yes"])]
        found.append(torch.softmax(both, 0)[1].item())
    return found
