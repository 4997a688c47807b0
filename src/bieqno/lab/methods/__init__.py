"""Opponents, and the paper's own forms."""
