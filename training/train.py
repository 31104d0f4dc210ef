"""
Train the network on the corpus.

    python -m training.train --folder training/out/base --tokenizer training/out/tokenizer --steps 2200

Batches hold conversations of similar length, each from position 0 and padded at its end, as they
are served. The loss is taken on what the assistant says (and on all of a plain text). Matrices
are optimised by Muon, the rest by AdamW; the rate is constant and falls to zero over the last
part. SIGTERM does not stop at once: it begins a short fall, then saves, so that a training
stopped at any time gives a good model. What was killed goes on from the state that it last saved.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.json_answers import MUTE, UNMUTE
from training.model import Llama, Shape

#: The processor multiplies numbers of 16 bits; one that does not (without AVX-512) takes half a minute for a step with them, and less than a second without.
_HAS_BF16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()

ANSWER = re.compile(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", re.DOTALL)
MUTED = re.compile(f"{MUTE}(.*?){UNMUTE}", re.DOTALL)
POOL = 8192  # conversations sorted by length together
SHORT_FALL = 300  # steps, after SIGTERM
SHORT = 16  # answers longer than this count less per token, so that stories do not drown the rest


def spans(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the text without marks, and the character ranges that are to be learned."""
    quiet: list[tuple[int, int]] = []
    out, last, size = [], 0, 0
    for match in MUTED.finditer(text):
        out += [text[last : match.start()], match[1]]
        size += match.start() - last
        quiet.append((size, size + len(match[1])))
        size += len(match[1])
        last = match.end()
    clean = "".join(out) + text[last:]
    if not clean.startswith("<|im_start|>"):
        return clean, [(0, len(clean))]
    learned: list[tuple[int, int]] = []
    for match in ANSWER.finditer(clean):
        start, end = match.span(1)
        for a, b in quiet:
            if start <= a < end:
                learned.append((start, a))
                start = b
        learned.append((start, end))
    return clean, learned


def weights(begins: np.ndarray, learned: list[tuple[int, int]]) -> np.ndarray:
    """Weigh each token by the range it begins in: 0 outside, 1 in a short one, else less."""
    out = np.zeros(len(begins), np.float32)
    for a, b in learned:
        inside = (begins >= a) & (begins < b)
        out[inside] = min(1.0, (SHORT / max(1, inside.sum())) ** 0.5)
    return out


