"""The files in deploy/: each is accepted by the tool that it is for, and they agree with each other and with the configuration."""

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml

from support.servers.deployed import DEPLOY, ROOT, checked
from support.servers.serving import serve
from unilect.config.admin import admin_folders
from unilect.config.load import load

SECRETS = (
    "first_api_key",
    "metrics_key",
    "database_url",
    "redis_url",
    "postgres_password",
    "redis_conf",
)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What deploy/make-secrets makes."""
    folder = tmp_path_factory.mktemp("deploy")
    shutil.copy(DEPLOY / "make-secrets", folder)
    subprocess.run([folder / "make-secrets"], check=True, timeout=20)
    return folder / "secrets"


def compose() -> Any:
    """compose.yaml."""
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def unit() -> dict[str, list[str]]:
    """The settings of the systemd unit, each with all its values."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "unilect.service").read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def dockerfile(name: str = "Dockerfile") -> list[list[str]]:
    """The instructions of a Dockerfile, as words."""
    text = (DEPLOY / name).read_text().replace("\\\n", " ")
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def seconds(text: str) -> float:
    """A time as compose has it."""
    return float(text.removesuffix("s"))


def used() -> set[str]:
    """The variables that the configuration takes secrets from."""
    return set(
        re.findall(r'^[^#\n]*"\$(\w+)"', (DEPLOY / "unilect.toml").read_text(), re.MULTILINE)
    )


def test_secrets(secrets: Path) -> None:
    """The secrets are random, in a folder that only its owner can enter, agree with each other, and are never overwritten."""
    made = {path.name: path.read_text().strip() for path in secrets.iterdir()}
    assert {*SECRETS} == {*made}
    assert 0o700 == stat.S_IMODE(secrets.stat().st_mode)
    assert re.fullmatch(r"[0-9a-f]{64}", made["postgres_password"])
    assert f"postgresql://unilect:{made['postgres_password']}@postgres/unilect" == made["database_url"]  # fmt: skip
    assert re.fullmatch(r"sk-[0-9a-f]{64}", made["first_api_key"])
    assert re.fullmatch(r"sk-[0-9a-f]{64}", made["metrics_key"])
    assert made["first_api_key"] != made["metrics_key"]
    password = re.fullmatch(r"redis://:([0-9a-f]{64})@redis:6379/0", made["redis_url"])
    assert password is not None
    assert f"requirepass {password[1]}" in made["redis_conf"].splitlines()
    assert password[1] != made["postgres_password"]
    again = subprocess.run([secrets.parent / "make-secrets"], capture_output=True, timeout=20)
    assert 0 == again.returncode
    assert made == {path.name: path.read_text().strip() for path in secrets.iterdir()}


