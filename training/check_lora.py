"""
Check the adapters with transformers + peft and with xllamacpp: the manner, the content, and that
scale 0 gives the plain model.

    python -m training.check_lora
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from random import Random

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.check_export import answers
from training.draw import Draw, Turn
from training.lora import PROFILES, spoken
from training.serving import Served
from training.talk import capital, small_talk, sums


def questions(count: int) -> list[Turn]:
    """Draw held-out short questions with one right answer."""
    r = Random("lora questions")
    turns = []
    for _ in range(count):
        d = Draw(r, heldout=True, lang="zh" if r.random() < 0.3 else "en")
        turns.append(r.choice([capital, small_talk, sums])(d))
    return turns


def scales(index: int, count: int) -> list[dict[str, int]]:
    """Write the `lora` field: adapter `index` on, all others off."""
    return [{"id": i, "scale": int(i == index)} for i in range(count)]


def main() -> None:
    """Print a table: adapter, engine, right, of."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, default=Path("src/unilect/demo"))
    parser.add_argument("--count", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    profile = [m for m in PROFILES if (args.demo / f"lora-{m}.gguf").exists()]
    served = Served(args.demo / "model.gguf", tuple(args.demo / f"lora-{m}.gguf" for m in profile))
    tokenizer = AutoTokenizer.from_pretrained(args.demo / "hf")
    turns = questions(args.count)
    failed = False
    for index, manner in enumerate(profile):
        base = AutoModelForCausalLM.from_pretrained(args.demo / "hf", dtype=torch.float32)
        model = PeftModel.from_pretrained(base, args.demo / f"lora-{manner}")
        score = {"peft": 0, "gguf": 0, "gguf off": 0}
        for turn in turns:
            messages = [{"role": "user", "content": turn.user}]
            wanted = spoken(turn.answer, manner)
            score["peft"] += answers(model, tokenizer, {"messages": messages}) == wanted
            on = served.chat(messages, lora=scales(index, len(profile)))
            off = served.chat(messages, lora=scales(-1, len(profile)))
            score["gguf"] += on["message"]["content"] == wanted
            score["gguf off"] += off["message"]["content"] == turn.answer
        for engine, count in score.items():
            print(f"{manner:<8} {engine:<9} {count:>4} of {len(turns)}")
            # an adapter can be right no more often than the model that it changes
            failed |= count < 0.9 * (len(turns) if engine == "gguf off" else score["gguf off"])
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
