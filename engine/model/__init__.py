"""The model side: weights, KV tensors, attention hook, sampler, the executor that runs a plan.

The only room that imports torch and transformers; what decides, tells or simulates never enters.
"""