def test_the_configuration(secrets: Path) -> None:
    """`unilect config check` accepts the configuration with the secrets of compose.yaml."""
    env = {f"{name}_FILE": str(secrets / name.lower()) for name in used()}
    done = subprocess.run(
        [sys.executable, "-m", "unilect", "config", "check", str(DEPLOY / "unilect.toml")],
        env={"PATH": os.environ["PATH"]} | env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (0, "OK") == (done.returncode, done.stdout.splitlines()[-1]), done.stderr
    config = load(DEPLOY / "unilect.toml", environment=env)
    assert (secrets / "database_url").read_text().strip() == config.store.url
    assert [(secrets / "first_api_key").read_text().strip()] == config.api_keys
    assert [(secrets / "metrics_key").read_text().strip()] == config.metrics_keys


def test_a_server_with_the_configuration(secrets: Path, tmp_path: Path) -> None:
    """A server starts with the configuration, the image's health check says that it is ready, and the metrics are for the key that is made for them."""
    env = {
        "FIRST_API_KEY_FILE": str(secrets / "first_api_key"),
        "METRICS_KEY_FILE": str(secrets / "metrics_key"),
        "DATABASE_URL": f"sqlite:///{tmp_path}/unilect.db",
    }
    (at,) = [n for n, words in enumerate(dockerfile()) if words[0] == "HEALTHCHECK"]
    command = yaml.safe_load(" ".join(dockerfile()[at]).partition(" CMD ")[2])
    assert "python" == command[0]
    text = (DEPLOY / "unilect.toml").read_text()
    with serve("--host", "127.0.0.1", config=text, env=env) as server:
        assert "http://127.0.0.1:8000/readyz" in command[2]
        here = command[2].replace(":8000/", f":{server.port}/")
        healthy = [sys.executable, command[1], here]
        assert 0 == subprocess.run(healthy, timeout=30).returncode
        statuses = []
        for name in ("metrics_key", "first_api_key"):
            sent = {"Authorization": f"Bearer {(secrets / name).read_text().strip()}"}
            with (
                suppress(HTTPError),
                urlopen(Request(f"{server.root}/metrics", headers=sent)) as answer,
            ):
                statuses.append(answer.status)
        assert [200] == statuses
    assert 0 != subprocess.run(healthy, capture_output=True, timeout=30).returncode


@pytest.mark.heavy
def test_the_dockerfile() -> None:
    """hadolint finds nothing; what is copied is there and not ignored; the last stage has no user but its own and no tools to build."""
    checked("hadolint", "Dockerfile")
    lines = dockerfile()
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    for words in lines:
        if words[0] == "COPY" and not words[1].startswith("--from"):
            for source in words[1:-1]:
                assert (ROOT / source).exists()
                assert any(fnmatch(source, pattern) for pattern in kept)
    copied = {word for words in lines if words[0] == "COPY" for word in words[1:-1]}
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]  # fmt: skip
    assert {
        *wheel["force-include"],
        *(one.partition("/")[0] for one in wheel["packages"]),
    } <= copied
    last = max(n for n, words in enumerate(lines) if words[0] == "FROM")
    assert "10001:10001" == [words[1] for words in lines[last:] if words[0] == "USER"][-1]
    assert not re.search(r"gcc|build-essential|pip install", " ".join(map(" ".join, lines[last:])))
    assert used() <= {"DATABASE_URL", "FIRST_API_KEY", "METRICS_KEY", "REDIS_URL"}


