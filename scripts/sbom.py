"""
Write the bill of materials (SBOM) of unilect, in CycloneDX's JSON: every package of the locks with its version, its hashes, and what needs it.

usage: python scripts/sbom.py [LOCK...] > unilect.cdx.json

It is made of pyproject.toml and the locks alone, and is the same for the same locks. A package's scope is `required` where unilect needs it,
`optional` where an extra does, and `excluded` where only development does; the hashes are those of all files that may be installed.
torch is in no lock, since its build depends on the machine. A finder of known holes takes the output: `osv-scanner -L`, `grype sbom:`.

Source: https://cyclonedx.org/docs/1.6/json/
"""

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("requirements.lock", "requirements-transformers.lock")
_ENTRY = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[^]]*\])?==([^\s;\\]+)(?:\s*;\s*(.*?))?\s*\\?$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_VIA = re.compile(r"\s+#(?: via)?\s+([A-Za-z0-9][\w.-]*)(?:\[[^]]*\])?( \(pyproject\.toml.*\))?$")


class Package(NamedTuple):
    """
    A package of a lock.

    Attributes:
        marker: Where it is installed; empty for everywhere.
        parents: The packages that need it.
    """

    name: str
    version: str
    marker: str
    hashes: list[str]
    parents: set[str]

    @property
    def ref(self) -> str:
        """Its name everywhere (https://github.com/package-url/purl-spec)."""
        return f"pkg:pypi/{self.name}@{self.version}"


def packages(text: str) -> list[Package]:
    """
    The packages of a lock; one may be there in two versions, for different systems.

    Raises:
        SystemExit: A line pins no version, or an entry has no hash.
    """
    found = list[Package]()
    for entry in re.split(r"\n(?=[^\s#])", f"\n{text}"):
        head, *rest = [line for line in entry.strip("\n").split("\n") if not line.startswith("#")] or [""]  # fmt: skip
        if not head.strip():
            continue
        match, hashes = _ENTRY.match(head), _HASH.findall(entry)
        if match is None or not hashes:
            sys.exit(f"sbom.py: no version or no hash: {head}")
        name, version, marker = match.groups()
        vias = [via for line in rest if (via := _VIA.match(line))]
        parents = {normal(via[1]) for via in vias if via[2] is None}
        found.append(Package(normal(name), version, marker or "", hashes, parents))
    return found


def normal(name: str) -> str:
    """The name of a package, or of a requirement's, as indexes compare it."""
    match = re.match(r"[A-Za-z0-9][\w.-]*", name)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def closure(wanted: Iterable[str], found: Sequence[Package]) -> set[str]:
    """What is needed by some requirements, directly and indirectly."""
    needed, new = set[str](), {normal(one) for one in wanted} & {one.name for one in found}
    while new:
        needed |= new
        new = {one.name for one in found if one.parents & new} - needed
    return needed


def sbom(locks: Iterable[Path]) -> dict[str, Any]:
    """The document."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    merged: dict[str, Package] = {}
    for one in (one for lock in locks for one in packages(lock.read_text())):
        parents = one.parents | merged[one.ref].parents if one.ref in merged else one.parents
        merged[one.ref] = one._replace(parents=parents)
    found = [merged[ref] for ref in sorted(merged)]
    wanted = project["dependencies"]
    extras = [one for group in project["optional-dependencies"].values() for one in group]
    required, optional = closure(wanted, found), closure(extras, found)
    direct = {normal(one) for one in (*wanted, *extras)}
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "purl": own,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": [
            component(one, "required" if one.name in required else "optional" if one.name in optional else "excluded")
            for one in found
        ],
        "dependencies": [
            {"ref": own, "dependsOn": [one.ref for one in found if one.name in direct]},
            *({"ref": one.ref, "dependsOn": [n.ref for n in found if one.name in n.parents]} for one in found),
        ],
    }  # fmt: skip
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))
    return {**document, "serialNumber": f"urn:uuid:{number}"}


def component(one: Package, scope: str) -> dict[str, Any]:
    """A package, as CycloneDX has it."""
    told: dict[str, Any] = {
        "type": "library",
        "bom-ref": one.ref,
        "name": one.name,
        "version": one.version,
        "scope": scope,
        "purl": one.ref,
        "hashes": [{"alg": "SHA-256", "content": content} for content in one.hashes],
    }
    if one.marker:
        told["properties"] = [{"name": "cdx:python:marker", "value": one.marker}]
    return told


if __name__ == "__main__":
    paths = [Path(one) for one in sys.argv[1:]] or [ROOT / one for one in LOCKS]
    print(json.dumps(sbom(paths), indent=1))
