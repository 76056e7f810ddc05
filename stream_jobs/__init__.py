"""Stream jobs: what turns the log of episodes into a batch for the learner, and feeds it with
work.
"""
