"""Which scheduler, over which block tables, a configuration means."""

from __future__ import annotations

from vtop.engine.blocks.manager import BlockManager
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.presets.base import preset_options
from vtop.engine.presets.blocks import V0Blocks, V1Blocks
from vtop.engine.presets.v0 import V0Scheduler
from vtop.engine.presets.v0_chunked import V0ChunkedScheduler
from vtop.engine.presets.v1 import V1Scheduler
from vtop.engine.sched.output import OutputProcessor
from vtop.engine.sched.scheduler import Scheduler

AnyScheduler = Scheduler | V0Scheduler | V0ChunkedScheduler | V1Scheduler


def make_blocks(config: EngineConfig, num_blocks: int, host_blocks: int = 0) -> BlockManager:
    """Block tables over a device pool and a host pool, as the preset keeps them."""
    caching = bool(config.enable_prefix_caching)
    if config.preset == "vllm-v0":
        blocks = V0Blocks(num_blocks, config.block_size, prefix_caching=caching, host_blocks=host_blocks)
        blocks.half_full = config.preset_quirks
        return blocks
    if config.preset == "vllm-v1":
        return V1Blocks(num_blocks, config.block_size, prefix_caching=caching)
    return BlockManager(num_blocks, config.block_size, prefix_caching=caching, host_blocks=host_blocks)


def make_scheduler(
    config: EngineConfig, blocks: BlockManager, outputs: OutputProcessor, max_model_len: int
) -> AnyScheduler:
    """The scheduler of the preset, over the tables of `make_blocks`.

    Raises BadValue when the preset cannot run with the token budget.
    """
    budget = config.token_budget(max_model_len)
    if config.preset == "sensible":
        return Scheduler(config, blocks, outputs, budget, max_model_len)
    options = preset_options(config, blocks.pool.total, max_model_len)
    _check_budget(config, budget, max_model_len)
    if config.preset == "vllm-v1":
        return V1Scheduler(config, blocks, outputs, budget, options)
    if not isinstance(blocks, V0Blocks):
        raise TypeError(f"preset vllm-v0 needs V0Blocks, not {type(blocks).__name__}")
    kind = V0ChunkedScheduler if options.chunked else V0Scheduler
    return kind(config, blocks, outputs, budget, options)


def _check_budget(config: EngineConfig, budget: int, max_model_len: int) -> None:
    if config.batching == "prefill-first" and budget < max_model_len:
        raise BadValue(
            "max_num_batched_tokens",
            budget,
            f"preset {config.preset} never splits a prompt; give at least max_model_len, {max_model_len}",
        )
    if config.preset == "vllm-v0" and config.enable_prefix_caching and config.batching == "chunked":
        size = config.block_size
        if budget % size:
            remedy = f"preset vllm-v0 cuts chunks at block borders; give a multiple of block_size, {size}"
            raise BadValue("max_num_batched_tokens", budget, remedy)
