"""Model files over a real Ray cluster of two and three nodes with TLS: the others see nothing of what lies on the first."""

import asyncio
import hashlib
import json
import os
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.backends.engine import IN_CI, answer, chat
from support.backends.loopback import free_port
from support.common.certificates import needs_openssl, openssl
from unilect.config.fleet import FleetConfig
from unilect.config.model import ModelConfig
from unilect.demo import FOLDER, MODEL
from unilect.models import sources

HEAD, NODE, OTHER = "127.0.0.41", "127.0.0.42", "127.0.0.43"
RAY = Path(sys.executable).with_name("ray")
START_S, END_S = 120.0, 20.0
LARGE_BYTES, BOTH_BYTES = 400 * 2**20, 128 * 2**20
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400), needs_openssl]


class Node:
    """
    The processes of one node.

    Args:
        host: Its address.
        arguments: Of `ray start`.
        environment: Of all of its processes.
        log: What it prints.
        hidden: A folder that it does not see.
    """

    def __init__(
        self, host: str, arguments: str, environment: dict[str, str], log: Path, hidden: Path | None
    ) -> None:
        command = (
            f"{RAY} start --block --node-ip-address={host} --num-cpus=1 --object-store-memory=100000000 "
            f"--disable-usage-stats {arguments}"
        )
        if hidden is not None:
            script = f"mount -t tmpfs none {shlex.quote(str(hidden))} && exec {command}"
            command = shlex.join(["unshare", "--mount", "sh", "-c", script])
        self._log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                shlex.split(command), stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                env=environment, start_new_session=True,
            )  # fmt: skip

    def started(self) -> bool:
        """Whether it comes up; False where it ends instead, or finds no cluster."""
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if b"Ray runtime started" in self._log.read_bytes():
                return True
            if self._process.poll() is not None:
                return False
            time.sleep(0.05)
        return False

    def stop(self) -> None:
        """End all of its processes at once: Ray takes its time to end itself."""
        with suppress(psutil.NoSuchProcess):
            head = psutil.Process(self._process.pid)
            for process in [head, *head.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait(END_S)


@pytest.fixture(scope="module")
def certified() -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder with a certificate authority and a certificate, and the variables that name them to Ray."""
    folder = Path(tempfile.mkdtemp(prefix="uf", dir="/tmp"))  # short: sockets are in it
    key, ca, ca_key, cert = (folder / name for name in ("key.pem", "ca.pem", "ca.key", "cert.pem"))
    curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    openssl(f"req -x509 {curve} -days 2 -keyout {ca_key} -out {ca} -subj /CN=unilect-test-ca")
    openssl(f"req {curve} -keyout {key} -out {folder}/request.pem -subj /CN=node")
    names = ",".join(f"IP:{host}" for host in ("127.0.0.1", HEAD, NODE, OTHER))
    (folder / "names").write_text(f"subjectAltName=DNS:localhost,{names}\n")
    openssl(
        f"x509 -req -in {folder}/request.pem -CA {ca} -CAkey {ca_key} -CAcreateserial -days 2 -out {cert} -extfile {folder}/names"
    )
    tls = {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(cert),
        "RAY_TLS_SERVER_KEY": str(key),
        "RAY_TLS_CA_CERT": str(ca),
    }
    yield folder, tls
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(certified: tuple[Path, dict[str, str]]) -> Iterator[str]:
    """The address of a head on this machine, joined by a node that does not see the folder `gateway` and has a cache of its own."""
    folder, _ = certified
    (folder / "gateway").mkdir()
    address = f"{HEAD}:{free_port()}"
    options = f"--head --port={address.rpartition(':')[2]} --temp-dir={folder}/r --include-dashboard=false"
    with node(certified, HEAD, "near", options):
        with joined(certified, address, NODE, "far", far=4, each=1):
            yield address


@contextmanager
def joined(
    certified: tuple[Path, dict[str, str]], address: str, host: str, name: str, **offers: int
) -> Iterator[None]:
    """A node of a cluster, with these resources, that does not see the folder `gateway`."""
    joins = f"--address={address} --resources={shlex.quote(json.dumps(offers))}"
    with node(certified, host, name, joins, certified[0] / "gateway"):
        yield


@contextmanager
def node(
    certified: tuple[Path, dict[str, str]],
    host: str,
    name: str,
    options: str,
    hidden: Path | None = None,
) -> Iterator[None]:
    """A node that runs, whose cache is in the folder of its name."""
    folder, tls = certified
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"} | tls
    environment |= {"XDG_CACHE_HOME": str(folder / name)}
    log = folder / f"{name}.log"
    made = Node(host, options, environment, log, hidden)
    try:
        assert made.started(), log.read_text()
        yield
    finally:
        made.stop()


def can_hide() -> bool:
    """Whether a process of ours may have a view of the disk of its own."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


needs_mounts = pytest.mark.skipif(
    not IN_CI and not can_hide(), reason="needs the right to unshare mounts"
)


def model_there(
    name: str, source: Path, cluster: str, replicas: int = 1, place: str = "far", **options: Any
) -> Any:
    """A model whose only replica is on the second node, or whose replicas are where this place is, not started."""
    config = ModelConfig(
        source=str(source),
        replicas=replicas,
        resources={"cpu": 0.1, place: 1},
        threads=1,
        parallel=1,
        start_timeout_s=START_S,
        **options,
    )
    shared = {FleetConfig: FleetConfig(address=cluster)}
    return sources.backend(sources.spec_of(name, str(source), config, 1, shared=shared))


async def greedy(backend: Any) -> Any:
    """What a model says to a greeting."""
    return (await answer(backend.generate(chat("Hello!", max_tokens=16)))).choices


@pytest.fixture
def near(
    certified: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """The gateway's folder, and where the second node keeps what it is sent; this process is on the first node."""
    folder, tls = certified
    for name, value in tls.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "near"))
    return folder / "gateway", folder / "far" / "unilect" / "fleet" / "items"


