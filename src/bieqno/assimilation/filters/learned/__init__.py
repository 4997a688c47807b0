"""Filters whose analysis is learned."""
