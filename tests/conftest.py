"""Registers the skill's folder as the package that the tests import, as `python <skill-dir>` does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("_skill_main", Path(__file__).resolve().parents[1] / "__main__.py")
assert _spec is not None and _spec.loader is not None
_main = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_main)
_main.register()
