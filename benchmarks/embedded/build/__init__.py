"""Builds the embedded image suite mini-clip8 from package sources only (see README.md)."""
