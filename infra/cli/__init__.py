"""The `sluice` command: data on stdout, talk on stderr, exit 0 done, 1 failed, 2 wrong use, 3 no
bus.
"""
