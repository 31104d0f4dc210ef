"""Tests of unilect.hub.repository_files."""

import pytest

from unilect.hub.repository_files import (
    choose_projector,
    ggufs,
    is_path,
    is_transformers,
    parts,
    projectors,
    quantization,
    without_quantization,
)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("Qwen3-4B-Q4_K_M.gguf", "Q4_K_M"),
        ("gemma-3-4b-it-q4_0.gguf", "Q4_0"),
        ("Qwen3-30B-A3B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("m-IQ2_XXS.gguf", "IQ2_XXS"),
        ("BF16/m-BF16-00001-of-00002.gguf", "BF16"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("gpt-oss-20b-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("m-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("m-q4_0_4_8.gguf", "Q4_0_4_8"),
        ("Q8_0/model.gguf", "Q8_0"),
        ("model.gguf", ""),
        ("SmolLM2-135M.gguf", ""),
        ("-" * 300_000, ""),
        ("Q4_" * 100_000 + ".gguf", "Q4_Q4_Q4"),
    ],
)
def test_quantization(file: str, expected: str) -> None:
    """The quantization is read from a file's name, or else its folder's."""
    assert expected == quantization(file)


def test_paths() -> None:
    """A path in a folder stays in it."""
    assert all(map(is_path, ["a.gguf", "q8/a b.gguf", "..a/b..gguf"]))
    for name in ("", "/a", "a//b", "../a", "a/../../b", "a\\b", "a\n", "a\x1b[31m"):
        assert not is_path(name)


def test_one_model_in_several_quantizations() -> None:
    """Names that differ in quantization, folder and parts alone are of one model."""
    files = ["m-Q4_0.gguf", "Q8_0/m-Q8_0-00001-of-00002.gguf", "m.f16.gguf", "m-IQ3_M.gguf"]

    assert {"m-gguf"} == {*map(without_quantization, files)}
    assert without_quantization("other-Q4_0.gguf") != without_quantization("m-Q4_0.gguf")


def test_parts() -> None:
    """A model in parts has as many names as its first says, and no more than a thousand."""
    assert ["a/m-00001-of-00002.gguf", "a/m-00002-of-00002.gguf"] == parts("a/m-00001-of-00002.gguf")  # fmt: skip
    assert 1000 == len(parts("m-00001-of-99999.gguf"))
    assert ["m-00002-of-00003.gguf"] == parts("m-00002-of-00003.gguf")


def test_what_is_beside_a_model() -> None:
    """Projectors, vocabularies and importance matrices are no models; of projectors those of 16 bits come first."""
    files = ["m-Q4_0.gguf", "mmproj-m-Q8_0.gguf", "mmproj-m-f16.gguf", "imatrix.gguf", "ggml-vocab.gguf"]  # fmt: skip

    assert ["m-Q4_0.gguf"] == ggufs(files)
    assert ["mmproj-m-f16.gguf", "mmproj-m-Q8_0.gguf"] == projectors(files)


@pytest.mark.parametrize(
    ("model", "files", "chosen"),
    [
        ("m-Q4_0.gguf", ["m-Q8_0.gguf", "mmproj-F16.gguf", "mmproj-BF16.gguf"], "mmproj-F16.gguf"),
        ("m-Q4_0.gguf", ["other-Q8_0.gguf", "mmproj-F16.gguf"], None),
        ("m-Q4_0.gguf", ["other-Q8_0.gguf", "mmproj-m-Q8_0.gguf", "mmproj-other-f16.gguf"], "mmproj-m-Q8_0.gguf"),
        ("m.Q4_0.gguf", ["other.gguf", "m.mmproj-f16.gguf"], "m.mmproj-f16.gguf"),
        ("q/m-Q4_0-00001-of-00002.gguf", ["q/m-Q4_0-00002-of-00002.gguf", "mmproj-model-f16.gguf"], "mmproj-model-f16.gguf"),
        ("m-Q4_0.gguf", [], None),
    ],
)  # fmt: skip
def test_the_projector_of_a_model(model: str, files: list[str], chosen: str | None) -> None:
    """A projector belongs to the only model, in whatever quantizations, or to the one of its name."""
    assert chosen == choose_projector(model, [model, *files])


def test_words_of_folders() -> None:
    """What a folder is called makes no model something else; a quantization says of an importance matrix that it was used."""
    files = ["x-GGUF-IQ-Imatrix/m-Q4_K_M.gguf", "mmproj-of-all/m.gguf", "a/m-Q4_0-imatrix.gguf"]

    assert sorted(files) == ggufs([*files, "x-GGUF-IQ-Imatrix/imatrix.gguf", "a/m-imatrix.gguf"])


def test_a_model_of_transformers() -> None:
    """A configuration and weights make a model of transformers, and neither alone."""
    assert is_transformers(["config.json", "model.safetensors"])
    assert not is_transformers(["config.json", "x.gguf"])
    assert not is_transformers(["model.safetensors"])
