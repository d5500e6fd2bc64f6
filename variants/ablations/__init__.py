"""Ablations of v00: one change each, to see which part of its loop costs what."""
