"""A non-idempotent external tool whose own count proves that each call ran once."""
