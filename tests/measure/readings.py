"""What a forward probe read, place by place."""

from lnexp.measure.forward import ForwardProbe
from lnexp.rows import Place


def readings(probe: ForwardProbe) -> dict[Place, dict[str, float]]:
    found: dict[Place, dict[str, float]] = {}
    for places, field, values in probe.read:
        for place, value in zip(places, values.tolist(), strict=True):
            found.setdefault(place, {})[field] = value
    return found
