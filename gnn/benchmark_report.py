"""Write a benchmark's report: CSV and JSON, markdown tables, plots and one self-contained HTML page."""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from manifoldnorm.gnn.benchmark_arms import ARMS
from manifoldnorm.gnn.benchmark_comparisons import (
    HEADLINE,
    Comparison,
    compare,
    primary_p_values,
)
from manifoldnorm.gnn.benchmark_falsifiers import Judgement, fired, judge
from manifoldnorm.gnn.benchmark_metrics import task_metric
from manifoldnorm.gnn.benchmark_plan import TASKS, RunConfig
from manifoldnorm.gnn.benchmark_references import BEST_REFERENCE, Reference
from manifoldnorm.gnn.benchmark_store import BrokenLine, RunResult

TASK_TITLES = {"independent_set": "independent set", "influence": "influence", "dismantling": "dismantling"}
FEATURE_TITLES = {
    "blind": "random (degree-blind)",
    "degree": "random + degree",
    "structure": "random + degree, clustering, core",
    "constant": "constant",
}


@dataclass(frozen=True)
class Table:
    """A table of text cells with its caption."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""

    def to_markdown(self) -> str:
        """Write the table as markdown."""
        lines = [f"### {self.title}", ""]
        if self.note:
            lines += [self.note, ""]
        lines.append("| " + " | ".join(self.header) + " |")
        lines.append("|" + "|".join(" --- " for _ in self.header) + "|")
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Report:
    """All that a report shows; it depends on the runs alone, not on their order, time or place."""

    planned: int
    done: int
    missing: tuple[str, ...]
    comparisons: list[Comparison]
    references: list[Reference]
    judgements: list[Judgement]
    curves: dict[str, tuple[float, ...]]

    def tables(self) -> list[Table]:
        """Lay out the tables, the headline first."""
        tables = [_headline_table(self.comparisons, self.references), _track_table(self.comparisons)]
        for features in ("blind", "degree"):
            arms = _arm_table(self.comparisons, features)
            if arms.rows:
                tables.append(arms)
        if self.references:
            tables.append(reference_table(self.references))
        return [*tables, falsifier_table(self.judgements)]


def build_report(results: Sequence[RunResult], references: list[Reference], planned: Sequence[RunConfig]) -> Report:
    """Compare, judge and collect what the report shows."""
    done = {result.config for result in results}
    missing = [config for config in planned if config not in done]
    comparisons = compare(results, references)
    return Report(
        planned=len(planned),
        done=len(planned) - len(missing),
        missing=tuple(str(config) for config in missing),
        comparisons=comparisons,
        references=references,
        judgements=judge(comparisons),
        curves=_curves(results, references),
    )


def write_report(report: Report, folder: Path, broken: Iterable[BrokenLine] = ()) -> list[Path]:
    """Write summary.csv, summary.json, table.md, gains.png, curves.png and report.html.

    Parameters
    ----------
    report : Report
    folder : Path
    broken : iterable of BrokenLine
        Named in the page while runs are missing, so that nothing is dropped in silence; once all are there, a
        resumed benchmark has the report of an uninterrupted one.

    Returns
    -------
    list of Path
    """
    from manifoldnorm.gnn.benchmark_page import page
    from manifoldnorm.gnn.benchmark_plots import plot_curves, plot_gains

    folder.mkdir(parents=True, exist_ok=True)
    written = [_write_csv(report, folder / "summary.csv"), _write_json(report, folder / "summary.json")]
    tables = folder / "table.md"
    tables.write_text("\n".join(table.to_markdown() for table in report.tables()))
    written.append(tables)
    figures = {"gains.png": plot_gains(report.comparisons), "curves.png": plot_curves(report.curves)}
    for name, image in figures.items():
        if image is not None:
            (folder / name).write_bytes(image)
            written.append(folder / name)
    html = folder / "report.html"
    warnings = [str(line) for line in broken] if report.missing else []
    html.write_text(page(report, figures, warnings))
    return [*written, html]


def _write_csv(report: Report, path: Path) -> Path:
    rows = [_flat(comparison) for comparison in report.comparisons]
    with path.open("w", newline="") as file:
        if rows:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


def _flat(comparison: Comparison) -> dict[str, Any]:
    values = asdict(comparison)
    gain = values.pop("gain")
    del values["seeds"], values["gains"]
    return {**values, **{f"gain_{name}": value for name, value in gain.items()}}


def _write_json(report: Report, path: Path) -> Path:
    content = {
        "planned": report.planned,
        "done": report.done,
        "missing": report.missing,
        "comparisons": [asdict(comparison) for comparison in report.comparisons],
        "references": [asdict(reference) for reference in report.references],
        "falsifiers": [asdict(judgement) for judgement in report.judgements],
        "fired": fired(report.judgements),
        "primary_sign_p_holm": primary_p_values(report.comparisons),
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def gain_text(comparison: Comparison) -> str:
    """Write a gain as ``+13.1 [12.4, 13.7] 10/10``."""
    gain = comparison.gain
    return f"{gain.mean:+.1f} [{gain.low:.1f}, {gain.high:.1f}] {gain.wins}/{gain.seeds}"


def p_text(p: float | None) -> str:
    """Write a p value, or that there is none."""
    if p is None:
        return "not testable"
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"


def _headline_table(comparisons: list[Comparison], references: list[Reference]) -> Table:
    corrected = primary_p_values(comparisons)
    best = {(r.task, r.test_set): r for r in references if BEST_REFERENCE[r.task] == r.name}
    rows = []
    for c in comparisons:
        if c.arm != "postdeg" or c.track[1:] != HEADLINE[1:]:
            continue
        reference = best.get((c.task, c.test_set))
        primary = c.features == "blind" and c.test_set == "same_size"
        rows.append(
            (
                TASK_TITLES[c.task],
                FEATURE_TITLES[c.features],
                "same" if c.test_set == "same_size" else "larger",
                f"{c.base:.4f}",
                f"{c.value:.4f}",
                gain_text(c),
                f"[{c.two_level_low:.1f}, {c.two_level_high:.1f}]",
                p_text(c.gain.sign_p),
                p_text(corrected.get(c.task)) if primary else "",
                "" if reference is None else f"{reference.value:.4f} ({reference.name})",
                "" if c.headroom is None else f"{100 * c.headroom:.0f} %",
            )
        )
    return Table(
        "PostDeg against LayerNorm, GAT, with and without degree features",
        ("task", "features", "graphs", "LayerNorm", "PostDeg", "gain % [95 % CI] wins", "CI, seeds and graphs",
         "sign p", "Holm p", "classical reference", "headroom closed"),
        rows,
        "Metrics: " + "; ".join(task_metric(task, 0).title for task in TASKS) + " (lower is better in dismantling). "
        "Gains are relative and + is better. Fewer than six seeds are not testable.",
    )  # fmt: skip


def _track_table(comparisons: list[Comparison]) -> Table:
    by_track: dict[tuple[str, ...], dict[str, str]] = {}
    for c in comparisons:
        if c.arm == "postdeg" and c.test_set == "same_size":
            by_track.setdefault(c.track, {})[c.task] = gain_text(c)
    rows = [
        (FEATURE_TITLES[track[0]], *track[1:], *(cells.get(task, "") for task in TASKS))
        for track, cells in by_track.items()
    ]
    return Table(
        "PostDeg against LayerNorm in every track, same-size graphs",
        ("features", "backbone", "block", "objective", *(TASK_TITLES[task] for task in TASKS)),
        rows,
        "Gain in % [95 % CI over seeds] wins/seeds.",
    )


def _arm_table(comparisons: list[Comparison], features: str) -> Table:
    chosen = {
        (c.arm, c.task): c for c in comparisons if c.track == (features, *HEADLINE[1:]) and c.test_set == "same_size"
    }
    rows = []
    for arm in ARMS:
        cells = [chosen.get((arm, task)) for task in TASKS]
        if not any(cells):
            continue
        row = [ARMS[arm].title, ARMS[arm].role]
        for cell in cells:
            row += ["", ""] if cell is None else [gain_text(cell), p_text(cell.wilcoxon_holm)]
        rows.append(tuple(row))
    header = ["arm", "role"]
    for task in TASKS:
        header += [TASK_TITLES[task], "Holm p"]
    return Table(
        f"All arms against LayerNorm, GAT, {FEATURE_TITLES[features]} features, same-size graphs",
        tuple(header),
        rows,
        "Gain in % [95 % CI over seeds] wins/seeds; Wilcoxon's p, corrected over the arms and tasks of this table.",
    )


def reference_table(references: list[Reference]) -> Table:
    """Lay out the classical references."""
    rows = []
    for task in TASKS:
        names = dict.fromkeys(r.name for r in references if r.task == task)
        for name in names:
            values = {r.test_set: r for r in references if r.task == task and r.name == name}
            proved = values["same_size"].proved
            rows.append(
                (
                    TASK_TITLES[task],
                    name + ("" if proved is None else f" (proved on {100 * proved:.0f} %)"),
                    f"{values['same_size'].value:.4f}",
                    f"{values['larger'].value:.4f}",
                )
            )
    return Table(
        "Classical references on the same test graphs",
        ("task", "method", "same-size graphs", "larger graphs"),
        rows,
        "No training. Degree orders break ties at random (mean of five draws).",
    )


def falsifier_table(judgements: list[Judgement]) -> Table:
    """Lay out the falsifiers' verdicts."""
    rows = [
        (
            j.falsifier,
            j.question,
            j.arm,
            TASK_TITLES[j.task],
            "" if j.gain is None else f"{j.gain.mean:+.1f} [{j.gain.low:.1f}, {j.gain.high:.1f}]",
            "" if j.threshold is None else f"{j.threshold:+.1f}",
            j.verdict,
            j.note,
        )
        for j in judgements
    ]
    names = ", ".join(fired(judgements)) or "none"
    return Table(
        "Falsifiers, degree-blind features, same-size graphs",
        ("", "question", "arm", "task", "its gain %", "fires from", "verdict", "note"),
        rows,
        f"Rules fixed before the run (protocol.md). Fired: {names}.",
    )


def _curves(results: Sequence[RunResult], references: Iterable[Reference]) -> dict[str, tuple[float, ...]]:
    """Average the dismantling curves of LayerNorm and PostDeg over seeds, beside those of the references."""
    curves: dict[str, tuple[float, ...]] = {}
    for features in ("blind", "degree"):
        for arm in ("layernorm", "postdeg"):
            own = [
                result.curve
                for result in results
                if result.config.cell == ("dismantling", features, *HEADLINE[1:]) and result.config.arm == arm
            ]
            if own:
                mean = tuple(sum(values) / len(own) for values in zip(*own, strict=True))
                curves[f"{ARMS[arm].title.split(',')[0]}, {FEATURE_TITLES[features]}"] = mean
    for reference in references:
        if reference.test_set == "same_size" and reference.curve:
            curves[reference.name] = reference.curve
    return curves
