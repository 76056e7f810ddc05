"""Pure rules of the write door: where a record goes, how large it may be, what an error means, how
long to wait.
"""
