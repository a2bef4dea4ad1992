"""The server: the usual protocols of language models over one engine.

Requests of each protocol are checked and made into one kind of chat or text, answers are written
in the protocol's own form, and whatever a client gets wrong is told to it with a reason.
"""

from baregrad.llm.serve.application import ServerSettings, application
from baregrad.llm.serve.served import ServedModel

__all__ = ["ServedModel", "ServerSettings", "application"]
