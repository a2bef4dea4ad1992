"""The server: the usual protocols of language models over one engine.

Requests of each protocol are checked and made into one kind of chat or text, answers are written
in the protocol's own form, and whatever a client gets wrong is told to it with a reason.
"""

from baregrad.llm.serve.application import application
from baregrad.llm.serve.desk import ServerSettings
from baregrad.llm.serve.served import ServedModel
from baregrad.llm.serve.vectors import VectorModel, open_to_embed

__all__ = ["ServedModel", "ServerSettings", "VectorModel", "application", "open_to_embed"]
