"""points.json: which runs a sweep holds now. Its types are checked before anything uses it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lnexp.analysis.runfolder import DEFAULTS
from lnexp.errors import UserError
from lnexp.naming import wrong_name
from lnexp.yamlfile import LARGEST

ANEW = "`lnexp run` of the sweep's config writes it anew"


def read_points(sweep: Path) -> dict[str, Any]:
    """The file's entries; axes that this version does not know are apart, under "later"."""
    path = sweep / "points.json"
    try:
        points = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise UserError(f"{path}: {problem.strerror}; expected a sweep folder") from None
    except (ValueError, RecursionError):
        points = None
    if not isinstance(points, dict):
        raise UserError(f"{path}: not a list of points; {ANEW}")
    points = {"question": "", **points}
    for name, fits in ENTRIES.items():
        if not fits(points.get(name)):
            raise UserError(f"{path}: {name} is not what a sweep holds there; {ANEW}")
    known = [axis for axis in points["axes"] if axis in DEFAULTS]
    later = [axis for axis in points["axes"] if axis not in DEFAULTS]
    return {**points, "axes": known, "later": later}


def later_axes(sweep: Path, points: dict[str, Any]) -> list[str]:
    """A note on the axes of a later version, which are left out."""
    if not points["later"]:
        return []
    return [f"{sweep}: axes that this version does not know: {', '.join(points['later'])}"]


def _point(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("run"), str)
        and not wrong_name(value["run"])
        and all(_whole(value.get(key)) and value[key] >= 0 for key in ("seed_init", "seed_data"))
        and isinstance(value.get("settings"), dict)
        and all(map(_setting, value["settings"].values()))
    )


def _setting(value: Any) -> bool:
    """A plain value, or a list of them (betas)."""
    values = value if isinstance(value, list) else [value]
    return all(isinstance(v, (str, bool, float)) or _whole(v) for v in values)


def _whole(value: Any) -> bool:
    return type(value) is int and abs(value) <= LARGEST


def _all(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(fits, value))


ENTRIES: dict[str, Callable[[Any], bool]] = {
    "question": lambda value: isinstance(value, str),
    "axes": lambda value: _all(value, lambda axis: isinstance(axis, str)),
    "runs": lambda value: _all(value, _point),
}
