"""`sluice run`: settings, processes, progress, accounts and report of one training run."""
