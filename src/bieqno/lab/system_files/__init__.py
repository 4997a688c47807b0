"""Assimilation with the user's own model, described by one TOML file."""
