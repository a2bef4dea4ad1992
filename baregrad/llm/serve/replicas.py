"""A model in several processes behind one address, by Ray Serve.

Each replica is an engine of its own with the whole server in it; Ray starts and watches them, and
hands each request to one that has room. `serve run baregrad.llm.serve.replicas:served path=FILE`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from baregrad.base.errors import ArgumentError, MissingDependency
from baregrad.llm.generation.opened import EngineSettings, open_to_ask
from baregrad.llm.serve.application import application
from baregrad.llm.serve.desk import ServerSettings

_WHOLE = ("context", "rows", "contexts", "chunk", "guesses", "most_waiting")
_WORDS = ("cache", "dtype", "device")


def replicas_of(
    path: str | os.PathLike[str], replicas: int, *, cores: float = 1.0, gpus: float = 0.0,
    settings: EngineSettings | None = None, server: ServerSettings | None = None,
) -> Any:
    """Return the Ray Serve application of so many engines for one model.

    cores, gpus: what Ray keeps for each. The model is opened in each replica, whose processes have
    to find `path` and this package. Raises MissingDependency.
    """
    serve = _library()
    wanted = settings or EngineSettings()
    where = os.fspath(path)

    def build() -> Any:
        model = open_to_ask(where, replace(wanted, whole_cache=True))
        model.engine.start()
        return application(model, server)

    deployment = serve.deployment(serve.ingress(build)())
    return deployment.options(
        name="baregrad", num_replicas=replicas,
        # The engine's own queue decides who waits and who is sent away.
        max_ongoing_requests=2 * (wanted.rows + wanted.most_waiting),
        ray_actor_options={"num_cpus": cores, "num_gpus": gpus},
    ).bind()


def served(arguments: Mapping[str, str]) -> Any:
    """Return the application that `serve run` builds of its arguments.

    path: the model. replicas, cores, gpus, key: as `replicas_of` and ServerSettings have them; and
    the settings of an engine. Raises ArgumentError for others.
    """
    known = ("path", "replicas", "cores", "gpus", "key", *_WHOLE, *_WORDS)
    for name in arguments:
        if name not in known:
            raise ArgumentError("no such argument", found=name, wanted=", ".join(known))
    if "path" not in arguments:
        raise ArgumentError("no model is named", wanted="path=FILE")
    chosen: dict[str, Any] = {name: int(arguments[name]) for name in _WHOLE if name in arguments}
    chosen |= {name: arguments[name] for name in _WORDS if name in arguments}
    return replicas_of(
        arguments["path"], int(arguments.get("replicas", 1)),
        cores=float(arguments.get("cores", 1)), gpus=float(arguments.get("gpus", 0)),
        settings=EngineSettings(**chosen), server=ServerSettings(arguments.get("key")),
    )


def _library() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise MissingDependency(package="ray", extra="ray") from error
    return serve
