"""Tests of unilect.engines.transformers.model.load: what is wrong with a folder is told in a sentence, and embeddings are the model's own."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.models import published
from support.models.torchside import SETTINGS, Asked, need, running

need("torch", "transformers")

import torch

from unilect.demo import FOLDER
from unilect.engines.transformers.batch.loop import BatchLoop
from unilect.engines.transformers.model.folder import read_folder
from unilect.engines.transformers.model.load import LoadedModel
from unilect.engines.transformers.model.packed import is_worth_packing
from unilect.runtime.memory import free_bytes

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]  # a model may have to be fetched
LEAST_COSINE = 0.9999
_WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "Köln",
    "你好",
    "😀",
    "<b>",
    "1,234.5",
    "e-mail",
    "naïve",
    "—",
    "...",
]
#: Sentences of the model's own card, no text, lines alone, one that fills the context, and others of all lengths.
TEXTS = [
    "This is an example sentence",
    "Each sentence is converted",
    "",
    "\n\n",
    " ",
    "Paris " * 1000,
]
TEXTS += [
    " ".join(_WORDS[(number * step) % len(_WORDS)] for step in range(1 + number * number % 97))
    for number in range(200 - len(TEXTS))
]


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


def test_an_end_that_the_model_does_not_have(tmp_path: Path) -> None:
    """A token beyond the vocabulary ends nothing: it could neither be forbidden nor be bound by a grammar."""
    settings = copied(tmp_path / "ends")
    file = tmp_path / "ends" / "generation_config.json"
    known = LoadedModel(SETTINGS).stop_ids
    file.write_text(json.dumps({"eos_token_id": [*known, 4096, -1]}))

    assert known == LoadedModel(settings).stop_ids


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
    with pytest.raises(ValueError, match=r"tokenizer: .*/hf does not fit the model: it has 4096"):
        LoadedModel(settings | {"tokenizer": str(FOLDER / "hf")})


def test_a_tokenizer_from_elsewhere(tmp_path: Path) -> None:
    """The option's folder is where the tokenizer comes from; the model's needs none."""
    settings = copied(tmp_path / "bare", "tokenizer*")
    model = LoadedModel(settings | {"tokenizer": str(FOLDER / "hf")})

    assert (
        LoadedModel(SETTINGS).tokenizer("Hello")["input_ids"]
        == model.tokenizer("Hello")["input_ids"]
    )


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of peft's
def test_an_adapter_with_a_larger_vocabulary(tmp_path: Path) -> None:
    """An adapter that brings embeddings for further tokens fits with its tokenizer, from its own folder or from the option's."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "hf")
    tokenizer.add_tokens(["中文词"])
    base = AutoModelForCausalLM.from_pretrained(FOLDER / "hf", dtype=torch.float32)
    base.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    whole = ["embed_tokens", "lm_head"]
    lora = LoraConfig(target_modules=["q_proj"], modules_to_save=whole, ensure_weight_tying=True)
    adapted = get_peft_model(base, lora)
    adapted.save_pretrained(tmp_path / "lora", save_embedding_layers=False)
    tokenizer.save_pretrained(tmp_path / "words")
    merge = {"merge": [str(tmp_path / "lora")]}

    model = LoadedModel(SETTINGS | merge | {"tokenizer": str(tmp_path / "words")})
    shutil.copytree(tmp_path / "words", tmp_path / "lora", dirs_exist_ok=True)
    brought = LoadedModel(SETTINGS | merge)

    assert (4097, 4097) == (model.size, brought.size)
    assert (
        [4096] == brought.tokenizer("中文词")["input_ids"] == model.tokenizer("中文词")["input_ids"]
    )


def test_a_model_larger_than_memory() -> None:
    """A model that does not fit is not loaded, and both sizes are told."""
    with pytest.raises(ValueError, match="It needs 2000"):
        LoadedModel(SETTINGS | {"size_bytes": 10**12})


def test_answers_larger_than_memory() -> None:
    """A context of which not one answer fits is refused; where only all of them together do not fit, it is said."""
    half = (free_bytes() or 0) // 2 // (2048 * 4)
    narrow = LoadedModel(SETTINGS | {"cache_values": half})

    with pytest.raises(ValueError, match=r"out of memory for the KV cache: .* Lower `context`"):
        LoadedModel(SETTINGS | {"cache_values": half * 3})
    assert "an answer of 2048 tokens (`context`) takes" in narrow.warning
    assert "too little for 4 concurrent requests (`parallel`)" in narrow.warning
    assert "" == LoadedModel(SETTINGS).warning


