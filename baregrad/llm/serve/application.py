"""The application that serves a model."""

from __future__ import annotations

from typing import Any

from baregrad.base.errors import MissingDependency
from baregrad.llm.serve.answer_desk import AnswerDesk
from baregrad.llm.serve.desk import Desk, ServerSettings
from baregrad.llm.serve.served import ServedModel
from baregrad.llm.serve.vectors import VectorDesk, VectorModel


def application(
    model: ServedModel | VectorModel, settings: ServerSettings | None = None
) -> Any:
    """Return the ASGI application that serves a model; raises MissingDependency."""
    try:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.cors import CORSMiddleware
        from starlette.routing import Route
    except ImportError as error:
        raise MissingDependency(package="starlette", extra="serve") from error
    wanted = settings or ServerSettings()
    desk: Desk
    if isinstance(model, VectorModel):
        desk = VectorDesk(model, wanted)
    else:
        desk = AnswerDesk(model, wanted)
    middleware = [
        Middleware(
            CORSMiddleware, allow_origins=list(wanted.origins), allow_methods=["*"],
            allow_headers=["*"],
        )
    ] if wanted.origins else []
    routes = [
        Route(path, desk.endpoint(handler, path), methods=[method])
        for path, method, handler in desk.routes()
    ]
    made = Starlette(
        routes=routes, middleware=middleware,
        exception_handlers={404: desk.not_found, 405: desk.not_found},
    )
    # What is not here is told so, and not sent elsewhere.
    made.router.redirect_slashes = False
    return made
