"""Reloads with discovery: models that come from a server's list, of a table that is changed, moved or removed."""

from pathlib import Path
from typing import Any

import msgspec

from support.backends.scripted import Exchange, answer, scripted
from support.servers.reloading import Reloadable

TOP = "port = 0\n[store]\nurl = 'sqlite://'\n"
OWN = '[models.own]\nsource = "echo:"\n'


class Listing:
    """A server's list of models, which a test changes."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    async def __call__(self, exchange: Exchange) -> None:
        """Answer with the list."""
        data = [{"id": name} for name in self.names]
        await exchange.send(answer(msgspec.json.encode({"data": data})))
        exchange.close()


async def after(tmp_path: Path, listing: Listing, *steps: Any) -> list[list[str]]:
    """
    The models after each step beside `own`: a list is what the server lists from then on, a text the tables of the file, in which `URL` is
    the server's.
    """
    file, seen = tmp_path / "unilect.toml", []
    async with scripted(listing) as upstream:
        first, *rest = [
            one.replace("URL", upstream.url) if isinstance(one, str) else one for one in steps
        ]
        file.write_text(TOP + OWN + first)
        server = Reloadable(file)
        async with server.running(["own"]):
            for step in (None, *rest):
                if isinstance(step, str):
                    server.write(TOP + OWN + step)
                    await server.reloader.reload("a test")
                elif step is not None:
                    listing.names = step
                    await server.discovery.look()
                seen.append([name for name in server.registry.models if name != "own"])
    return seen


FAR = '[models.qwen]\nsource = "URL"\nmodel = "*"\n'


async def test_a_model_with_the_name_of_its_table(tmp_path: Path) -> None:
    """A listed model that is called like its table goes when its server drops it, comes again, and goes with the table, whatever was reloaded."""
    seen = await after(
        tmp_path,
        Listing("qwen", "more"),
        FAR,
        FAR + "stop = ['x']\n",
        FAR + "stop = ['x']\n" + '[models.new]\nsource = "echo:"\n',
        FAR,
        ["more"],
        ["more", "qwen"],
        "",
    )

    qwen = ["qwen", "more"]
    assert [qwen, qwen, ["new", *qwen], qwen, ["more"], ["more", "qwen"], []] == seen


async def test_a_table_of_another_name(tmp_path: Path) -> None:
    """Models of a table that is renamed, to the name of one of them, are served on, and are its server's to drop."""
    seen = await after(
        tmp_path,
        Listing("qwen", "more"),
        FAR.replace("models.qwen", "models.far"),
        FAR,
        FAR.replace("models.qwen", "models.far"),
        ["qwen"],
        "",
    )

    assert [["qwen", "more"]] * 3 + [["qwen"], []] == [sorted(one, reverse=True) for one in seen]


async def test_a_model_of_the_file_takes_a_name(tmp_path: Path) -> None:
    """A name, or an alias, that the file gives to a model of its own is its own until the file drops it; then it is found again."""
    own, alias = '[models.more]\nsource = "echo:"\n', '[models.mine]\nsource = "echo:"\naliases = ["more"]\n'  # fmt: skip
    seen = await after(
        tmp_path,
        Listing("qwen", "more"),
        FAR,
        FAR + own,
        ["qwen"],
        ["qwen", "more"],
        FAR + alias,
        ["more", "qwen"],
        FAR,
        ["more", "qwen"],
        own,
    )

    assert [
        ["more", "qwen"],
        ["more", "qwen"],
        ["more", "qwen"],
        ["more", "qwen"],
        ["mine", "qwen"],
        ["mine", "qwen"],
        ["qwen"],
        ["more", "qwen"],
        ["more"],
    ] == [sorted(one) for one in seen]
