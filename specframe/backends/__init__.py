"""Targets that run real models; each backend is a package of its own."""
