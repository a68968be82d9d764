"""Which tokens remain (min-p, top-k, top-p), and the inverse of the cumulative distribution over them.

Filters are thresholds on the logits: tokens as likely as the last one kept are kept too, so that the result never
depends on how a sort breaks ties.
"""

from __future__ import annotations

import torch

HEADS = (64, 1024)  # numbers of likeliest tokens among which the nucleus is looked for first; sorting all is the exception
CHUNK = 256


def filtered_weights(
    scaled: torch.Tensor, top_k: torch.Tensor | None, top_p: torch.Tensor | None, min_p: torch.Tensor | None
) -> torch.Tensor:
    """Unnormalised probabilities [rows, vocab] of logits already divided by the temperature; 0 where filtered out.

    top_k [rows] int64 (0 is off), top_p [rows, 1] float64 (1 is off), min_p [rows, 1] (0 is off). None: off for all.
    """
    x = scaled - scaled.max(dim=-1, keepdim=True).values
    weights = torch.exp(x)
    if top_k is None and top_p is None and min_p is None:
        return weights
    floor = torch.full_like(x[:, :1], float("-inf"))
    if min_p is not None:
        floor = torch.maximum(floor, torch.log(min_p))
    if top_k is not None:
        floor = torch.maximum(floor, _kth_largest(x, top_k))
    if top_p is not None:
        floor = torch.maximum(floor, _nucleus_floor(x, torch.where(x >= floor, weights, 0), top_p))
    return torch.where(x >= floor, weights, 0)


def _kth_largest(x: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """[rows, 1]: each row's k-th largest value; -inf where k is 0 or beyond the vocabulary."""
    off = (top_k == 0) | (top_k >= x.shape[1])
    most = int(torch.where(off, 0, top_k).max())
    if most == 0:
        return torch.full_like(x[:, :1], float("-inf"))
    values = x.topk(most, dim=-1).values
    kth = values.gather(1, (top_k.clamp(1, most) - 1).view(-1, 1))
    return kth.masked_fill_(off.view(-1, 1), float("-inf"))


def _nucleus_floor(x: torch.Tensor, weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """[rows, 1]: the smallest logit of the smallest set of likeliest tokens that holds at least top_p of the weight."""
    total = weights.sum(dim=-1, keepdim=True, dtype=torch.float64)
    floor = torch.full_like(x[:, :1], float("-inf"))
    left = torch.nonzero(top_p.view(-1) < 1.0).view(-1)
    for count in (*HEADS, x.shape[1]):
        if len(left) == 0:
            break
        count = min(count, x.shape[1])
        every = len(left) == len(x)
        rows = [part if every else part[left] for part in (x, weights, top_p, total)]
        found, enough = _nucleus_of_head(*rows, count)
        floor[left] = found
        left = left[~enough]
    return floor


def _nucleus_of_head(
    x: torch.Tensor, weights: torch.Tensor, top_p: torch.Tensor, total: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(floor [rows, 1], whether `count` likeliest tokens sufficed [rows])."""
    values, order = x.topk(count, dim=-1)
    head = weights.gather(1, order).double()
    sums = head.cumsum(dim=-1)
    kept = (sums - head) < top_p * total  # what lies before it is not yet enough
    last = kept.sum(dim=-1, keepdim=True).clamp_(min=1) - 1
    enough = (sums[:, -1] >= (top_p * total).view(-1)) | (count == x.shape[1])
    return values.gather(1, last), enough


def draw(weights: torch.Tensor, u: torch.Tensor) -> list[int]:
    """The token at which the running sum of weights [rows, vocab], in vocabulary order, first exceeds u [rows] of the total.

    Sums are float64 in two levels (chunks of the vocabulary, then inside one chunk), the same for a row whatever other
    rows there are. A token of weight 0 is never drawn.
    """
    rows, vocab = weights.shape
    chunks = -(-vocab // CHUNK)
    if chunks * CHUNK != vocab:
        weights = torch.nn.functional.pad(weights, (0, chunks * CHUNK - vocab))
    parts = weights.view(rows, chunks, CHUNK)
    sums = parts.sum(dim=-1, dtype=torch.float64)
    running = sums.cumsum(dim=-1)
    if not bool(torch.isfinite(running[:, -1]).all()):
        raise FloatingPointError("the model's logits are not finite numbers")
    target = u.view(-1, 1) * running[:, -1:]
    chunk = _first_above(running, target, sums)
    inside = parts.gather(1, chunk.view(-1, 1, 1).expand(-1, 1, CHUNK)).squeeze(1).double()
    rest = target - (running.gather(1, chunk) - sums.gather(1, chunk))
    token = _first_above(inside.cumsum(dim=-1), rest, inside)
    return list(map(int, (chunk * CHUNK + token).view(-1).tolist()))


def _first_above(running: torch.Tensor, target: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """[rows, 1]: first index whose running sum exceeds target; rounding may leave none, then the last with any weight."""
    found = (running <= target).sum(dim=-1, keepdim=True)
    places = torch.arange(weights.shape[1], device=weights.device)
    last = torch.where(weights > 0, places, -1).max(dim=-1, keepdim=True).values
    return torch.minimum(found, last).clamp_(min=0)
