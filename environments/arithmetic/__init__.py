"""One-digit sums and products in a single turn, from the generators of reasoning-gym."""
