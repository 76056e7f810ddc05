"""The read door: records come from the bus through here, decoded once, with their place in
the log.
"""
