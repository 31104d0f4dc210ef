"""A certificate for 127.0.0.1 that signs itself, made by openssl; tests that need one are skipped where that is missing."""

import shutil
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl makes the certificate"
)


def certificate(folder: Path, name: str = "IP:127.0.0.1") -> tuple[str, str]:
    """The files of a certificate, for 127.0.0.1 or another name, and of its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    openssl(
        f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout {key} -out {cert} "
        f"-subj /CN=localhost -addext subjectAltName={name}"
    )
    return str(cert), str(key)


def openssl(arguments: str) -> None:
    """Run openssl; the test is skipped where that is missing."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    subprocess.run(["openssl", *arguments.split()], check=True, capture_output=True)
