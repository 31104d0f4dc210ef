"""Tests of reranking with transformers: pairs as models read them, their scores, and rerankers told from other models."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.models.torchside import SETTINGS, need

need("torch", "transformers", "safetensors")

from support.models import tiny_reranker as tiny
from support.servers.appserver import serving
from unilect.config.server import ModelConfig
from unilect.core.errors import ConfigError, ContextLengthExceeded
from unilect.core.ranking import RerankRequest, sigmoid
from unilect.demo import FOLDER
from unilect.engines.transformers.batch.pairs import Pairs
from unilect.engines.transformers.engine import HfEngine
from unilect.engines.transformers.model.folder import read_folder
from unilect.engines.transformers.model.load import LoadedModel
from unilect.testing import check_backend

pytestmark = pytest.mark.heavy

in_one_loop = pytest.mark.asyncio(loop_scope="module")
DOCUMENTS = [*tiny.DOCUMENTS, *map(str, range(30))]
FORMS = ["pair", "qwen3"]
DIRECT = {"pair": tiny.direct_scores, "qwen3": tiny.card_scores}
CONTEXT = {"pair": tiny.CONTEXT, "qwen3": 512}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny reranker of each form."""
    path = tmp_path_factory.mktemp("rerankers")
    return {
        "pair": tiny.cross_encoder(path / "pair"),
        "qwen3": tiny.qwen3_reranker(path / "qwen3"),
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(folders: dict[str, Path]) -> AsyncIterator[dict[str, HfEngine]]:
    """The same, started."""
    made = {form: HfEngine(form, folder, ModelConfig()) for form, folder in folders.items()}
    await asyncio.gather(*(engine.start() for engine in made.values()))
    yield made
    await asyncio.gather(*(engine.aclose() for engine in made.values()))


def request(*documents: str, query: str = tiny.QUERY, **fields: Any) -> RerankRequest:
    """A request to rank these."""
    return RerankRequest(query=query, documents=list(documents), **fields)


@in_one_loop
@pytest.mark.parametrize("form", FORMS)
async def test_scores(engines: dict[str, HfEngine], folders: dict[str, Path], form: str) -> None:
    """Scores are those of transformers' own forward, pair by pair; raw ones are the logits before the sigmoid."""
    expected = DIRECT[form](folders[form], tiny.QUERY, DOCUMENTS)
    found = await engines[form].rerank(request(*DOCUMENTS))
    raw = await engines[form].rerank(request(*DOCUMENTS, raw_scores=True))

    assert expected == pytest.approx(found.scores, abs=1e-5)
    assert expected == pytest.approx([sigmoid(logit) for logit in raw.scores], abs=1e-5)
    assert max(expected) - min(expected) > 0.1


@in_one_loop
@pytest.mark.parametrize("form", FORMS)
async def test_side_by_side(engines: dict[str, HfEngine], form: str) -> None:
    """Requests at the same time are answered as alone, each in the order of its documents."""
    alone = await engines[form].rerank(request(*DOCUMENTS))
    asked = [request(*DOCUMENTS[place:]) for place in range(6)]
    found = await asyncio.gather(*map(engines[form].rerank, asked))

    for place, one in enumerate(found):
        assert alone.scores[place:] == pytest.approx(one.scores, abs=1e-5)


@in_one_loop
@pytest.mark.parametrize("form", FORMS)
async def test_a_document_that_is_too_long(engines: dict[str, HfEngine], form: str) -> None:
    """Of a document beyond the context the end is left out, and it is named; its beginning is what counts."""
    long = ["cat sleeps " * 400, "bread", "é" * 200_000, "cat sleeps " * 800]
    found = await engines[form].rerank(request(*long))

    assert [0, 2, 3] == found.cut
    assert found.scores[0] == pytest.approx(found.scores[3], abs=1e-5)
    assert found.prompt_tokens <= 4 * CONTEXT[form]


@in_one_loop
@pytest.mark.parametrize("form", FORMS)
async def test_what_is_refused(engines: dict[str, HfEngine], form: str) -> None:
    """A query that fills the context is refused, and so is a document that is too long where it is not to be cut."""
    for asked, param in (
        (request("a", query="cat " * 600), "query"),
        (request("a", query="cat " * 100_000), "query"),
        (request("a", "cat " * 600, truncate=False), "documents[1]"),
        (request("a", "b", "x" * 200_000, truncate=False), "documents[2]"),
    ):
        with pytest.raises(ContextLengthExceeded) as raised:
            await engines[form].rerank(asked)
        assert param == raised.value.param


@in_one_loop
async def test_who_leaves(engines: dict[str, HfEngine]) -> None:
    """A client that leaves stops its ranking; who comes after it is answered."""
    task = asyncio.ensure_future(engines["qwen3"].rerank(request(*["cat sleeps " * 90] * 2000)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    assert 1 == len((await engines["qwen3"].rerank(request("a"))).scores)


@in_one_loop
@pytest.mark.parametrize("form", FORMS)
async def test_over_http(engines: dict[str, HfEngine], form: str) -> None:
    """A reranker is asked at /v1/rerank, and refuses chats and embeddings with what it is."""
    async with serving(engines[form]) as app:
        async with app.post(
            "/v1/rerank", query=tiny.QUERY, documents=["a", "b " * 900]
        ) as response:
            ranked = await response.json()
        for path, fields in (("/v1/chat/completions", {}), ("/v1/embeddings", {"input": "a"})):
            async with app.post(path, **fields) as response:
                told = (await response.json())["error"]["message"]
            assert 400 == response.status
            assert "it is a reranker, for /v1/rerank" in told

    assert ["documents[1]:cut"] == ranked["unilect"]["ignored"]


async def test_the_contract(tmp_path: Path) -> None:
    """A reranker keeps the contract of backends."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "hf")
    folder = tiny.cross_encoder(tmp_path / "r", "qwen3", tokenizer)
    await check_backend(lambda: HfEngine("r", folder, ModelConfig()))


def pairs(folder: Path, form: Any, context: int, **fields: Any) -> tuple[Any, Pairs]:
    """The tokenizer of a folder, and the pairs of a request."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tokenizer, Pairs(tokenizer, form, context, request("x", **fields))


@pytest.mark.parametrize("form", FORMS)
def test_a_limit_for_documents(folders: dict[str, Path], form: str) -> None:
    """`max_tokens_per_doc` leaves the rest of a document out, which is not told as cut unless the context cuts it."""
    tokenizer, made = pairs(folders[form], form, CONTEXT[form], max_tokens_per_doc=4)
    short, limited = made.pair(0, "cat bread"), made.pair(0, "cat bread cat bread cat")
    least = made.pair(0, "cat").ids

    assert (False, False) == (short.is_cut, limited.is_cut)
    assert len(least) + 3 == len(limited.ids)  # cat, blank, bread, blank
    assert tokenizer.decode(limited.ids).count("bread") == 1


def test_types_of_tokens(folders: dict[str, Path]) -> None:
    """A cross-encoder that wants to know is told which of the two texts a token belongs to, also where one is cut."""
    tokenizer, made = pairs(folders["pair"], "pair", tiny.CONTEXT)
    expected = tokenizer(tiny.QUERY, "bread")
    whole, cut = made.pair(0, "bread"), made.pair(0, "bread " * 200)

    assert (expected["input_ids"], expected["token_type_ids"]) == (whole.ids, whole.types)
    assert (tiny.CONTEXT, tiny.CONTEXT, True) == (len(cut.ids), len(cut.types), cut.is_cut)
    assert 1 == cut.types[-1]


@pytest.mark.parametrize("length", [90, 91, 92, 93])
def test_just_as_long_as_the_context(folders: dict[str, Path], length: int) -> None:
    """A pair of as many tokens as the context is whole; with one more it is cut."""
    _, made = pairs(folders["pair"], "pair", tiny.CONTEXT, query="x")
    pair = made.pair(0, "7" * length)

    assert (min(length + 4, tiny.CONTEXT), length + 4 > tiny.CONTEXT) == (
        len(pair.ids),
        pair.is_cut,
    )


@pytest.mark.parametrize("pad", [0, None])
def test_a_decoder_that_classifies(tmp_path: Path, pad: int | None) -> None:
    """A decoder that classifies finds the last token of each pair, whether or not it can be told what fills rows up."""
    folder = tiny.cross_encoder(tmp_path / "c", "qwen3", pad_token_id=pad)
    own = {"path": str(folder), "generates": False, "ranks": "pair", "context": 64}
    model = LoadedModel(SETTINGS | own | {"size_bytes": 100_000, "stored_bytes": 4})
    documents = ["bread", "the cat sleeps", "paris"]
    made = Pairs(model.tokenizer, "pair", 64, request(*documents))
    ids = [made.pair(0, text).ids for text in documents]
    import torch

    with torch.inference_mode():
        *_, logits = model.scores(ids, [[] for _ in ids], None, 64)

    expected = tiny.direct_scores(folder, tiny.QUERY, documents)
    assert expected == pytest.approx([sigmoid(logit) for (logit,) in logits], abs=1e-5)


def changed(folder: Path, to: Path, **fields: Any) -> Path:
    """A copy of a folder with other fields in its configuration."""
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | fields
    (to / "config.json").write_text(json.dumps(config))
    return to


def test_which_folders_rank(folders: dict[str, Path], tmp_path: Path) -> None:
    """A classifier of one label ranks, and one of two does not; a Qwen 3 ranks where its model card says that it is Qwen3-Reranker."""
    two = changed(folders["pair"], tmp_path / "two", id2label={"0": "a", "1": "b"})
    chat = changed(folders["qwen3"], tmp_path / "chat")
    (chat / "README.md").write_text("# Qwen3-0.6B\nSee also Qwen3-Reranker.\n")
    bare = changed(folders["qwen3"], tmp_path / "bare")
    (bare / "README.md").unlink()

    expected = {"pair": "pair", "qwen3": "qwen3", "two": "", "chat": "", "bare": ""}
    every = {**folders, "two": two, "chat": chat, "bare": bare}
    assert expected == {name: read_folder(folder).ranks for name, folder in every.items()}


def test_pooling_is_set(folders: dict[str, Path]) -> None:
    """A reranker with a pooling of its own embeds and does not rank, as a GGUF file does."""
    can = HfEngine("r", folders["pair"], ModelConfig(pooling="cls")).capabilities

    assert (False, True) == (can.rerank, can.embeddings)


def test_a_reranker_without_its_card(folders: dict[str, Path], tmp_path: Path) -> None:
    """`pooling = "rank"` has a copy of Qwen3-Reranker rank that lacks its model card; what cannot rank is refused at the start."""
    bare, two = changed(folders["qwen3"], tmp_path / "bare"), {"0": "a", "1": "b"}
    (bare / "README.md").unlink()
    plain, ranks = (HfEngine("r", bare, ModelConfig(pooling=given)) for given in (None, "rank"))
    told = HfEngine("r", folders["qwen3"], ModelConfig())
    wrong = changed(folders["pair"], tmp_path / "two", id2label=two)

    assert (False, True) == (plain.capabilities.rerank, ranks.capabilities.rerank)
    assert told.capabilities == ranks.capabilities
    assert told._server.settings["ranks"] == ranks._server.settings["ranks"]
    with pytest.raises(ConfigError, match="pooling: `rank` needs a classifier"):
        HfEngine("r", wrong, ModelConfig(pooling="rank"))
