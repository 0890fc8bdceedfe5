"""Chat templates: the jinja2 text inside a GGUF file, rendered in a sandbox."""

from specframe.chat.messages import Message, check_messages
from specframe.chat.template import ChatTemplate, templates_of

__all__ = ["ChatTemplate", "Message", "check_messages", "templates_of"]
