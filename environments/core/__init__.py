"""Pure decisions of the environment worker: the episode's life, its lease and its tool calls."""
