"""A task that even a tiny random model learns: write characters of one class."""
