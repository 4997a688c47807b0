"""Figures and pages from stored results."""
