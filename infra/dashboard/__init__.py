"""The live page of a run: static files, served by the sink beside its SQL endpoint."""