def encode(corpus: Path, tokens: Path, longest: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Tokenize a corpus: per conversation its ids (uint16) and its weights (float32)."""
    tokenizer = Tokenizer.from_file(str(tokens / "tokenizer.json"))
    ids: list[np.ndarray] = []
    masks: list[np.ndarray] = []
    with corpus.open(encoding="utf-8") as file:
        rows = [spans(json.loads(line)) for line in file]
    for start in range(0, len(rows), 4096):
        part = rows[start : start + 4096]
        for (_, learned), found in zip(
            part, tokenizer.encode_batch([r[0] for r in part]), strict=True
        ):
            if len(found.ids) > longest:
                continue
            ids.append(np.array(found.ids, np.uint16))
            masks.append(weights(np.array([o[0] for o in found.offsets]), learned))
    return ids, masks


def batches(
    ids: list[np.ndarray], masks: list[np.ndarray], size: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (ids, mask) forever, at most `size` tokens with padding, of similar lengths."""
    r = random.Random(seed)
    order = list(range(len(ids)))
    while True:
        r.shuffle(order)
        for start in range(0, len(order), POOL):
            pool = sorted(order[start : start + POOL], key=lambda i: len(ids[i]))
            groups: list[list[int]] = [[]]
            for i in pool:
                if groups[-1] and (len(groups[-1]) + 1) * len(ids[i]) > size:
                    groups.append([])
                groups[-1].append(i)
            r.shuffle(groups)
            for group in groups:
                width = max(len(ids[i]) for i in group)
                x = np.zeros((len(group), width), np.int64)
                m = np.zeros((len(group), width), np.float32)
                for row, i in enumerate(group):
                    x[row, : len(ids[i])] = ids[i]
                    m[row, : len(ids[i])] = masks[i]
                yield torch.from_numpy(x), torch.from_numpy(m)


def optimizers(model: Llama, rate: float) -> list[torch.optim.Optimizer]:
    """Give matrices to Muon, embeddings and norms to AdamW; all to AdamW where Muon, which works in 16 bits, would take minutes for a step."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.dim() != 2 or "embed" in n]
    if not _HAS_BF16:
        print("no Muon: this processor does not multiply numbers of 16 bits")
        return [
            torch.optim.AdamW(some, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
            for some in (matrices, rest)
        ]
    muon = torch.optim.Muon(
        matrices, lr=rate, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)]


def factor(step: int, steps: int, fall: int) -> float:
    """Give the part of the full rate at a step: short rise, constant, linear fall."""
    return min(1.0, (step + 1) / 80, max(0.0, (steps - step) / fall))


def save(path: Path, **content: object) -> None:
    """Write a file whole or not at all."""
    part = path.with_suffix(".part")
    torch.save(content, part)
    part.replace(path)


class Stopper:
    """Remembers that SIGTERM came."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self.ask)

    def ask(self, *_: object) -> None:
        """Ask for a short fall and an end."""
        self.asked = True


@dataclass(frozen=True)
class Plan:
    """
    How long and how fast to train.

    Attributes:
        steps: batches
        tokens: in a batch, with padding
        rate: of Muon; half for AdamW
        fall: part of the steps in which the rate falls to 0
        start: weights to go on from; None begins from nothing
        save_every: steps
    """

    steps: int
    tokens: int = 4096
    rate: float = 3e-3
    fall: float = 0.5
    start: Path | None = None
    save_every: int = 100


def train(folder: Path, tokens: Path, plan: Plan, seed: int, stopper: Stopper) -> None:
    """Train on `train.jsonl` of a folder; write `model.pt` there, and `state.pt` until then."""
    ids, masks = encode(folder / "train.jsonl", tokens, 1500)
    print(
        f"{len(ids)} conversations, {sum(map(len, ids)) / 1e6:.1f} M tokens,"
        f" learned {sum(int((m > 0).sum()) for m in masks) / 1e6:.1f} M"
    )
    model = Llama(Shape())
    if plan.start:
        model.load_state_dict(torch.load(plan.start)["model"])
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    chosen, about = optimizers(model, plan.rate), {"step": 0, "tokens": 0, "seconds": 0, "loss": 0}
    source, state = batches(ids, masks, plan.tokens, seed), folder / "state.pt"
    if state.exists():
        saved = torch.load(state)
        model.load_state_dict(saved["model"])
        for opt, found in zip(chosen, saved["optimizers"], strict=True):
            opt.load_state_dict(found)
        about = saved["about"]
        for _ in range(about["step"]):  # those that it has seen
            next(source)
        print("goes on", json.dumps(about), flush=True)
    about = take_steps(model, chosen, source, plan, stopper, about, state)
    shape = asdict(model.s)
    save(folder / "model.pt", model=model.state_dict(), shape=shape, about=about | {"seed": seed})
    state.unlink(missing_ok=True)


def take_steps(
    model: Llama, chosen: list[torch.optim.Optimizer], source: Iterator[tuple[Tensor, Tensor]],
    plan: Plan, stopper: Stopper, about: dict[str, Any], state: Path,
) -> dict[str, Any]:  # fmt: skip
    """Take the steps; print progress, save now and then; return what is known about the last step."""
    steps, fall, short = plan.steps, max(1, int(plan.steps * plan.fall)), False
    begun, begun_at, recent = time.time() - about["seconds"], about["tokens"], about["loss"]
    step, seen = about["step"], about["tokens"]
    started = time.time()
    while step < steps:
        if stopper.asked and not short:
            short, fall = True, min(fall, SHORT_FALL)
            steps = min(steps, step + fall)
        x, mask = next(source)
        for opt, rate in zip(chosen, (plan.rate, plan.rate / 2), strict=True):
            for group in opt.param_groups:
                group["lr"] = rate * factor(step, steps, fall)
        with torch.autocast("cpu", torch.bfloat16, enabled=_HAS_BF16):
            loss = model.loss(x, mask)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in chosen:
            opt.step()
            opt.zero_grad(set_to_none=True)
        step += 1
        seen += x.numel()
        recent += (loss.item() - recent) * (1.0 if step == 1 else 0.05)
        about = {
            "step": step,
            "tokens": seen,
            "seconds": round(time.time() - begun),
            "loss": round(recent, 4),
        }
        if step % 20 == 0:
            pace = round((seen - begun_at) / (time.time() - started))
            print(json.dumps({**about, "tokens_per_s": pace}), flush=True)
        if step % plan.save_every == 0:
            found = [opt.state_dict() for opt in chosen]
            save(state, model=model.state_dict(), optimizers=found, about=about)
    return about


def main() -> None:
    """Train until the last step or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the corpus and the weights")
    parser.add_argument("--tokenizer", type=Path, default=Path("training/out/tokenizer"))
    parser.add_argument("--steps", type=int, default=3500)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens in a batch, with padding")
    parser.add_argument("--rate", type=float, default=3e-3, help="of Muon; half for AdamW")
    parser.add_argument(
        "--fall", type=float, default=0.5, help="part of the steps in which the rate falls"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--start", type=Path, help="go on from these weights")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    plan = Plan(args.steps, args.tokens, args.rate, args.fall, args.start, args.save_every)
    train(args.folder, args.tokenizer, plan, args.seed, Stopper())


if __name__ == "__main__":
    main()
