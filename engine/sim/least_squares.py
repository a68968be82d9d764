"""Least squares with coefficients of 0 or more: no part of a step may take less than no time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

_SLACK = 1e-10  # of the largest gradient: what counts as no descent any more


def nonnegative(rows: Matrix, wanted: Matrix) -> Matrix:
    """The x of 0 or more for which |rows · x - wanted| is least (Lawson and Hanson's active-set method).

    Columns may differ in size by many orders of magnitude; they are brought to length 1 first.
    """
    lengths = np.linalg.norm(rows, axis=0)
    lengths[lengths == 0] = 1.0
    scaled = rows / lengths
    count = scaled.shape[1]
    x = np.zeros(count)
    free = np.zeros(count, dtype=bool)
    gradient = scaled.T @ wanted
    enough = _SLACK * max(1.0, float(np.abs(gradient).max(initial=0.0)))
    for _ in range(3 * count):
        rising = np.where(free, -np.inf, gradient)
        if free.all() or rising.max() <= enough:
            break
        free[int(rising.argmax())] = True
        x = _settled(scaled, wanted, x, free)
        gradient = scaled.T @ (wanted - scaled @ x)
    found: Matrix = x / lengths
    return found


def _settled(rows: Matrix, wanted: Matrix, x: Matrix, free: NDArray[np.bool_]) -> Matrix:
    """Solve for the free ones; those that would fall below 0 are fixed there, one after the other."""
    while True:
        goal = np.zeros_like(x)
        goal[free] = np.linalg.lstsq(rows[:, free], wanted, rcond=None)[0]
        falling = free & (goal <= 0)
        if not falling.any():
            return goal
        shares = x[falling] / np.maximum(x[falling] - goal[falling], np.finfo(float).tiny)
        x = x + float(shares.min()) * (goal - x)
        free &= ~(falling & (x <= 1e-15))
        x[~free] = 0.0
        if not free.any():
            return x
