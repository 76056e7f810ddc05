"""Pure rules of the read door: which offset may be committed."""
