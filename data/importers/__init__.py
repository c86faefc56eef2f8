"""Readers of other tools' logs: one module a format family."""
