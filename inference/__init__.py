"""Inference: engines, the gateway, the token WAL writer and the weight refresh."""
