"""`manifoldnorm select` as a user meets it: a run, a resume, a report, nodes of a graph file, and clear errors."""

import argparse
from pathlib import Path

import pytest

from manifoldnorm.gnn import cli
from manifoldnorm.gnn.benchmark_pick import (
    METHODS,
    Policy,
    load_policy,
    pick_by_method,
    pick_by_policy,
    save_policy,
    score_nodes,
)
from manifoldnorm.gnn.benchmark_plan import PRESETS, TASKS, Preset
from manifoldnorm.gnn.benchmark_training import build_policy
from manifoldnorm.gnn.graphs import Graph
from tests.gnn.tiny_runs import TINY, tiny_plan

CYCLE = "a b\nb c\nc d\nd e\ne a\n"


@pytest.fixture
def tiny_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "smoke", Preset(tiny_plan().groups, 1, TINY))


@pytest.fixture
def cycle(tmp_path: Path) -> Path:
    path = tmp_path / "cycle.txt"
    path.write_text(CYCLE)
    return path


def test_run_resume_report_falsify_and_refs(
    tmp_path: Path, tiny_preset: None, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["run", "--preset", "smoke", "--task", "independent_set", "--jobs", "1", "--out", str(out)]
    assert cli.main([*command, "--keep-policies"]) == 0
    assert "2 of 2 runs are done" in capsys.readouterr().err
    assert (out / "report.html").exists()
    assert len(list((out / "policies").glob("*.pt"))) == 2

    assert cli.main(command) == 2
    assert "--resume" in capsys.readouterr().err

    # A line cut off in the middle: named, and that run is done again.
    text, page = (out / "runs.jsonl").read_text(), (out / "report.html").read_bytes()
    (out / "runs.jsonl").write_text(text[:-100])
    assert cli.main([*command, "--resume"]) == 0
    errors = capsys.readouterr().err
    assert "line 2: cut off" in errors
    assert "2 of 2 runs are done (1 were before)" in errors
    assert (out / "report.html").read_bytes() == page

    assert cli.main(["report", str(out), "--out", str(tmp_path / "elsewhere")]) == 0
    assert (tmp_path / "elsewhere" / "table.md").exists()
    assert cli.main(["falsify", str(out)]) == 0
    assert "not testable" in capsys.readouterr().out
    assert cli.main(["refs", "--preset", "smoke", "--task", "independent_set", "--out", str(out)]) == 0
    assert "minimum-degree greedy" in capsys.readouterr().out


def test_shards_share_a_folder(tmp_path: Path, tiny_preset: None) -> None:
    command = ["run", "--task", "dismantling", "--jobs", "1", "--out", str(tmp_path)]
    assert cli.main([*command, "--shard", "1/2"]) == 0
    assert cli.main([*command, "--shard", "2/2"]) == 0
    assert sorted(path.name for path in tmp_path.glob("runs*")) == ["runs-1-of-2.jsonl", "runs-2-of-2.jsonl"]
    assert cli.main(["report", str(tmp_path)]) == 0


def test_chosen_cells_get_a_baseline_and_both_tracks() -> None:
    parser = argparse.ArgumentParser()
    cli.add_select_parser(parser.add_subparsers())
    chosen = parser.parse_args(["select", "run", "--arms", "pre", "--features", "constant", "--seeds", "3"])
    configs = cli.plan_of(chosen).configs()
    assert {config.arm for config in configs} == {"layernorm", "pre"}
    assert {config.features for config in configs} == {"blind", "degree", "constant"}
    assert {config.seed for config in configs} == {3}


@pytest.mark.parametrize("task", TASKS)
def test_pick_then_evaluate(task: str, cycle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = tmp_path / "nodes.txt"
    assert cli.main(["pick", "--graph", str(cycle), "--task", task, "--out", str(nodes)]) == 0
    picked = capsys.readouterr().err
    assert set(nodes.read_text().split()) <= set("abcde")
    assert cli.main(["evaluate", "--graph", str(cycle), "--task", task, "--nodes", str(nodes)]) == 0
    measured = capsys.readouterr().out
    if task != "influence":
        assert measured.split(",")[0].strip() == picked.split(",")[0].strip()


def test_pick_prints_nodes_alone(cycle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pick", "--graph", str(cycle), "--task", "independent_set", "--method", "exact"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.split()) == 2
    assert "proved largest" in captured.err


@pytest.mark.parametrize("task", TASKS)
def test_a_saved_policy_picks_as_before(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dataclasses import replace

    graph = Graph.from_edges(12, [(i, (i + 1) % 12) for i in range(12)] + [(0, 6)])
    for arm, features in (("postdeg", "blind"), ("head_degree", "structure"), ("random", "degree")):
        config = replace(TINY, task=task, arm=arm, features=features)
        path = tmp_path / f"{arm}.pt"
        save_policy(build_policy(config), config, path)
        policy = load_policy(path)
        assert policy.config == config
        first, second = (pick_by_policy(policy, graph, k=2 if task == "influence" else None) for _ in range(2))
        assert first.nodes.tolist() == second.nodes.tolist() if task != "dismantling" else True
    file = tmp_path / "ring.txt"
    file.write_text("".join(f"{i} {(i + 1) % 12}\n" for i in range(12)))
    assert cli.main(["pick", "--graph", str(file), "--policy", str(path)]) == 0
    other = next(name for name in TASKS if name != task)
    assert cli.main(["pick", "--graph", str(file), "--policy", str(path), "--task", other]) == 2
    assert f"trained for {task}" in capsys.readouterr().err


def test_directed_graphs_are_scored_by_what_a_node_reaches() -> None:
    from dataclasses import replace

    config = replace(TINY, task="influence", arm="postdeg")
    policy = Policy(build_policy(config), config)
    edges = [(0, 1), (0, 2), (0, 3), (1, 2)]
    both = Graph.from_edges(4, edges + [(v, u) for u, v in edges], directed=True)
    expected = score_nodes(policy, Graph.from_edges(4, edges))
    assert score_nodes(policy, both) == pytest.approx(expected, abs=1e-6)
    hub = score_nodes(policy, Graph.from_edges(4, [(0, 1), (0, 2), (0, 3)], directed=True))
    silent = score_nodes(policy, Graph.from_edges(4, [(1, 0), (2, 0), (3, 0)], directed=True))
    # A node that reaches nothing is scored as an isolated one; a node that nothing reaches need not be.
    alone = score_nodes(policy, Graph.from_edges(4, [], directed=True))
    assert silent[0] == pytest.approx(alone[0], abs=1e-6)
    assert hub[0] != pytest.approx(alone[0], abs=1e-6)


@pytest.mark.parametrize("task", TASKS)
def test_every_method_of_every_task(task: str) -> None:
    graph = Graph.from_edges(12, [(i, (i + 1) % 12) for i in range(12)])
    for method in METHODS[task]:
        pick_by_method(task, graph, method=method, k=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "influence", "-k", "9"], "k must lie in 1..5"),
        (["--task", "influence", "--method", "exact"], "method must be one of"),
        (["--task", "independent_set", "--directed"], "undirected"),
        (["--task", "dismantling", "--directed"], "undirected"),
        ([], "--task is needed"),
        (["--policy", "nowhere.pt"], "nowhere.pt"),
    ],
)
def test_errors_are_one_clear_line(
    cycle: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.main(["pick", "--graph", str(cycle), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_wrong_files_are_named(tmp_path: Path, cycle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.mtx"
    broken.write_text("this is no matrix\n")
    assert cli.main(["pick", "--graph", str(broken), "--task", "influence"]) == 2
    assert "broken.mtx" in capsys.readouterr().err
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("a\nz\n")
    assert cli.main(["evaluate", "--graph", str(cycle), "--task", "independent_set", "--nodes", str(nodes)]) == 2
    assert "line 2: the graph has no node 'z'" in capsys.readouterr().err
    nodes.write_text("a\nb\n")
    assert cli.main(["evaluate", "--graph", str(cycle), "--task", "independent_set", "--nodes", str(nodes)]) == 2
    assert "joined by an edge" in capsys.readouterr().err
    assert cli.main(["pick", "--graph", str(cycle), "--policy", str(nodes)]) == 2
    assert "no policy saved by" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "holds no benchmark" in capsys.readouterr().err
