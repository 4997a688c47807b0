"""Families of systems that the pretrained filter learns from: one file each, with a model and a way to draw its parameters."""
