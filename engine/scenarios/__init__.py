"""Scenarios: small runs with a point, as TOML files; reading, checking and running them.

What a scenario holds is data; code never enters through it.
"""
