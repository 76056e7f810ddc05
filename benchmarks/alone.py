"""One measurement in a process of its own: `python -m benchmarks.alone MODULE FILE` runs it and
writes its rows to FILE as JSON.

What a measurement leaves behind, an engine in memory or a library that logs, is then no part of the
next one.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import orjson

if __name__ == "__main__":
    module, path = sys.argv[1:]
    Path(path).write_bytes(orjson.dumps(importlib.import_module(module).run()))
