#!/usr/bin/env python3
"""
transformers' own `generate` on a folder, greedily, all rows in one call: for each line with a number of rows its tokens per second
and CPU microseconds for a token, as a line of JSON.

usage: bench/plain_generate.py FOLDER DTYPE [int8 | cuda:0]
"""

import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM

PROMPT, TOKENS = 16, 64


def measured(model: Any, rows: int) -> tuple[float, float]:
    """Tokens per second, and CPU microseconds for a token."""
    ids = torch.randint(300, model.config.vocab_size, (rows, PROMPT), device=model.device)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    with torch.inference_mode():
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
    assert made.cpu().shape[1] == PROMPT + TOKENS  # a GPU has done it only then
    tokens = rows * TOKENS
    return tokens / (time.perf_counter() - begin), (time.process_time() - begin_cpu) * 1e6 / tokens


def main() -> None:
    """Measure what is asked for, and print it."""
    torch.set_num_threads(1)
    dtype = getattr(torch, sys.argv[2])
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=dtype).eval()
    if sys.argv[3:] == ["int8"]:
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    elif sys.argv[3:]:
        model = model.to(sys.argv[3])
    measured(model, 1)  # what only the first call does
    for line in sys.stdin:
        print(json.dumps(measured(model, int(line))), flush=True)


if __name__ == "__main__":
    main()
