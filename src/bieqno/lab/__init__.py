"""The laboratory: reproduces the paper and compares methods; nothing below imports it."""

from importlib.util import find_spec

try:
    _missing = [name for name in ("matplotlib", "pandas", "rich", "scoringrules", "xarray") if find_spec(name) is None]
except ModuleNotFoundError as error:
    _missing = [str(error.name)]
if _missing:
    raise ImportError(f'the laboratory needs {", ".join(_missing)}: pip install "bieqno[lab]"')
