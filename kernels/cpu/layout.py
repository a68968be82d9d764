"""What the attention kernel is given: one array of int64 arguments, a table of units of work, scratch per thread.

Addresses and strides are in bytes. A float32 argument lies in the low half of its place. The counters have cache lines
of their own, for all threads write them while they read the rest.
"""

from __future__ import annotations

(
    QUERIES,  # q [T, heads, head_dim]
    QUERY_TOKEN_STRIDE,
    QUERY_HEAD_STRIDE,
    CACHE,  # the layer [num_blocks, 2, kv_heads, block_size, head_dim]
    BLOCK_STRIDE,
    OUTPUT,  # [T, heads, head_dim], contiguous
    TABLES,  # int64 [S, max_blocks]
    TABLE_STRIDE,
    UNITS,  # int64 [units, UNIT_FIELDS]
    UNIT_COUNT,
    GROUP,  # query heads per KV head
    KV_HEADS,
    HEAD_DIM,
    BLOCK_SIZE,
    WINDOW,  # tokens a query sees, 0 for all
    SINKS,  # float32 [heads], or 0
    QUERY_FACTOR,  # float: queries are multiplied by it
    CAP,  # float: scores s become CAP * tanh(s); 0 for none
    PARTS,  # float32 [parts, heads, head_dim]: sums of split sequences
    PART_STATS,  # float32 [parts, heads, 2]: their largest score (in base 2) and sum of weights
    FINISHED,  # int64 [counters], 0 before and after: units of a split sequence that are done
    SCRATCH,
    SCRATCH_STRIDE,  # from one thread's to the next one's
    SCRATCH_ROWS,  # rows that its parts are laid out for
) = range(24)
NEXT_UNIT = 32
NEXT_THREAD = 48
ARGUMENTS = 64

(
    KIND,  # DECODE: one token's chunk of context. PREFILL: a run of tokens of a sequence, for one KV head
    SEQUENCE,
    TOKEN,  # first of the packed tokens
    TOKENS,
    POSITION,  # of that first token
    LOW,  # keys LOW … HIGH - 1 are read
    HIGH,
    FIRST_HEAD,  # KV heads FIRST_HEAD … LAST_HEAD - 1
    LAST_HEAD,
    PART,  # where a split decode puts its sums, -1 when it is whole
    FIRST_PART,  # of this token's parts
    PART_COUNT,
    COUNTER,  # which of FINISHED
) = range(13)
UNIT_FIELDS = 16

DECODE, PREFILL = 0, 1

TILE = 64  # keys between two looks at the running maximum
CHUNK = 256  # keys of a decode unit; fixed, so that a sequence's sums do not depend on what else is in the batch
ROW_BLOCK = 6  # rows of a prefill's matrix kernel

TABLE_BYTES = CHUNK * 8
SCORE_BYTES = TILE * 4


def scratch_bytes(rows: int, head_dim: int) -> int:
    """Per thread: row addresses, queries, sums, statistics, scores; and packed keys and values of a tile."""
    row = head_dim * 4
    return TABLE_BYTES + rows * (2 * row + 8 + SCORE_BYTES) + 2 * TILE * row + 256
