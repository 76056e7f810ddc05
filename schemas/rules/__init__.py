"""The reading rules of the log, one module per topic family: what counts, decided by log order
alone, for every reader.
"""
