"""Chat templates: programs in a model's files that make a prompt of messages.

They are other people's programs, and run in a process of their own that may use little time and
memory. What came from the messages is told apart in the prompt from what the template wrote.
"""

from baregrad.llm.text.templates.chat_template import ChatTemplate, TemplateLimits

__all__ = ["ChatTemplate", "TemplateLimits"]
