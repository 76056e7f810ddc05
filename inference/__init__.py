"""Inference: the engine, the gateway in front of it, the token WAL writer and the weight refresh."""
