"""Pure rules of the learner: losses, advantages, packing, consumption, restore; no clock, chance or
I/O.
"""
