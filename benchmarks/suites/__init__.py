"""One file per suite; every module of this folder is imported, which fills ``SUITES``."""

import importlib
import pkgutil

from .base import SUITES, Suite, suite_named

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["SUITES", "Suite", "suite_named"]
