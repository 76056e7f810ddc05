"""Arithmetic with a number that only a tool call reveals, over several turns."""
