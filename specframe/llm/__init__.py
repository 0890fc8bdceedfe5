"""The application's door: load a model, generate, stream, chat, from threads or from asyncio."""

from specframe.llm.choosing import extend, first_of
from specframe.llm.info import LLMInfo
from specframe.llm.llm import LLM
from specframe.llm.loading import load
from specframe.llm.options import ChatOptions, GenerateOptions, PromptOptions, SamplingOptions
from specframe.llm.streams import AsyncStream, Stream
from specframe.llm.unset import UNSET

__all__ = [
    "LLM",
    "UNSET",
    "AsyncStream",
    "ChatOptions",
    "GenerateOptions",
    "LLMInfo",
    "PromptOptions",
    "SamplingOptions",
    "Stream",
    "extend",
    "first_of",
    "load",
]
