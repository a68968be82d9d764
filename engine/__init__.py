"""The engine: scheduler, paged KV cache, executors and the events they tell.

Importing this package imports no torch; `LLM` and `LLMEngine` are loaded when first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vtop.engine.config import EngineConfig
from vtop.engine.request import FinishReason, RequestStatus, SamplingParams

if TYPE_CHECKING:
    from vtop.engine.engine import LLMEngine
    from vtop.engine.llm import LLM

__all__ = ["LLM", "EngineConfig", "FinishReason", "LLMEngine", "RequestStatus", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from vtop.engine.llm import LLM

        return LLM
    if name == "LLMEngine":
        from vtop.engine.engine import LLMEngine

        return LLMEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
