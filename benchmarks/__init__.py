"""Measurements: each module has `run() -> list[dict]` and prints it as JSON when started alone."""
