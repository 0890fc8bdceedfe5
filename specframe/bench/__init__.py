"""Measures specframe against llama.cpp's own server, in one run and on the same library binary.

``python -m specframe.bench --help`` lists the options; ``make bench`` runs it with its defaults.
"""
