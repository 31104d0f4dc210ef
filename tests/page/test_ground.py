"""What the page's tests stand on: the visitor notices what a page must never do."""

import re
from typing import TYPE_CHECKING

import pytest

from support.clients.browsers import visiting
from support.common.waiting import until

if TYPE_CHECKING:
    from playwright.async_api import Browser


@pytest.mark.parametrize(
    ("deed", "fault"),
    [
        ("document.body.innerHTML = '<b>x</b>'", "TrustedHTML"),
        ("const one = document.createElement('script'); one.textContent = 'window.ran = 1'; document.body.append(one)", "script-src|TrustedScript"),
        ("document.body.append(document.createElement('iframe')); document.querySelector('iframe').src = 'data:text/html,x'", "frame-src"),
        ("document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.2:9/x.png'}))", "img-src"),
        ("window.open('http://127.0.0.2:9/')", "asked http://127.0.0.2:9/"),
        ("console.error('lost')", "lost"),
        ("setTimeout(() => nowhere())", "nowhere is not defined"),
    ],
    ids=["markup", "inline script", "frame", "image", "other origin", "console", "uncaught"],
)  # fmt: skip
async def test_faults(browser: "Browser", files: str, deed: str, fault: str) -> None:
    """Each thing that the policy forbids, and each error, is a fault that would fail the test."""
    async with visiting(browser) as visitor:
        page = await visitor.open(files)
        await page.evaluate(
            f"() => {{ try {{ {deed} }} catch (error) {{ return String(error) }} }}"
        )
        await until(lambda: any(re.search(fault, one) for one in visitor.faults))
        visitor.faults.clear()
