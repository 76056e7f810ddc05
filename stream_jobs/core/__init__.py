"""Pure cores: they decide from records and times that are given to them; no I/O, no clock, no
chance.
"""
