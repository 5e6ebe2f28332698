"""The pictures of docs/gallery.md, one of each kind, from sweeps that were run.

    lnexp run quickstart nan_100_layers lessons/L4_fair lessons/L6 lessons/L16 \
        papers/xiong_init
    python scripts/gallery.py results

Colours are cut to a palette, which makes a file a third as large.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from lnexp.figures.plots import PICTURES, plot_sweep
from lnexp.results.load import load

GALLERY = Path(__file__).parent.parent / "docs" / "images" / "gallery"
COLOURS = 96
# Kind -> the sweep it is drawn from.
SWEEPS = {
    "loss": "quickstart",
    "gradient_by_layer": "quickstart",
    "gradient_heat": "nan_100_layers",
    "gradient_over_steps": "quickstart",
    "gradient_ratio": "quickstart",
    "update_ratio": "quickstart",
    "stream_by_layer": "L16",
    "matrix_by_layer": "L16",
    "branch_by_layer": "L16",
    "laws": "xiong_init",
    "end_gap": "quickstart",
    "lr": "L4_fair",
    "eps": "L6",
    "phase": "L4_fair",
    "verdicts": "quickstart",
    "survival": "nan_100_layers",
}
assert set(SWEEPS) == set(PICTURES)


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "results")
    GALLERY.mkdir(parents=True, exist_ok=True)
    for sweep in dict.fromkeys(SWEEPS.values()):
        kinds = [kind for kind, of in SWEEPS.items() if of == sweep]
        results = load(root / sweep)
        frames = results.runs, results.steps(), results.layers(), results.axes[sweep]
        with TemporaryDirectory() as folder:
            for path in plot_sweep(*frames, Path(folder), name=sweep, kinds=kinds, formats=["png"]):
                small = Image.open(path).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
                small.save(GALLERY / path.name, optimize=True)
                print(f"{path.name:<26} {(GALLERY / path.name).stat().st_size // 1000:>5} kB")


if __name__ == "__main__":
    main()
