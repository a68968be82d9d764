"""For the whole suite: one torch thread, so that tests beside each other on two cores do not wait for one another."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
