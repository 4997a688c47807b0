"""The laboratory: reproduces the paper and compares methods; nothing below imports it."""
