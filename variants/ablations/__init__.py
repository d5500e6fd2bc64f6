"""Ablations: copies of a variant, mostly v00, with one change each, to see which part costs what."""
