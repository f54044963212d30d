"""The Python driver's own files. Loaded by `loader.py`, never imported as a package (this file is for type checkers)."""
