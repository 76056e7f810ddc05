"""Where code written by a model runs: limited, without network, and coded when it breaks a
limit.
"""
