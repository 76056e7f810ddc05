"""The write door: records go to the bus through here and come back as one of three
acknowledgements.
"""