@needs_mounts
async def test_a_node_without_the_files(cluster: str, near: tuple[Path, Path]) -> None:
    """Over TLS, a node that has neither a model's file nor its adapter is sent both, and a model answers there as it does here."""
    gateway, items = near
    model = Path(shutil.copy(MODEL, gateway / "model.gguf"))
    adapter = shutil.copy(FOLDER / "lora-pirate.gguf", gateway / "adapter.gguf")
    lora = [f"{adapter}=0.5"]
    config = ModelConfig(source=str(model), lora=lora, threads=1, parallel=1)
    here = sources.backend(sources.spec_of("here", str(model), config, 1))
    try:
        await here.start()
        told = await greedy(here)
    finally:
        await here.aclose()

    far = model_there("far", model, cluster, lora=lora)
    try:
        await far.start()
        assert told == await greedy(far)
    finally:
        await far.aclose()

    assert ["adapter.gguf", "model.gguf"] == sorted(path.name for path in items.rglob("*.gguf"))
    assert not [path for path in items.iterdir() if path.suffix]  # nothing is partial


@needs_mounts
async def test_the_supplier_is_killed(cluster: str, near: tuple[Path, Path]) -> None:
    """A kill -9 of what reads a gateway's files, in the middle of one, costs nothing but time: it goes on where it was."""
    gateway, items = near
    model = Path(shutil.copy(MODEL, gateway / "large.gguf"))
    os.truncate(
        model, LARGE_BYTES
    )  # what follows the weights is not read, and takes a while to send
    killed = list[int]()

    async def kill() -> None:
        while not killed:
            for partial in items.rglob("*.partial/large.gguf"):
                if 0 < (size := partial.stat().st_size) < LARGE_BYTES:
                    killed.append(size)
                    os.kill(supplier(), signal.SIGKILL)
                    return
            await asyncio.sleep(0.002)

    killing = asyncio.create_task(kill())
    far = model_there("killed", model, cluster)
    try:
        await far.start()
        assert await greedy(far)
    finally:
        killing.cancel()
        await far.aclose()

    assert killed
    assert LARGE_BYTES in [path.stat().st_size for path in items.rglob("large.gguf")]


