"""Pure cores of inference: token and request life, commit cutting, the token history of an episode."""
