"""What is taken out of a server's words, with the remedies that stand in them."""

import re

import msgspec

from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.service import Service
from unilect.http.error_bodies import parse_refusal
from unilect.models.registry import Registry
from unilect.server.app import all_routes
from unilect.web.site import Site


def test_routes_stay_in_remedies() -> None:
    """A remedy of another server of ours names the route, whichever it is, and the file beside it is taken out."""
    routes = all_routes(Site(Service(Registry([]), Accounts(Metrics()))))
    for route in routes:
        path = re.sub(r":[^}]*", "", route.path)
        for told in (path, f"`{route.method} {path}`", f"http://host:8000{path}"):
            message = f"/srv/a.gguf has no template. Use {told}, or ask {told}."
            error = parse_refusal(msgspec.json.encode({"error": {"message": message}}))

            assert error.message.endswith(f"[path] has no template. Use {told}, or ask {told}.")
