#!/usr/bin/env python3
"""
transformers' own `generate` on a folder, greedily: tokens per second with 1, 8 and 32 rows in one call, as JSON.

usage: bench/plain_generate.py FOLDER DTYPE [int8]
"""

import json
import sys
import time
from statistics import median

import torch
from transformers import AutoModelForCausalLM

PROMPT, TOKENS, ROUNDS = 16, 64, 3


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    dtype = getattr(torch, sys.argv[2])
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=dtype).eval()
    if sys.argv[3:] == ["int8"]:
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    found: dict[int, tuple[float, float]] = {}
    for rows in (1, 8, 32):
        rates, costs = [], []
        for _ in range(ROUNDS):
            ids = torch.randint(300, model.config.vocab_size, (rows, PROMPT))
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
            assert made.shape[1] == PROMPT + TOKENS
            rates.append(rows * TOKENS / (time.perf_counter() - begin))
            costs.append((time.process_time() - begin_cpu) * 1e6 / (rows * TOKENS))
        found[rows] = (median(rates), median(costs))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
