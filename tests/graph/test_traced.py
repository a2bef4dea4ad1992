"""What became of each node leads back to what the user built."""

from __future__ import annotations

from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node
from tests.schedule.graphs import param, sink


def test_origins_lead_back_to_what_the_user_built() -> None:
    x = param(0, 4, 6)
    wanted = (x.reshape(24).reshape(6, 4) * 1.0 + 0.0 * 1.0).exp()
    origins: dict[Node, Node] = {}
    made = canonicalise(sink(wanted), origins).src[0]
    assert origins.get(made, made) is wanted.node
