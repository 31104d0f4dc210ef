"""
Check that the two exports are one model: tokens, chat prompts, and greedy answers.

    python -m training.check_export

The GGUF answers through xllamacpp, the folder through transformers in float32. Exits with 1 when
a token id or a rendered prompt differs, or when fewer than 95 percent of the answers agree.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.evaluate import body_of, raw_fields
from training.serving import Served

STRINGS = [
    "Hello, world!",
    "What is the capital of France?  ",
    "告诉我中国的首都在哪里",
    "中国的首都是北京。",
    "I'm here, you're there; it's 3:45 pm. We'll see, they've gone, I'd go.",
    '{"name": "get_weather", "arguments": {"city": "São Paulo", "n": -12.50}}',
    "tabs\tand\n\nnewlines \n  indented\r\n   end   ",
    "emoji 🙂🚀👩‍👩‍👧 and flags 🇫🇷",
    "العربية עברית हिन्दी русский ελληνικά 日本語 한국어 龘",
    "\x00\x01\x7f bytes \u00a0 \u2003 \ufeff \ufffd",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{}\n</tool_call><|im_end|>",
    "<tools><|endoftext|></tools> <tool_response>x</tool_response> <|im_start <tool_cal",
    "1234567890 12 + 34 = 46, 0.5e-10 ½ ² Ⅷ ٣",
    "don't DON'T 'S 'tis x's",
    "a" * 300,
    " " * 50 + "x",
    "",
]


def token_faults(served: Served, tokenizer: Any, texts: list[str]) -> list[str]:
    """Return the texts whose token ids differ."""
    wrong = []
    for text in texts:
        ours = tokenizer(text, add_special_tokens=False)["input_ids"]
        body = {"content": text, "add_special": False, "parse_special": True}
        if ours != served.post("/tokenize", body)["tokens"]:
            wrong.append(text)
    return wrong


def prompt_faults(served: Served, tokenizer: Any, rows: list[dict[str, Any]]) -> list[str]:
    """Return the prompts that llama.cpp renders in another way than transformers."""
    wrong = []
    for row in rows:
        tools = [{"type": "function", "function": f} for f in row.get("tools", [])] or None
        ours = tokenizer.apply_chat_template(
            row["messages"], tools=tools, tokenize=False, add_generation_prompt=True
        )
        body = {"messages": raw_fields(row["messages"]), **({"tools": tools} if tools else {})}
        theirs = served.post("/apply-template", body)["prompt"]
        if ours != theirs:
            wrong.append(f"{ours!r}\n   llama.cpp: {theirs!r}")
    return wrong


def answers(model: Any, tokenizer: Any, row: dict[str, Any]) -> str:
    """Answer greedily with transformers."""
    tools = [{"type": "function", "function": f} for f in row.get("tools", [])] or None
    ids = tokenizer.apply_chat_template(
        row["messages"],
        tools=tools,
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    with torch.inference_mode():
        out = model.generate(**ids, max_new_tokens=200)
    text: str = tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=False)
    return text.removesuffix("<|im_end|>")


def same(text: str, choice: dict[str, Any]) -> bool:
    """Compare the text of one engine with the parsed message of the other."""
    calls = choice["message"].get("tool_calls")
    if not calls:
        return text == choice["message"]["content"]
    call = calls[0]["function"]
    found = {"name": call["name"], "arguments": json.loads(call["arguments"])}
    try:
        inner = text.split("<tool_call>\n")[1].split("\n</tool_call>")[0]
        return bool(json.loads(inner) == found)
    except (IndexError, ValueError):
        return False


def main() -> None:
    """Run all three checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, default=Path("src/unilect/demo"))
    parser.add_argument("--heldout", type=Path, default=Path("training/out/heldout.jsonl"))
    parser.add_argument("--answers", type=int, default=200)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in args.heldout.read_text(encoding="utf-8").splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(args.demo / "hf")
    model = AutoModelForCausalLM.from_pretrained(args.demo / "hf", dtype=torch.float32)
    served = Served(args.demo / "model.gguf")
    texts = STRINGS + [m["content"] for row in rows[::3] for m in row["messages"]]
    tokens = token_faults(served, tokenizer, texts)
    prompts = prompt_faults(served, tokenizer, rows[::7])
    chosen = [row for row in rows[:: max(1, len(rows) // args.answers)] if not row.get("schema")]
    agreed = [
        same(
            answers(model, tokenizer, row), served.chat(raw_fields(row["messages"]), **body_of(row))
        )
        for row in chosen
    ]
    for fault in tokens + prompts[:3]:
        print("differs:", fault)
    print(f"token ids equal: {len(texts) - len(tokens)} of {len(texts)} texts")
    print(f"prompts equal: {len(rows[::7]) - len(prompts)} of {len(rows[::7])}")
    print(f"greedy answers equal: {sum(agreed)} of {len(agreed)}")
    sys.exit(int(bool(tokens or prompts or sum(agreed) < 0.95 * len(agreed))))


if __name__ == "__main__":
    main()
