"""The version of Sluice that its command and its contract show; that of pyproject.toml."""

VERSION = "0.1.0"
