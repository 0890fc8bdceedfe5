"""A report as one HTML file that needs nothing else: no script, no font, no picture from anywhere."""

from __future__ import annotations

from pathlib import Path

import jinja2

from specframe.bench import plots
from specframe.bench.results import Results
from specframe.bench.tables import tables


def report(results: Results) -> str:
    """The whole report; figures only where matplotlib is installed."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    drawn = plots.figures(results.comparison, results.audit) if plots.available() else {}
    return environment.get_template("report.html.jinja").render(
        model=Path(results.settings.model).name,
        plots=drawn,
        why_no_plots=(
            "There was nothing to draw."
            if plots.available()
            else "Figures need matplotlib: pip install specframe[bench]"
        ),
        tables=tables(results),
    )
