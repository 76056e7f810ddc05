"""Pure decisions of the verifier: what a verdict is, and when another try is due."""