@pytest.mark.heavy
def test_the_standard_library_of_the_image(tmp_path: Path) -> None:
    """The image has the bytecode of the standard library: its processes may not write any, and would compile it at each start."""
    text = (DEPLOY / "Dockerfile").read_text()
    assert "PYTHONDONTWRITEBYTECODE=1" in text
    found = re.search(r"^    && (python -m compileall .*) \\$", text, re.MULTILINE)
    assert found is not None
    own = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPYCACHEPREFIX": str(tmp_path)}  # fmt: skip
    subprocess.run(["sh", "-c", found[1]], env=own, check=True)

    compiled = {path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc")}
    assert {"argparse", "base_events", "decoder", "ssl"} <= compiled
    assert compiled.isdisjoint({"idle", "turtle_demo"})


def test_the_dockerfile_for_cuda() -> None:
    """hadolint finds nothing; it is made of the other image, with the Python and the user of that, and of llama.cpp in the lock's version."""
    checked("hadolint", "Dockerfile.cuda")
    lines, of_cpu = dockerfile("Dockerfile.cuda"), dockerfile()
    kept = (DEPLOY / "Dockerfile.cuda.dockerignore").read_text().splitlines()
    own = [words[1:-1] for words in lines if words[0] == "COPY" and "--from" not in words[1]]
    assert [["requirements.lock"]] == own
    assert {"*", "!requirements.lock"} == {line for line in kept if not line.startswith("#")}
    assert (ROOT / "requirements.lock").exists()
    python = next(words for words in of_cpu if words[1].startswith("PYTHON="))
    assert python in lines
    assert ["FROM", "${IMAGE}"] in lines
    (place,) = [words[-1] for words in lines if words[:2] == ["COPY", "--from=wheel"]]
    assert place.startswith("/opt/unilect/lib/python${PYTHON}/")
    assert ["COPY", "--from=build", "/opt/unilect", "/opt/unilect"] in of_cpu
    assert "USER" not in [words[0] for words in lines]
    program = re.search(
        r"sed -n ('.*') requirements.lock", (DEPLOY / "Dockerfile.cuda").read_text()
    )
    assert program is not None
    command = ["sed", "-n", *shlex.split(program[1]), ROOT / "requirements.lock"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert re.fullmatch(r"\d[\d.]+\n", done.stdout)


def test_the_versions_of_the_image() -> None:
    """The image is made with the versions of the lock: the Dockerfile's sed reads every one of them, without hashes and markers."""
    text = (DEPLOY / "Dockerfile").read_text()
    program = re.search(r"sed -n ('.*') requirements.lock", text)
    assert program is not None
    (script,) = shlex.split(program[1])
    done = subprocess.run(
        ["sed", "-n", script, ROOT / "requirements.lock"],
        capture_output=True,
        text=True,
        timeout=20,
    )
    lines = done.stdout.splitlines()
    assert all(re.fullmatch(r"[\w.-]+==[\w.+!-]+", line) for line in lines)
    locked = (ROOT / "requirements.lock").read_text()
    assert len(re.findall(r"^\S+==", locked, re.MULTILINE)) == len(lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {re.split(r"[\[><=; ]", one)[0].lower() for one in project["dependencies"]}
    assert named <= {line.partition("==")[0] for line in lines}
    (extras,) = [words[1] for words in dockerfile() if words[1].startswith("EXTRAS=")]
    assert extras.removeprefix("EXTRAS=") in project["optional-dependencies"]


def test_compose(secrets: Path) -> None:
    """docker-compose accepts compose.yaml; its secrets are those that are made, and it waits for what unilect needs."""
    text = (DEPLOY / "compose.yaml").read_text()
    assert text.count("\nname: unilect\n") == 1
    file = secrets.parent / "compose.yaml"
    file.write_text(text.replace("\nname: unilect\n", "\n"))  # Debian 12's is older than that field
    told = yaml.safe_load(checked("docker-compose", "-f", file, "config", cwd=secrets.parent))
    assert {"unilect", "postgres", "redis"} == {*told["services"]}

    config = compose()
    assert {*SECRETS} == {*config["secrets"]}
    for name, secret in config["secrets"].items():
        assert f"./secrets/{name}" == secret["file"]
    unilect = config["services"]["unilect"]
    assert used() <= {name.removesuffix("_FILE") for name in unilect["environment"]}
    for name, path in unilect["environment"].items():
        assert path.removeprefix("/run/secrets/") in unilect["secrets"], name
    for needed, how in unilect["depends_on"].items():
        assert "service_healthy" == how["condition"]
        assert "healthcheck" in config["services"][needed]
    assert all(port.startswith("127.0.0.1:") for port in unilect["ports"])
    volumes = {mount.partition(":")[0] for one in config["services"].values() for mount in one["volumes"]}  # fmt: skip
    assert {*config["volumes"]} == {name for name in volumes if not name.startswith(".")}


def test_there_is_time_to_stop() -> None:
    """Compose and systemd wait longer for the end than running answers have to finish."""
    grace_s = tomllib.loads((DEPLOY / "unilect.toml").read_text())["shutdown_grace_s"]
    assert grace_s + 10 < seconds(compose()["services"]["unilect"]["stop_grace_period"])
    assert grace_s + 10 < float(unit()["TimeoutStopSec"][0])


def test_the_unit(tmp_path: Path) -> None:
    """systemd accepts the unit, rates its exposure below 2 of 10, and gives the configuration what it takes from the environment."""
    settings = unit()
    text = (DEPLOY / "unilect.service").read_text()
    program = settings["ExecStart"][0].split()[0]
    file = tmp_path / "unilect.service"
    file.write_text(text.replace(program, sys.executable))  # which verify wants to be there
    assert "" == checked("systemd-analyze", "verify", file, cwd=tmp_path)
    checked(
        *("systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager"), file
    )
    variables = {
        pair.partition("=")[0] for line in settings["Environment"] for pair in line.split()
    }
    assert used() <= {name.removesuffix("_FILE") for name in variables}
    for name in ("ProtectSystem", "NoNewPrivileges", "MemoryMax", "ReadWritePaths", "ExecReload"):
        assert name in settings
    assert ["on-failure"] == settings["Restart"]


def test_the_admin_socket() -> None:
    """The socket that `unilect ps` finds is in the volume of the image, and in the folder of the service's data."""
    image = dict(pair.split("=", 1) for words in dockerfile() if words[0] == "ENV" for pair in words[1:])  # fmt: skip
    unit = (DEPLOY / "unilect.service").read_text()
    service = dict(pair.split("=", 1) for pair in re.findall(r"^Environment=(HOME=.*)$", unit, re.MULTILINE)[0].split())  # fmt: skip

    for variables, volume in ((image, "/var/lib/unilect"), (service, "/var/lib/unilect")):
        (folder, *_) = admin_folders(variables)
        assert folder.is_relative_to(volume)
