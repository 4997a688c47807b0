"""The set-up that ``bieqno init`` writes: ``setup.toml`` and ``my_model.py``."""
