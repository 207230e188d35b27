"""The command ``manifoldnorm select``: run, refs, falsify, report, evaluate, pick."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from manifoldnorm.gnn.benchmark import Failure, FarmSummary, run_farm
from manifoldnorm.gnn.benchmark_arms import ARMS
from manifoldnorm.gnn.benchmark_pick import (
    METHODS,
    Selection,
    describe,
    evaluate,
    load_policy,
    pick_by_method,
    pick_by_policy,
    selected_nodes,
)
from manifoldnorm.gnn.benchmark_plan import (
    BACKBONES,
    BLOCKS,
    FEATURES,
    OBJECTIVES,
    PRESETS,
    TASKS,
    Group,
    Plan,
    parse_seeds,
    parse_shard,
    preset_plan,
    shard,
)
from manifoldnorm.gnn.benchmark_references import stored_references
from manifoldnorm.gnn.benchmark_report import (
    Report,
    Table,
    build_report,
    falsifier_table,
    reference_table,
    write_report,
)
from manifoldnorm.gnn.benchmark_store import (
    BrokenLine,
    RunResult,
    read_manifest,
    read_results,
    result_files,
    write_manifest,
)
from manifoldnorm.gnn.graphs import Graph
from manifoldnorm.gnn.missing import require
from manifoldnorm.gnn.readers import read_graph

INTERRUPTED = 130


def add_select_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``select`` and its subcommands to a parser's ``subparsers``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "select", help="node selection on graphs: the PostDeg benchmark, and nodes of your own graph"
    )
    add_commands(parser)
    return parser


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands to ``parser``; each sets ``handler``, which returns the exit status."""
    commands = parser.add_subparsers(dest="select_command", required=True)
    _add_run(commands)
    for name, handler, text in (
        ("refs", _refs, "compute the classical references of a preset"),
        ("falsify", _falsify, "judge the falsifiers on finished runs, by the rules of protocol.md"),
        ("report", _report, "write tables, plots and the HTML page from finished runs (several folders: merged)"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        if name == "refs":
            command.add_argument("--preset", choices=list(PRESETS), default="smoke")
            command.add_argument("--task", choices=[*TASKS, "all"], default="all")
            command.add_argument("--out", type=Path, help="folder (default: runs/select-PRESET)")
        else:
            command.add_argument("folders", type=Path, nargs="+", help="folders that 'run' wrote")
        if name == "report":
            command.add_argument("--out", type=Path, help="folder for the report (default: the first folder)")
        command.set_defaults(handler=handler)
    _add_graph_command(commands, "evaluate", _evaluate, "measure nodes of your own graph, from any method")
    _add_graph_command(commands, "pick", _pick, "select nodes of your own graph")


def _add_run(commands: Any) -> None:
    text = "train and measure: all cells of the preset, or those that are named"
    run = commands.add_parser("run", help=text, description=text)
    run.add_argument("--preset", choices=list(PRESETS), default="smoke", help="size (default: smoke)")
    run.add_argument("--task", choices=[*TASKS, "all"], default="all")
    for option, choices, text in (
        ("--arms", tuple(ARMS), "compare these with LayerNorm (postdeg)"),
        ("--backbones", BACKBONES, "graph convolutions (gat)"),
        ("--features", FEATURES, "tracks besides blind and degree, which always run"),
        ("--objectives", OBJECTIVES, "what to train on (surrogate)"),
        ("--blocks", BLOCKS, "norm after the residual sum, or before the convolution (post)"),
    ):
        run.add_argument(option, nargs="+", choices=choices, metavar="NAME", help=f"{text}; of {', '.join(choices)}")
    run.add_argument("--seeds", help="e.g. 0-9 or 0,3,5 (default: the preset's)")
    run.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all processors)")
    run.add_argument("--shard", help="i/N for the i-th of N parts, or auto (SLURM array, RANK and WORLD_SIZE)")
    run.add_argument("--resume", action="store_true", help="go on with a folder that already holds runs")
    run.add_argument("--out", type=Path, help="folder (default: runs/select-PRESET)")
    run.add_argument("--keep-policies", action="store_true", help="save the trained policies, for 'pick'")
    run.add_argument("--dask", metavar="ADDRESS", help="send the runs to the workers of this Dask scheduler")
    run.set_defaults(handler=_run)


def _add_graph_command(commands: Any, name: str, handler: Any, text: str) -> None:
    command = commands.add_parser(name, help=text, description=text)
    command.add_argument("--graph", type=Path, required=True, help="edge list, .mtx, .gml, .graph/.metis, .dimacs/.col")
    command.add_argument("--directed", action="store_true", help="the file's edges have a direction")
    command.add_argument("--simplify", action="store_true", help="drop self-loops and repeated edges")
    command.add_argument("--task", choices=TASKS, required=name == "evaluate")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--probability", type=float, default=0.1, help="of activation (influence; default: 0.1)")
    if name == "evaluate":
        command.add_argument(
            "--nodes", type=Path, required=True, help="file with one node a line, as the graph's file names them"
        )
    else:
        source = command.add_mutually_exclusive_group()
        source.add_argument("--policy", type=Path, help="a policy from 'run --keep-policies'")
        names = sorted({method for methods in METHODS.values() for method in methods} | {"exact"})
        source.add_argument("--method", choices=names, help="a classical method (default: the task's first)")
        command.add_argument("-k", "--k", type=int, help="number of seeds (influence; default: 5 %% of the nodes)")
        command.add_argument("--time-limit", type=float, default=60.0, help="seconds for the exact method")
        command.add_argument("--out", type=Path, help="write the nodes here instead of to standard output")
    command.set_defaults(handler=handler)


# -- the benchmark


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Give the plan that the arguments of ``run`` ask for: the preset's, or the chosen cells with its settings."""
    tasks = TASKS if arguments.task == "all" else (arguments.task,)
    seeds = None if arguments.seeds is None else parse_seeds(arguments.seeds)
    plan = preset_plan(arguments.preset, seeds=seeds, tasks=tasks)
    choices = (
        arguments.arms, arguments.backbones, arguments.features, arguments.objectives, arguments.blocks
    )  # fmt: skip
    if not any(choices):
        return plan
    group = Group(
        arms=tuple(dict.fromkeys(("layernorm", *(arguments.arms or ("postdeg",))))),
        features=tuple(dict.fromkeys(("blind", "degree", *(arguments.features or ())))),
        backbones=tuple(arguments.backbones or ("gat",)),
        blocks=tuple(arguments.blocks or ("post",)),
        objectives=tuple(arguments.objectives or ("surrogate",)),
    )
    return Plan((group,), plan.settings, plan.seeds, plan.tasks)


def _run(arguments: argparse.Namespace) -> int:
    plan = plan_of(arguments)
    if arguments.jobs < 1:
        raise ValueError(f"--jobs must be at least 1; got {arguments.jobs}")
    configs = plan.configs()
    file_name = "runs.jsonl"
    if arguments.shard is not None:
        index, count = parse_shard(arguments.shard)
        configs = shard(configs, index, count)
        file_name = f"runs-{index}-of-{count}.jsonl"
    folder = arguments.out or Path("runs") / f"select-{arguments.preset}"
    # Shards that share a folder find the manifest that the first of them wrote.
    write_manifest(folder, plan, resume=arguments.resume or arguments.shard is not None)
    with _Progress(len(configs)) as progress:
        summary = run_farm(
            configs,
            folder,
            jobs=arguments.jobs,
            file_name=file_name,
            keep_policies=arguments.keep_policies,
            dask_scheduler=arguments.dask,
            on_result=progress.advance,
            on_start=progress.start,
        )
    _say_summary(summary, folder)
    if summary.interrupted:
        return INTERRUPTED
    if arguments.shard is None:
        _print_report(*_load_report([folder]), folder)
    return 0 if summary.complete else 1


def _say_summary(summary: FarmSummary, folder: Path) -> None:
    for line in summary.broken_lines:
        _say(f"warning: {line}")
    for failure in summary.failures:
        _say(f"failed: {failure.config}: {failure.error}")
    if summary.failures:
        _say(f"{len(summary.failures)} runs failed; their tracebacks are in {folder / 'failures.jsonl'}")
    if summary.lost_workers:
        _say(f"a worker process died {summary.lost_workers} times (out of memory?); its runs were done again")
    done = summary.found + summary.done
    _say(f"{done} of {summary.planned} runs are done ({summary.found} were before), in {folder}")
    if summary.interrupted:
        _say("interrupted: the same command with --resume goes on")


def _refs(arguments: argparse.Namespace) -> int:
    tasks = TASKS if arguments.task == "all" else (arguments.task,)
    folder = arguments.out or Path("runs") / f"select-{arguments.preset}"
    _print_table(reference_table(stored_references(folder, PRESETS[arguments.preset].settings, tasks)))
    return 0


def _falsify(arguments: argparse.Namespace) -> int:
    report, broken = _load_report(arguments.folders)
    _warn(broken)
    _print_table(falsifier_table(report.judgements))
    return 0


def _report(arguments: argparse.Namespace) -> int:
    report, broken = _load_report(arguments.folders)
    _warn(broken)
    _print_report(report, broken, arguments.out or arguments.folders[0])
    return 0


def _load_report(folders: Sequence[Path]) -> tuple[Report, list[BrokenLine]]:
    plans = [read_manifest(folder) for folder in folders]
    planned = list(dict.fromkeys(config for plan in plans for config in plan.configs()))
    results, broken = read_results(result_files(folders))
    wanted = set(planned)
    results = [result for result in results if result.config in wanted]
    tasks = tuple(task for task in TASKS if any(task in plan.tasks for plan in plans))
    references = stored_references(folders[0], plans[0].settings, tasks)
    return build_report(results, references, planned), broken


def _print_report(report: Report, broken: list[BrokenLine], folder: Path) -> None:
    written = write_report(report, folder, broken)
    tables = report.tables()
    for table in (tables[0], tables[-1]):
        _print_table(table)
    if report.missing:
        _say(f"{len(report.missing)} of {report.planned} planned runs are missing; report.html lists them")
    _say("wrote " + ", ".join(str(path) for path in written))


class _Progress:
    """A progress bar on standard error, or a line now and then where that is no terminal."""

    def __init__(self, total: int) -> None:
        progress = require("rich.progress")
        self._console = require("rich.console").Console(stderr=True)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._total = total
        self._done = 0
        self._task = self._bar.add_task("runs", total=total)

    def __enter__(self) -> "_Progress":
        self._bar.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._bar.stop()

    def start(self, found: int) -> None:
        """Begin after the runs that are on disk already."""
        self._done = found
        self._bar.update(self._task, completed=found)

    def advance(self, outcome: RunResult | Failure) -> None:
        """Count a run."""
        self._done += 1
        self._bar.update(self._task, completed=self._done)
        if isinstance(outcome, Failure):
            self._console.print(f"failed: {outcome.config}: {outcome.error}", markup=False)
        elif not self._console.is_terminal and self._done % 50 == 0:
            self._console.print(f"{self._done} of {self._total} runs", markup=False)


# -- a user's own graph


def _pick(arguments: argparse.Namespace) -> int:
    graph = _read(arguments)
    if arguments.policy is not None:
        policy = load_policy(arguments.policy)
        if arguments.task not in (None, policy.config.task):
            raise ValueError(f"the policy was trained for {policy.config.task}, not for {arguments.task}")
        selection = pick_by_policy(policy, graph, k=arguments.k, seed=arguments.seed, probability=arguments.probability)
    else:
        if arguments.task is None:
            raise ValueError(f"--task is needed without --policy: one of {', '.join(TASKS)}")
        selection = pick_by_method(
            arguments.task,
            graph,
            method=arguments.method,
            k=arguments.k,
            seed=arguments.seed,
            probability=arguments.probability,
            time_limit=arguments.time_limit,
        )
    return _give(selection, graph, arguments.out)


def _give(selection: Selection, graph: Graph, out: Path | None) -> int:
    _say(describe(selection, graph))
    text = "".join(f"{graph.label_of(node)}\n" for node in selected_nodes(selection).tolist())
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text)
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    graph = _read(arguments)
    position = {str(graph.label_of(node)): node for node in range(graph.num_nodes)}
    nodes = []
    for number, line in enumerate(arguments.nodes.read_text().splitlines(), 1):
        name = line.strip()
        if not name:
            continue
        if name not in position:
            raise ValueError(f"{arguments.nodes}, line {number}: the graph has no node {name!r}")
        nodes.append(position[name])
    selection = evaluate(arguments.task, graph, nodes, seed=arguments.seed, probability=arguments.probability)
    print(describe(selection, graph))
    return 0


def _read(arguments: argparse.Namespace) -> Graph:
    return read_graph(arguments.graph, directed=arguments.directed, simplify=arguments.simplify)


# -- output


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _warn(broken: list[BrokenLine]) -> None:
    for line in broken:
        _say(f"warning: {line}")


def _print_table(table: Table) -> None:
    rich_table = require("rich.table").Table(
        title=table.title, caption=table.note or None, title_justify="left", caption_justify="left"
    )
    for name in table.header:
        rich_table.add_column(require("rich.markup").escape(name))
    for row in table.rows:
        rich_table.add_row(*(require("rich.markup").escape(cell) for cell in row))
    console = require("rich.console").Console()
    if not console.is_terminal:
        # A table in a log or a file should not be folded to 80 columns.
        console = require("rich.console").Console(width=200)
    console.print(rich_table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``select`` on its own; errors that a user can mend are one line and status 2."""
    parser = argparse.ArgumentParser(prog="manifoldnorm select", description=__doc__)
    add_commands(parser)
    parsed = parser.parse_args(arguments)
    try:
        return int(parsed.handler(parsed))
    except (ValueError, OSError, ImportError) as error:
        _say(f"error: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
