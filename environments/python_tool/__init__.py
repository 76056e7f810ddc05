"""Questions that take code to answer, run in a sandbox."""
