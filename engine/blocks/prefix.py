"""PrefixIndex: which blocks hold which content, so that a prompt can begin where an earlier one left K/V.

A full block's content is its tokens after everything before them, under the request's salt. Keys form a chain: a
key's hash covers its parent's. A hit compares the content as well as the hash, so equal hashes never share K/V.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Hasher = Callable[[bytes, bytes], int]
"""(parent hash, content) -> 64-bit hash."""


def blake2_hash(parent: bytes, content: bytes) -> int:
    """The same in every process and on every machine."""
    return int.from_bytes(hashlib.blake2b(content, key=parent, digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True, eq=False)
class BlockKey:
    """Content of one full block: `tokens` after `parent`, the root of the chain being the salt."""

    hash: int
    tokens: tuple[int, ...]
    parent: BlockKey | None
    salt: str
    depth: int  # blocks before this one

    def same_content(self, other: BlockKey) -> bool:
        """Whether both chains hold the same tokens under the same salt, compared token by token."""
        a: BlockKey | None = self
        b: BlockKey | None = other
        while a is not b:
            if a is None or b is None or a.tokens != b.tokens or a.salt != b.salt:
                return False
            a, b = a.parent, b.parent
        return True


def extend_keys(
    keys: list[BlockKey],
    tokens: Sequence[int],
    block_size: int,
    full: int,
    salt: str = "",
    hasher: Hasher = blake2_hash,
) -> None:
    """Append keys until `keys` holds those of the first `full` blocks of `tokens`."""
    for index in range(len(keys), full):
        parent = keys[-1] if keys else None
        own = tuple(tokens[index * block_size : (index + 1) * block_size])
        before = parent.hash.to_bytes(8, "little") if parent is not None else b"vtop"
        content = array("q", own).tobytes() + (salt.encode() if parent is None else b"")
        keys.append(BlockKey(hasher(before, content), own, parent, salt, index))


class PrefixIndex:
    """Keys of blocks and blocks of keys. Several blocks may hold the same content; the oldest entry is handed out."""

    def __init__(self) -> None:
        self._blocks: dict[int, list[int]] = {}  # hash -> blocks, oldest entry first
        self._keys: dict[int, BlockKey] = {}  # block -> its key
        self.collisions = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def key_of(self, block: int) -> BlockKey | None:
        return self._keys.get(block)

    def find(self, key: BlockKey) -> int | None:
        """A block with this content. A block of equal hash and other content is a collision, not a hit."""
        for block in self._blocks.get(key.hash, ()):
            if self._keys[block].same_content(key):
                return block
            self.collisions += 1
        return None

    def put(self, block: int, key: BlockKey) -> None:
        """`block` holds this content from now on, written."""
        self.drop(block)
        self._keys[block] = key
        self._blocks.setdefault(key.hash, []).append(block)

    def drop(self, block: int) -> BlockKey | None:
        """The content of `block` is gone; returns its key, if it had one."""
        key = self._keys.pop(block, None)
        if key is not None:
            blocks = self._blocks[key.hash]
            blocks.remove(block)
            if not blocks:
                del self._blocks[key.hash]
        return key

    def clear(self) -> None:
        self._blocks.clear()
        self._keys.clear()
