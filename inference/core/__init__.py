"""Pure cores of inference: token and request life, commit cutting, token history."""
