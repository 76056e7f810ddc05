"""The vocabulary of Sluice: ids, records, topics, codec, rules of reading, errors and ports; it
does no I/O.
"""
