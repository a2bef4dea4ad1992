"""Replicas as Ray Serve is told of them; what each builds answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from baregrad.base.errors import ArgumentError, MissingDependency
from baregrad.llm.serve.replicas import served
from tests.llm.commands.small_model import write_model
from tests.llm.serve.stand_in import Client


class Deployment:
    """Keeps what Ray would do."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self.build = build
        self.chosen: dict[str, Any] = {}

    def options(self, **chosen: Any) -> Deployment:
        self.chosen = chosen
        return self

    def bind(self) -> Deployment:
        return self


@pytest.fixture
def _ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's two decorators, as far as they are used."""
    ray, serve = ModuleType("ray"), ModuleType("ray.serve")
    serve.ingress = lambda build: lambda: build  # type: ignore[attr-defined]
    serve.deployment = Deployment  # type: ignore[attr-defined]
    ray.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.serve", serve)


@pytest.mark.usefixtures("_ray")
def test_each_replica_builds_a_server(tmp_path: Path) -> None:
    made: Any = served({
        "path": str(write_model(tmp_path / "m.gguf")), "replicas": "3", "cores": "0.5",
        "context": "64", "rows": "2", "most_waiting": "5", "key": "secret",
    })
    assert made.chosen == {
        "name": "baregrad", "num_replicas": 3, "max_ongoing_requests": 14,
        "ray_actor_options": {"num_cpus": 0.5, "num_gpus": 0.0},
    }
    client = Client.__new__(Client)
    client.application = made.build()
    body = {"prompt": "a", "max_tokens": 2}
    assert client.post("/v1/completions", body).status == 401
    answer = client.post("/v1/completions", body, {"x-api-key": "secret"})
    assert answer.status == 200 and answer.json()["model"] == "m"


@pytest.mark.usefixtures("_ray")
def test_arguments_that_are_not_known() -> None:
    with pytest.raises(ArgumentError, match="no model is named"):
        served({})
    with pytest.raises(ArgumentError, match="no such argument: found replica"):
        served({"path": "m.gguf", "replica": "2"})


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependency, match="ray"):
        served({"path": "m.gguf"})
