"""Which tokens remain (min-p, top-k, top-p), and the inverse of the cumulative distribution over them.

Filters are thresholds on the logits: tokens as likely as the last one kept are kept too, so that the result never
depends on how a sort breaks ties.
"""

from __future__ import annotations

import torch

HEAD = 32  # so many likeliest tokens are searched for the nucleus first; torch finds few of them quickly
BUCKETS = 1024
BUCKETS_PER_NAT = 32
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
    target = top_p * weights.sum(dim=-1, keepdim=True, dtype=torch.float64)
    values, order = x.topk(min(HEAD, x.shape[1]), dim=-1)
    floor, enough = _last_needed(values, weights.gather(1, order), target)
    floor = floor.masked_fill_(top_p >= 1.0, float("-inf"))
    left = torch.nonzero((~enough & (top_p < 1.0)).view(-1)).view(-1)
    if len(left):
        floor[left] = _nucleus_by_buckets(x[left], weights[left], target[left])
    return floor


def _nucleus_by_buckets(x: torch.Tensor, weights: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The same for any number of tokens, sorting only those near the floor.

    Weights are summed in buckets by distance to the best token; the floor lies in the bucket that reaches the target.
    """
    bucket = (x * -BUCKETS_PER_NAT).clamp_(max=BUCKETS - 1).long()
    mass = torch.zeros(x.shape[0], BUCKETS, dtype=torch.float64, device=x.device)
    mass.scatter_add_(1, bucket, weights.double())
    before = mass.cumsum(dim=-1) - mass
    places = torch.arange(BUCKETS, device=x.device)
    reached = torch.where((before < target) & (mass > 0), places, 0).max(dim=-1, keepdim=True).values
    inside = x.masked_fill(bucket != reached, float("-inf"))
    count = int((bucket == reached).sum(dim=-1).max())
    values, order = inside.topk(count, dim=-1)
    near = weights.gather(1, order).masked_fill_(values == float("-inf"), 0)
    return _last_needed(values, near, target - before.gather(1, reached))[0]


def _last_needed(
    values: torch.Tensor, weights: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(value at which the running weight reaches the target [rows, 1], whether it does [rows, 1]); values descend."""
    head = weights.double()
    sums = head.cumsum(dim=-1)
    kept = ((sums - head) < target) & (head > 0)  # what lies before it is not yet enough
    last = kept.sum(dim=-1, keepdim=True).clamp_(min=1) - 1
    return values.gather(1, last), sums[:, -1:] >= target


def draw(weights: torch.Tensor, u: torch.Tensor) -> list[int]:
    """The tokens at which the running sums of weights [rows, vocab], in vocabulary order, exceed u [rows] of the total.

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
    """[rows, 1]: first index whose running sum exceeds target; if rounding leaves none, the last with any weight."""
    found = (running <= target).sum(dim=-1, keepdim=True)
    places = torch.arange(weights.shape[1], device=weights.device)
    last = torch.where(weights > 0, places, -1).max(dim=-1, keepdim=True).values
    return torch.minimum(found, last).clamp_(min=0)
