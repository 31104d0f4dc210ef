"""Tests of unilect.engines.transformers.model.folder: what a folder says of itself, without torch."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from unilect.core.errors import ConfigError
from unilect.demo import FOLDER
from unilect.engines.transformers.model.folder import cache_values, must_merge, read_folder


def written(folder: Path, config: dict[str, Any] | str, *files: str) -> Path:
    """A folder with this config.json and other empty files."""
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "config.json").write_text(text)
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("{}")
    return folder


def test_the_bundled_model() -> None:
    """The bundled model writes, has a template, and no code and no pickles."""
    folder = read_folder(FOLDER / "hf")

    assert (2048, True, 2) == (folder.context, folder.generates, folder.stored_bytes)
    assert "tool_call" in folder.template
    assert not folder.own_code
    assert not folder.pickled


def test_a_model_that_embeds(tmp_path: Path) -> None:
    """A model without a head only embeds, pooled as its folder says."""
    config = {"architectures": ["BertModel"], "max_position_embeddings": 512, "dtype": "float32"}
    folder = written(tmp_path, config, "model.safetensors", "1_Pooling/config.json")
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')

    found = read_folder(folder)

    assert (False, "cls", 4) == (found.generates, found.pooling, found.stored_bytes)


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("1_Pooling/config.json", '{"pooling_mode_max_tokens": true}', "pooling_mode_max_tokens"),
        (
            "1_Pooling/config.json",
            '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}',
            "pooling_mode_cls_token, pooling_mode_mean_tokens",
        ),
        ("modules.json", '[{"type": "sentence_transformers.models.Dense"}]', "Dense"),
        ("modules.json", "{", "as JSON"),
    ],
)
def test_embeddings_that_would_be_others(
    tmp_path: Path, file: str, text: str, expected: str
) -> None:
    """A folder whose embeddings are made in a way that is not known here is refused, and not served with other vectors."""
    folder = written(tmp_path, {"architectures": ["BertModel"]}, "model.safetensors", file)
    (tmp_path / file).write_text(text)

    with pytest.raises(ConfigError, match=expected):
        read_folder(folder)


def test_positions_that_are_never_used(tmp_path: Path) -> None:
    """Where positions begin behind the padding's id, the context is what is left of them."""
    config = {"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}

    assert 512 == read_folder(written(tmp_path, config, "model.safetensors")).context
    del config["pad_token_id"]  # its own is 1 where nothing is said
    assert 512 == read_folder(written(tmp_path, config, "model.safetensors")).context


def stored(file: Path, **tensors: tuple[str, int]) -> None:
    """A file with tensors of so many bytes each."""
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, size) in tensors.items():
        head[name] = {"dtype": dtype, "shape": [size], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(head).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))


@pytest.mark.parametrize(
    ("tensors", "said", "expected"),
    [
        ({"a": ("F32", 400), "b": ("I64", 8)}, {}, 4),  # as folders of 2022 are
        ({"a": ("F32", 400)}, {"dtype": "bfloat16"}, 4),
        ({"a": ("BF16", 400), "b": ("F32", 8)}, {"torch_dtype": "float32"}, 2),
        ({"a": ("U8", 400), "b": ("F32", 8)}, {}, 2),
        ({}, {"dtype": "float32"}, 4),
    ],
)
def test_how_wide_weights_are(
    tmp_path: Path, tensors: dict[str, tuple[str, int]], said: dict[str, str], expected: int
) -> None:
    """Weights are as wide as their file has most of them, whatever the configuration says."""
    stored(tmp_path / "model.safetensors", **tensors)

    assert expected == read_folder(written(tmp_path, said)).stored_bytes


def test_weights_that_lie_there_twice(tmp_path: Path) -> None:
    """What is loaded counts, and no other file: neither beside one nor beside the parts that an index names."""
    for name in ("model-1", "model-2", "consolidated"):
        stored(tmp_path / f"{name}.safetensors", a=("BF16", 1000))
    size = (tmp_path / "consolidated.safetensors").stat().st_size
    index = tmp_path / "model.safetensors.index.json"
    names = {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}
    index.write_text(json.dumps({"weight_map": names}))

    assert 2 * size == read_folder(written(tmp_path, {})).size_bytes
    stored(tmp_path / "model.safetensors", a=("BF16", 1000))
    assert size == read_folder(tmp_path).size_bytes


def test_a_model_with_code_and_pickles(tmp_path: Path) -> None:
    """Code of its own and pickled weights are seen."""
    config = {"architectures": ["X"], "auto_map": {"AutoModelForCausalLM": "modeling.X"}}

    found = read_folder(written(tmp_path, config, "pytorch_model.bin"))

    assert (True, True, True) == (found.generates, found.own_code, found.pickled)


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    """An empty folder, a broken config.json and a folder without weights are told as such."""
    with pytest.raises(ConfigError, match="not a transformers model"):
        read_folder(tmp_path)
    with pytest.raises(ConfigError, match="as JSON"):
        read_folder(written(tmp_path, "{"))
    with pytest.raises(ConfigError, match="no weights"):
        read_folder(written(tmp_path, {}))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}, 262_144),
        (
            {
                "num_hidden_layers": 28,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "hidden_size": 1024,
            },
            57_344,
        ),
        ({"n_layer": 12, "n_head": 12, "n_embd": 768}, 18_432),
        (
            {
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "hidden_size": 64,
                "kv_lora_rank": 8,
            },
            0,
        ),
        ({"num_hidden_layers": 4, "num_attention_heads": [4, 8], "hidden_size": 64}, 0),
        ({}, 0),
    ],
)
def test_what_a_token_leaves_in_the_cache(config: dict[str, Any], expected: int) -> None:
    """Keys and values of all layers, for the heads that have their own; 0 where a model keeps something else."""
    assert expected == cache_values(config)


def test_adapters_that_must_be_merged(tmp_path: Path) -> None:
    """An adapter with whole layers is merged, a plain one is not, and others are no adapters of ours."""
    assert not must_merge(FOLDER / "lora-pirate")
    shutil.copytree(FOLDER / "lora-pirate", tmp_path / "lora")
    file = tmp_path / "lora" / "adapter_config.json"
    plain = json.loads(file.read_text())
    for change in ({"modules_to_save": ["lm_head"]}, {"use_dora": True}, {"bias": "all"}):
        file.write_text(json.dumps(plain | change))
        assert must_merge(tmp_path / "lora")
    file.write_text(json.dumps(plain | {"peft_type": "IA3"}))
    with pytest.raises(ConfigError, match="IA3"):
        must_merge(tmp_path / "lora")
    (tmp_path / "lora" / "adapter_model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"adapter_model\.safetensors"):
        must_merge(tmp_path / "lora")
    with pytest.raises(ConfigError, match="not a PEFT LoRA adapter"):
        must_merge(tmp_path)
