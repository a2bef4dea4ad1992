"""Text to tokens and back, prompts from chats, and calls and thoughts out of answers.

Tokenisers are made of what a model's files say; chat templates are programs in those files, run in
a sandbox with limits. What a user wrote never becomes a control token.
"""

from baregrad.llm.text.detokenizer import Detokenizer
from baregrad.llm.text.folder import tokenizer_of_folder
from baregrad.llm.text.tokenizer import Tokenizer, tokenizer_of

__all__ = ["Detokenizer", "Tokenizer", "tokenizer_of", "tokenizer_of_folder"]
