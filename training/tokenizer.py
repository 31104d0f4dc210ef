"""
Train the byte-level BPE and write it as a Hugging Face tokenizer.

    python -m training.tokenizer --out training/out --size 4096

Serving splits text the GPT-2 way, so that llama.cpp's pre-tokenizer "gpt-2" gives the same ids.
The merges are learned on finer pieces: digits one by one, and words that begin with a capital
letter without the blank before them. So a name has the same tokens after a blank, a quote or at
the start of a line, and copying it is easy. Chinese is split at the words of our lists.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from training import words
from training.corpus import TEMPLATE_FILE
from training.json_answers import MUTE, UNMUTE
from training.phrases import load
from training.words import ANIMALS_ZH, COLOURS, CONDITIONS, COUNTRIES, FOODS

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKS = [
    "<tools>",
    "</tools>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]
COMMON_ZH = load("words")["common_zh"]
SAMPLE = 60_000  # conversations that merges are learned on


def _splitter() -> re.Pattern[str]:
    lexicon = {row[2] for row in COUNTRIES} | {row[3] for row in COUNTRIES}
    lexicon |= (
        set(CONDITIONS.values()) | set(COLOURS.values()) | set(FOODS.values()) | set(ANIMALS_ZH)
    )
    lexicon |= set(words.CITIES_ZH)
    lexicon |= set(COMMON_ZH)
    known = "|".join(sorted(lexicon, key=len, reverse=True))
    marks = "|".join(re.escape(mark) for mark in CONTROL + MARKS)
    return re.compile(
        rf"{marks}|\d|'(?:s|t|re|ve|m|ll|d)|[A-Z][a-z]+|[A-Z]| ?[a-z]+|{known}|[\u4e00-\u9fff]"
        r"| ?[^\sA-Za-z0-9\u4e00-\u9fff]+|\s+"
    )


def pieces(texts: list[str]) -> Iterator[str]:
    """Cut texts into the pieces that merges may not cross."""
    splitter = _splitter()
    marks = set(CONTROL + MARKS)
    for text in texts:
        for piece in splitter.findall(text.replace(MUTE, "").replace(UNMUTE, "")):
            if piece not in marks:
                yield piece


def characters() -> str:
    """Name every Chinese character of our lists, so that each becomes a token."""
    folder = Path(__file__).parent
    files = [*folder.glob("*.py"), *folder.glob("phrases/*.toml")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    return "".join(sorted(set(re.findall(r"[\u4e00-\u9fff，。！？：、]", text))))


def train(texts: list[str], size: int) -> Tokenizer:
    """Learn the merges; the tokenizer that comes back splits the GPT-2 way."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(CONTROL) - len(MARKS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    extra = [c for c in characters() for _ in range(40)]
    tokenizer.train_from_iterator([*pieces(texts), *extra], trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKS])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """Write tokenizer.json and tokenizer_config.json with the chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE_FILE.read_text(encoding="utf-8"),
    }
    text = json.dumps(config, ensure_ascii=False, indent=2)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def make(corpus: Path, folder: Path, size: int = 4096) -> None:
    """Train on the first conversations of a corpus and save."""
    with corpus.open(encoding="utf-8") as file:
        texts = [json.loads(line) for line, _ in zip(file, range(SAMPLE), strict=False)]
    tokenizer = train(texts, size)
    save(tokenizer, folder, 2048)
    count = sum(len(e.ids) for e in tokenizer.encode_batch(texts[:5000]))
    print(f"vocabulary {tokenizer.get_vocab_size()}, {count / 5000:.1f} tokens a conversation")


def main() -> None:
    """Train the tokenizer of a corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("training/out"))
    parser.add_argument("--size", type=int, default=4096)
    args = parser.parse_args()
    make(args.out / "train.jsonl", args.out / "tokenizer", args.size)


if __name__ == "__main__":
    main()
