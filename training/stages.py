"""
Run all stages of `stages.toml` from nothing: corpus, tokenizer, training.

    python -m training.stages --out training/out --seed 1

What is finished is not made again, and a stage that was interrupted goes on where it last saved. SIGTERM makes it short: the stage
in hand falls to its end, those after it take a fall's steps only, and the weights are good.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

import torch

from training import corpus, tokenizer, train

FILE = Path(__file__).with_name("stages.toml")


@dataclass(frozen=True)
class Stage:
    """
    One stage.

    Attributes:
        name: also of its folder
        count: conversations of its corpus
        seed: added to the run's
        zh: share of Chinese
        steps: batches
        rate: of Muon; half for AdamW
        fall: part of the steps in which the rate falls to 0
        shares: what a conversation is mostly about -> its share
        after: the stage whose weights it goes on with; empty: the one before
        mean_with: the stage with whose weights its own are averaged in the end; empty: none
        tokens: in a batch, with padding
        save_every: steps after which what is needed to go on is saved
    """

    name: str
    count: int
    seed: int
    zh: float
    steps: int
    rate: float
    fall: float
    shares: dict[str, float]
    after: str = ""
    mean_with: str = ""
    tokens: int = train.Plan.tokens
    save_every: int = train.Plan.save_every


def load(path: Path) -> list[Stage]:
    """Read a table of stages."""
    with path.open("rb") as file:
        return [Stage(**entry) for entry in tomllib.load(file)["stage"]]


def prepare(stage: Stage, out: Path, seed: int) -> Path:
    """Make a stage's corpus, and the tokenizer where there is none yet; return the stage's folder."""
    folder = out / stage.name
    if not (folder / "train.jsonl").exists():
        corpus.write(folder, stage.count, seed + stage.seed, stage.shares, stage.zh)
    if not (out / "tokenizer" / "tokenizer.json").exists():
        tokenizer.make(folder / "train.jsonl", out / "tokenizer")
    if not (out / "heldout.jsonl").exists():
        corpus.write_heldout(out / "heldout.jsonl", seed)
    return folder


def mean(first: Path, second: Path, path: Path) -> None:
    """Write the mean of two stages' weights; https://arxiv.org/abs/2203.05482."""
    one, other = torch.load(first), torch.load(second)
    model = {name: torch.lerp(of, other["model"][name], 0.5) for name, of in one["model"].items()}
    train.save(path, **(one | {"model": model}))


def main() -> None:
    """Run the stages that are not finished."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("training/out"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stages", type=Path, default=FILE)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    stopper = train.Stopper()
    made: dict[str, Path] = {}
    last: Path | None = None
    for stage in load(args.stages):
        folder = prepare(stage, args.out, args.seed)
        last, before = folder / "model.pt", made[stage.after] if stage.after else last
        if not last.exists():
            print(f"stage {stage.name}", flush=True)
            plan = train.Plan(
                stage.steps, stage.tokens, stage.rate, stage.fall, before, stage.save_every
            )
            torch.manual_seed(args.seed)
            train.train(folder, args.out / "tokenizer", plan, args.seed + stage.seed, stopper)
        if stage.mean_with:
            mean(made[stage.mean_with], last, folder / "mean.pt")
            last = folder / "mean.pt"
        made[stage.name] = last
    if last:
        shutil.copy(last, args.out / "model.pt")


if __name__ == "__main__":
    main()
