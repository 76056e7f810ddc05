"""Traces of a run: spans derived from the log, exported over OTLP when an endpoint is set."""
