"""Tiny models of transformers with random weights, of any kind, for tests of what the batch makes of them."""

import json
import random
from pathlib import Path
from typing import Any

from support.models.torchside import SETTINGS
from unilect.demo import FOLDER

_SHARED: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # far more than usual: a random model says the same again and again else
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CONTEXT = 256


class Tiny:
    """
    A model.

    Args:
        folder: Where it is written.
        kind: Its type.
        fields: Of its configuration.

    Attributes:
        folder: As given.
        model: As transformers has it.
        words: Size of the vocabulary.
    """

    def __init__(self, folder: Path, kind: str, **fields: Any) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        torch.manual_seed(1)
        tokenizer = AutoTokenizer.from_pretrained(FOLDER / "hf")
        self.words = len(tokenizer)
        config = AutoConfig.for_model(kind, **_SHARED | {"vocab_size": self.words} | fields)
        self.model: Any = AutoModelForCausalLM.from_config(config).eval()
        self.model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        self.folder = folder

    def loaded(self, **settings: Any) -> Any:
        """The model as the child loads it."""
        from unilect.engines.transformers.model.load import LoadedModel

        size = sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))
        own = {"path": str(self.folder), "size_bytes": size, "stored_bytes": 4, "context": CONTEXT}
        return LoadedModel(SETTINGS | own | settings)

    def text(self, dice: random.Random, count: int) -> list[int]:
        """So many tokens."""
        return [dice.randrange(3, self.words) for _ in range(count)]

    def adapter(self, folder: Path, seed: int) -> Path:
        """A LoRA adapter of two layers, and the strength of it."""
        import torch
        from safetensors.torch import save_file

        dice = torch.Generator().manual_seed(seed)
        tensors = {}
        for layer in ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"):
            out, inside = self.model.get_submodule(layer).weight.shape
            for name, shape in (("A", (4, inside)), ("B", (out, 4))):
                key = f"base_model.model.{layer}.lora_{name}.weight"
                tensors[key] = torch.randn(shape, generator=dice) * 0.3
        folder.mkdir()
        save_file(tensors, str(folder / "adapter_model.safetensors"))
        config = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["q_proj"]}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        return folder


def generated(model: Any, prompt: list[int], count: int, stops: Any, **how: Any) -> list[int]:
    """What transformers' own generate answers alone, greedily."""
    import torch

    with torch.inference_mode():
        ids = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=sorted(stops),
            pad_token_id=0,
            **how,
        )
    return [token for token in ids[0, len(prompt) :].tolist() if token not in stops]
