"""The page is there without a key, and runs its own script alone."""

from __future__ import annotations

import base64
import hashlib
import re

from tests.llm.serve.stand_in import Client, ScriptedModel


def test_the_page() -> None:
    reply = Client(ScriptedModel(template=None), key="secret").get("/")
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/html")
    page = reply.body.decode()
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for tag in ("script", "style"):
        inner = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert inner is not None
        digest = base64.b64encode(hashlib.sha256(inner[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    # Nothing is loaded from elsewhere, and no text of a model is ever read as HTML.
    assert not re.search(r"https?://|\son\w+=|innerHTML|insertAdjacentHTML", page)
