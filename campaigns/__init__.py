"""Campaigns: hostile use in large numbers. Each takes a count and a seed and writes its table into docs/reliability.md."""