@needs_mounts
async def test_two_nodes_at_once(
    cluster: str, certified: tuple[Path, dict[str, str]], near: tuple[Path, Path]
) -> None:
    """Two nodes that lack a file fetch it at the same time, and each is sent all of it once: what reads it has read it twice, and not more."""
    gateway, items = near
    model = Path(shutil.copy(MODEL, gateway / "both.gguf"))
    os.truncate(model, BOTH_BYTES)
    caches = items, certified[0] / "other" / "unilect" / "fleet" / "items"
    there = model_there("both", model, cluster, replicas=2, place="each")
    with joined(certified, cluster, OTHER, "other", each=1):
        both = asyncio.create_task(are_fetching(caches))
        try:
            await there.start()
            assert both.done()
            await both
            assert await greedy(there)
            assert 2 * BOTH_BYTES <= read_bytes(supplier()) < 2.5 * BOTH_BYTES
        finally:
            both.cancel()
            await there.aclose()

    for folder in caches:
        (path,) = folder.rglob("both.gguf")
        assert ".partial" not in str(path)
        assert sha256(path) == sha256(model)


async def are_fetching(caches: Sequence[Path]) -> None:
    """Return when both nodes fetch a file: what sends it is stopped when the first of them has some of it, until the other one asks, too."""

    def sizes() -> list[int]:
        return [
            one.stat().st_size for cache in caches for one in cache.rglob("*.partial/both.gguf")
        ]

    while not any(sizes()):
        await asyncio.sleep(0.002)
    os.kill(sender := supplier(), signal.SIGSTOP)
    try:
        while len(sizes()) < 2:
            await asyncio.sleep(0.002)
        assert max(sizes()) < BOTH_BYTES
    finally:
        os.kill(sender, signal.SIGCONT)


def read_bytes(pid: int) -> int:
    """The bytes that a process has read since its start, of files and whatever else."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))


def sha256(path: Path) -> str:
    """The digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def supplier() -> int:
    """The process that reads the gateway's files."""
    (found,) = [
        process.pid
        for process in psutil.process_iter()
        if process.name().startswith("ray::Supplier") and is_of_the_head(process)
    ]
    return found


def is_of_the_head(process: psutil.Process) -> bool:
    """Whether the first node has started a process: Ray writes over its workers' command lines, and not over its own."""
    return any(HEAD in " ".join(one.cmdline()) for one in process.parents())


def test_who_has_no_certificate(cluster: str, certified: tuple[Path, dict[str, str]]) -> None:
    """The head answers a client with a certificate of the cluster's authority, and neither one without nor one without TLS."""
    _, tls = certified
    assert b"" != first_bytes(cluster, tls["RAY_TLS_CA_CERT"], tls)
    assert b"" == first_bytes(cluster, tls["RAY_TLS_CA_CERT"], None)
    assert b"" == first_bytes(cluster, None, None)


def first_bytes(address: str, ca: str | None, tls: dict[str, str] | None) -> bytes:
    """What a server of HTTP/2 says first; empty where it closes the connection."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=END_S) as plain, ExitStack() as stack:
        connection = plain
        try:
            if ca is not None:
                context = ssl.create_default_context(cafile=ca)
                context.set_alpn_protocols(["h2"])
                if tls is not None:
                    context.load_cert_chain(tls["RAY_TLS_SERVER_CERT"], tls["RAY_TLS_SERVER_KEY"])
                connection = stack.enter_context(context.wrap_socket(plain, server_hostname=host))
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5))
            return connection.recv(9)
        except (ssl.SSLError, ConnectionError):
            return b""
