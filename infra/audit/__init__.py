"""Proof of a run from its topics alone, with readers and rules of its own (design section 16).

Nothing here imports `schemas.rules` or a service: a mistake in the code that runs a run must not
hide itself.
"""