def test_embeddings_stay_wide() -> None:
    """An output that shares the embeddings' weights is counted apart, and embeddings are not counted as narrow."""
    large = SETTINGS | {"size_bytes": 10**12, "embedding_values": 10**11}
    with pytest.raises(ValueError, match="It needs 2400"):
        LoadedModel(large)
    with pytest.raises(ValueError, match="It needs 2000"):
        LoadedModel(large | {"tied": False})
    narrow = {"dtype": "bfloat16", "stored_bytes": 2}
    sizes = "1200" if is_worth_packing(torch.bfloat16) else "1000"
    with pytest.raises(ValueError, match=f"It needs {sizes}"):
        LoadedModel(large | narrow)
    free = free_bytes() or 0
    eighth = {"size_bytes": free // 4, "embedding_values": free // 16, "quantize": "8bit"}
    with pytest.raises(ValueError, match="out of memory for the KV cache"):
        LoadedModel(SETTINGS | eighth | {"cache_values": free * 3 // 4 // 8192})


def test_what_is_remembered_is_bounded() -> None:
    """Two contexts, or less where memory is short, or as much as the option says."""

    def remembered(**settings: Any) -> int:
        model = LoadedModel(SETTINGS | settings)
        return model.prompt_cache_tokens()

    assert 4096 == remembered()
    assert 0 < remembered(cache_values=(free_bytes() or 0) // 2 // 8192) < 4096
    assert 10 * 2**20 // (1280 * 4) == remembered(cache_ram_mib=10)
    assert (0, 4096) == (remembered(cache_ram_mib=0), remembered(cache_ram_mib=10, cache_values=0))


def test_devices_and_quantisation() -> None:
    """A device that is not there, and 8 bits of narrow weights, are told."""
    with pytest.raises(ValueError, match="device: cuda:99"):
        LoadedModel(SETTINGS | {"device": "cuda:99"})
    with pytest.raises(ValueError, match="float32"):
        LoadedModel(SETTINGS | {"quantize": "8bit", "dtype": "bfloat16"})


def test_no_plan_for_each_token() -> None:
    """cuDNN's attention, which a GPU would plan anew for each length, is not used."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    LoadedModel(SETTINGS)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


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


def test_a_tokenizer_of_sentencepiece(tmp_path: Path) -> None:
    """A folder with `tokenizer.model` and no `tokenizer.json`, as older ones are, is loaded, and its tokenizer reads and writes a text."""
    need("sentencepiece")
    from sentencepiece import SentencePieceTrainer

    settings = copied(tmp_path / "a", "tokenizer*")
    with (tmp_path / "a" / "tokenizer.model").open("wb") as model:
        words = iter(["the cat is on the mat", "one day the sun is out"] * 50)
        SentencePieceTrainer.train(
            sentence_iterator=words, model_writer=model, vocab_size=300, model_type="bpe", byte_fallback=True, minloglevel=2
        )  # fmt: skip
    config = {"tokenizer_class": "LlamaTokenizer"}
    (tmp_path / "a" / "tokenizer_config.json").write_text(json.dumps(config))

    tokenizer = LoadedModel(settings).tokenizer

    assert "the sun é" == tokenizer.decode(tokenizer("the sun é")["input_ids"], True)


def test_embeddings_of_a_real_model() -> None:
    """all-MiniLM-L6-v2 gives its own vectors, mean pooled and normalised, for 200 texts, empty ones and long ones too."""
    from transformers import AutoModel, AutoTokenizer

    path = published.minilm()
    folder = read_folder(path)
    settings = {"path": str(path), "generates": folder.generates, "size_bytes": folder.size_bytes}
    model = LoadedModel(SETTINGS | settings)
    tokenizer, own = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    cut = {"truncation": True, "max_length": folder.context}
    texts = [model.tokenizer(text, **cut)["input_ids"] for text in TEXTS]

    with torch.inference_mode():
        vectors = torch.tensor(embedded(model, texts, folder.pooling or ""))
        for text, vector in zip(TEXTS, vectors, strict=True):
            read = tokenizer(text, return_tensors="pt", **cut)
            expected = own(**read).last_hidden_state[0].mean(0)
            assert LEAST_COSINE <= torch.cosine_similarity(expected, vector, dim=0).item(), text[
                :40
            ]

    product = float(vectors[0] @ vectors[1])
    assert 0.4045594 == pytest.approx(product, abs=1e-5)  # as its model card has it
    assert torch.allclose(torch.ones(len(texts)), vectors.norm(dim=1), atol=1e-5)
    assert ("mean", False, 512) == (folder.pooling, folder.generates, folder.context)


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
