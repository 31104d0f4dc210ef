"""Tests of unilect.server.tls."""

from pathlib import Path

import pytest

from support.common.certificates import certificate, needs_openssl
from unilect.config.server import Config
from unilect.core.errors import ConfigError
from unilect.server.tls import server_context


@needs_openssl
@pytest.mark.parametrize(
    ("cert", "key", "said"),
    [
        ("cert.pem", None, "cert.pem holds no private key. Name the file with the key in `tls_key`."),
        ("key.pem", "cert.pem", "key.pem holds the key; the certificate is in `tls_key`. Swap the two."),
        ("cert.pem", "other/key.pem", "the key is that of another certificate."),
        ("no.pem", "key.pem", "no.pem holds no certificate in PEM."),
        ("cert.pem", "no.pem", "no.pem holds no private key in PEM."),
        ("bad.pem", "key.pem", "damaged, or of an unknown kind"),
        ("cert.pem", "gone.pem", "gone.pem cannot be read (No such file or directory)"),
    ],
)  # fmt: skip
def test_certificates(cert: str, key: str | None, said: str, tmp_path: Path) -> None:
    """What is wrong with a certificate and its key is told in words, without those of OpenSSL."""
    certificate(tmp_path)
    (tmp_path / "other").mkdir()
    certificate(tmp_path / "other")
    (tmp_path / "no.pem").write_text("hello\n")
    mark = "CERTIFICATE-----"
    (tmp_path / "bad.pem").write_text(f"-----BEGIN {mark}\nAAAA\n-----END {mark}\n")
    paths = {"tls_cert": str(tmp_path / cert), "tls_key": key and str(tmp_path / key)}
    with pytest.raises(ConfigError) as raised:
        server_context(Config(**paths))

    assert said in str(raised.value)
    assert "_ssl.c" not in str(raised.value)
