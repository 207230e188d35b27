"""The benchmark's report as one HTML page that needs no other file."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manifoldnorm.gnn.benchmark_report import Report, Table

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: left; border-bottom: 1px solid #ddd; white-space: nowrap; }
th { background: #f4f4f4; } tr:hover td { background: #fafafa; }
img { max-width: 100%; } .note { color: #555; } .warning { background: #fff3cd; padding: .5rem 1rem; }
.fires { color: #b2182b; font-weight: 600; } .holds { color: #1b7837; }
"""
VERDICT_CLASSES = {"fires": "fires", "does not fire": "holds"}
CAPTIONS = {
    "gains.png": "Paired gains over LayerNorm with 95 % bootstrap intervals over the training seeds; hollow and grey: "
    "fewer than six seeds, not testable.",
    "curves.png": "Largest component while nodes are removed.",
}


def page(report: "Report", figures: Mapping[str, bytes | None], warnings: Sequence[str]) -> str:
    """Build the page.

    Parameters
    ----------
    report : Report
    figures : mapping from name to PNG bytes
    warnings : sequence of str
        Shown on top.
    """
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Node selection: PostDeg against LayerNorm</title><style>{STYLE}</style></head><body>",
        "<h1>Node selection: PostDeg against LayerNorm</h1>",
        f"<p>{report.done} of {report.planned} planned runs are in.</p>",
    ]
    parts += [f"<p class='warning'>{escape(warning)}</p>" for warning in warnings]
    if report.missing:
        parts.append(_missing(report.missing))
    tables = report.tables()
    parts += _table(tables[0])
    parts += _figure("Gains", "gains.png", figures)
    for table in tables[1:]:
        parts += _table(table)
    parts += _figure("Dismantling curves", "curves.png", figures)
    return "\n".join([*parts, "</body></html>\n"])


def _missing(missing: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(name)}</li>" for name in missing)
    return f"<details><summary>{len(missing)} runs are missing</summary><ul>{items}</ul></details>"


def _table(table: "Table") -> list[str]:
    header = "".join(f"<th>{escape(name)}</th>" for name in table.header)
    rows = ["<tr>" + "".join(_cell(text) for text in row) + "</tr>" for row in table.rows]
    return [
        f"<h2>{escape(table.title)}</h2>",
        f"<p class='note'>{escape(table.note)}</p>" if table.note else "",
        f"<div class='scroll'><table><thead><tr>{header}</tr></thead><tbody>",
        *rows,
        "</tbody></table></div>",
    ]


def _cell(text: str) -> str:
    style = VERDICT_CLASSES.get(text)
    return f"<td class='{style}'>{escape(text)}</td>" if style else f"<td>{escape(text)}</td>"


def _figure(title: str, name: str, figures: Mapping[str, bytes | None]) -> list[str]:
    image = figures.get(name)
    if image is None:
        return []
    source = f"data:image/png;base64,{b64encode(image).decode()}"
    caption = CAPTIONS[name]
    return [f"<h2>{title}</h2>", f"<img alt='{caption}' src='{source}'>", f"<p class='note'>{caption}</p>"]
