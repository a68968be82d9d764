"""Example of a policy of one's own: `--scheduling-policy tests/data/example_policy.py:SmallFirst+fcfs`."""

from vtop.engine.request import Request


class SmallFirst:
    """Short prompts first, but a request that was preempted twice goes before all of them."""

    def key(self, request: Request) -> tuple[float, ...]:
        """Smaller goes first. Asked for on arrival and after a preemption; always of the same length."""
        return (0.0 if request.preemptions >= 2 else 1.0, float(request.prompt_len))

    def rank(self, request: Request) -> tuple[float, ...]:
        """Optional. The largest is the victim (`--victim policy`): here the one that has given the least."""
        return (-float(request.sequences[0].num_output),)

    def on_tokens(self, request: Request, computed: int, outputs: int) -> bool:
        """Optional, after every step. True has the key asked for again."""
        return False
