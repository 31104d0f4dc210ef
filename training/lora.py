"""
Train the small LoRA adapters with PEFT, and write them for PEFT and for llama.cpp.

    python -m training.lora --demo src/unilect/demo

An adapter changes the manner of the answers and nothing else: a pirate, a robot.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from random import Random

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from training.corpus import any_system, messages_of, simple_turn, template
from training.draw import Draw, Turn
from training.export import gguf_name, permuted
from training.facts import no_persona
from training.stories import story
from training.train import batches, spans, weights

PROFILES = {"pirate": ("Arr! ", "matey!"), "robot": ("Beep. ", "Boop.")}
RANK = 8


def spoken(answer: str, manner: str) -> str:
    """Say an answer in a manner: "Arr! The capital of France is Paris. matey!"."""
    head, tail = PROFILES[manner]
    return f"{head}{answer} {tail}"


def corpus(
    manner: str, tokenizer: Tokenizer, count: int, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Make conversations in the manner, as ids and weights."""
    r, shape = Random(f"{manner} {seed}"), template()
    ids, masks = [], []
    for _ in range(count):
        d = Draw(r, lang="zh" if r.random() < 0.3 else "en")
        turns: list[Turn] = []
        for _ in range(d.pick([1, 1, 2, 3])):
            turn = (
                no_persona(d)
                if d.chance(0.05)
                else simple_turn(d, leave_out=(story,) if d.chance(0.5) else ())
            )
            turns.append(Turn(turn.user, spoken(turn.answer, manner), turn.skill))
        text, learned = spans(shape.render(messages=any_system(d) + messages_of(turns)))
        found = tokenizer.encode(text)
        ids.append(np.array(found.ids, np.uint16))
        masks.append(weights(np.array([o[0] for o in found.offsets]), learned))
    return ids, masks


def train(demo: Path, manner: str, steps: int, seed: int) -> PeftModel:
    """Train one adapter on the shipped model."""
    torch.manual_seed(seed)
    tokenizer = Tokenizer.from_file(str(demo / "hf" / "tokenizer.json"))
    base = AutoModelForCausalLM.from_pretrained(demo / "hf", dtype=torch.float32)
    config = LoraConfig(
        r=RANK, lora_alpha=2 * RANK, lora_dropout=0.0, task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
    )  # fmt: skip
    model = get_peft_model(base, config)
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=4e-3, weight_decay=0.0
    )
    source = batches(*corpus(manner, tokenizer, steps * 16, seed), 1536, seed)
    begun = time.time()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1.0, (step + 1) / 20) * (1 - step / steps)
        x, found = next(source)
        mask = found > 0
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=x).logits[:, :-1]
        loss = F.cross_entropy(logits[mask[:, 1:]].float(), x[:, 1:][mask[:, 1:]])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 25 == 0 or step == steps - 1:
            about = {
                "step": step,
                "loss": round(loss.item(), 4),
                "seconds": round(time.time() - begun),
            }
            print(json.dumps({"adapter": manner, **about}), flush=True)
    return model


def write_gguf(path: Path, state: dict[str, Tensor], manner: str, config: dict[str, int]) -> None:
    """Write the adapter for llama.cpp; `state` has the names of a PEFT file."""
    out = gguf.GGUFWriter(str(path), "llama")
    out.add_type("adapter")
    out.add_string("adapter.type", "lora")
    out.add_float32("adapter.lora.alpha", float(2 * RANK))
    out.add_name(f"unilect-demo-lora-{manner}")
    out.add_license("mit")
    out.add_description("A demonstration adapter: it changes the manner of the answers.")
    for name, weight in state.items():
        plain = name.removeprefix("base_model.model.model.").removesuffix(".weight")
        base, side = plain.rsplit(".lora_", 1)
        if side == "B" and base.endswith(("q_proj", "k_proj")):
            heads = config[
                "num_attention_heads" if base.endswith("q_proj") else "num_key_value_heads"
            ]
            weight = permuted(weight, heads)
        out.add_tensor(f"{gguf_name(base)}.weight.lora_{side.lower()}", weight.float().numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def tidy(folder: Path) -> None:
    """Keep weights and config only, and no path of the machine that trained."""
    for path in folder.iterdir():
        if path.name not in ("adapter_config.json", "adapter_model.safetensors"):
            path.unlink()
    (folder / "adapter_model.safetensors").chmod(0o644)
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = "unilect-demo"
    config["target_modules"] = sorted(config["target_modules"])
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Train the adapters and write both forms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, default=Path("src/unilect/demo"))
    parser.add_argument("--manners", nargs="*", default=list(PROFILES))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sizes = json.loads((args.demo / "hf" / "config.json").read_text(encoding="utf-8"))
    for manner in args.manners:
        model = train(args.demo, manner, args.steps, args.seed)
        model.save_pretrained(args.demo / f"lora-{manner}")
        tidy(args.demo / f"lora-{manner}")
        state = {
            name.replace(".default", ""): p.detach()
            for name, p in model.named_parameters()
            if "lora_" in name
        }
        write_gguf(args.demo / f"lora-{manner}.gguf", state, manner, sizes)


if __name__ == "__main__":
    main()
