"""The Python driver's own files. Loaded by `loader.py`, never imported (this file is for type checkers)."""
