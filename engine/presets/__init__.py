"""vLLM's own rules, as small schedulers on queues, pools and events of `engine.sched`. (21): number 21 of RULES.md.

No rule of ours enters, and no fault of theirs that would harm a user: `conform` adds what recorded cases need of those.
"""
