"""Exact answers of many rows by one program: against exact inference row by row."""

import gc
import time

import numpy as np
import pandas as pd
import pytest

import unimarg as um
from networks import random_network
from test_score import frame
from unimarg import Network, NoisyOr, Variable, exact_together
from unimarg.exact_together import exact_table, worthwhile
from unimarg.formats.interop import as_network
from unimarg.tables import given

ASIA = um.example("asia")


def rows_of(net: Network, count: int, seed: int, shown: float = 0.4) -> np.ndarray:
    """Findings of samples."""
    states = um.sample(net, count, seed=seed).astype(int)
    states[np.random.default_rng(seed).random(states.shape) >= shown] = -1
    return states


def check(net: Network, states: np.ndarray, targets: list[int], observed: list[int]) -> None:
    """Every row has the answer that it has alone, to the last digits of float64."""
    table = exact_table(net, observed, targets)
    assert table is not None
    found = table.answers(states)
    assert found.reached.all()
    for row, p, log_p in zip(states, found.probabilities, found.log_p, strict=True):
        alone = um.exact(net, given(net, row), [net.names[t] for t in targets])
        np.testing.assert_allclose(p, np.concatenate(alone.probabilities), atol=1e-12)
        assert log_p == pytest.approx(alone.log_evidence, abs=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_equals_exact_inference(seed):
    net = random_network(seed, 9, most=20_000)
    check(net, rows_of(net, 40, seed), list(range(len(net))), list(range(len(net))))


def test_only_what_lies_above_is_taken_along():
    """Targets in the order asked for; findings on some columns only."""
    net, nodes = ASIA, [ASIA.index["lung"], ASIA.index["smoke"]]
    observed = [ASIA.index["xray"]]
    states = np.full((5, len(net)), -1)
    states[:, observed[0]] = [0, 1, -1, 0, 1]
    check(net, states, nodes, observed)
    table = exact_table(net, observed, nodes)
    assert table is not None
    assert len(table.nodes) < len(net)


def test_more_rows_than_a_call(monkeypatch):
    monkeypatch.setattr(exact_together, "CALL", 32)
    monkeypatch.setattr(exact_together, "PART", (8, 32, 1 << 18))
    net = random_network(7, 6)
    for count in (0, 1, 32, 33, 70):
        check(net, rows_of(net, max(count, 1), count)[:count], list(range(6)), list(range(6)))
        gc.collect()


def test_rows_out_of_reach_and_impossible_ones_are_not_answered():
    """Sixty findings of 1e-6 each are below what float64 reaches, and a contradiction has no answer at all."""
    names = [f"f{i}" for i in range(60)]
    variables = [Variable(name) for name in ("cause", *names)]
    tables = {"cause": [0.5, 0.5]} | {name: [[1 - 1e-6, 1e-6], [1 - 3e-6, 3e-6]] for name in names}
    net = Network(variables, {name: ["cause"] for name in names}, tables)
    states = np.full((3, 61), -1)
    states[0, 1:] = 1
    states[1, 1:40] = 1
    table = exact_table(net, range(61), [0])
    assert table is not None
    found = table.answers(states)
    assert found.reached.tolist() == [False, True, True]
    assert found.probabilities[1, 0] == pytest.approx(1 / (1 + 3.0**39), rel=1e-9)
    contradiction = np.full((1, len(ASIA)), -1)
    contradiction[0, [ASIA.index["either"], ASIA.index["lung"]]] = [ASIA.variables[ASIA.index[n]].states.index(s) for n, s in NEVER.items()]
    table = exact_table(ASIA, range(8), [ASIA.index["tub"]])
    assert table is not None
    assert not table.answers(contradiction).reached[0]


NEVER = {"either": "no", "lung": "yes"}


def test_large_cliques_and_many_parents_have_no_table():
    names = [f"d{i}" for i in range(25)]
    net = Network([Variable(n) for n in (*names, "s")], {"s": names}, {n: [0.9, 0.1] for n in names} | {"s": NoisyOr(0.1, [0.5] * 25)})
    assert exact_table(net, [25], [0]) is None
    assert exact_table(net, [0], [1]) is not None  # of which s is no part


def test_a_table_is_made_once_and_goes_with_its_network():
    net = random_network(3, 5)
    table = exact_table(net, [0], [1, 2])
    assert exact_table(net, [0], [1, 2]) is table
    assert exact_table(net, [0], [2, 1]) is not table
    assert exact_table(net, [0], [1, 2]) is table
    assert exact_table(net, [], [1, 2]) is table  # whose nodes are among its own
    for target in range(5):
        exact_table(net, [0], [target])
    key = id(net)
    assert len(exact_together._kept[key]) == exact_together.KEPT
    del net, table
    gc.collect()
    assert key not in exact_together._kept


def quick_to_compile(monkeypatch, many: int) -> None:
    """So many rows are worth a program."""
    monkeypatch.setattr(exact_together, "MANY", many)
    monkeypatch.setattr("unimarg.inference.LOOKED_AT", many)
    monkeypatch.setattr(exact_together, "A_CLIQUE", 0.0)
    exact_together._kept.clear()


def test_a_program_is_for_rows_that_one_by_one_take_longer():
    """Few that differ, or most of what there is observed: one by one; a program that is there costs nothing more."""
    net = um.example("alarm")
    rows, every = rows_of(net, 3000, 1, shown=0.2), range(len(net))
    assert worthwhile(net, rows[:250], every, every) is None
    assert worthwhile(net, np.repeat(rows[:30], 100, axis=0), every, every) is None
    assert worthwhile(net, rows_of(net, 800, 2, shown=0.98), every, every) is None
    assert worthwhile(net, rows[:100], every, every, share=0.02) is not None
    table = worthwhile(net, rows, every, every)
    assert table is not None
    assert worthwhile(net, rows[:50], every, every) is None
    table.answers(rows[:10])
    assert worthwhile(net, rows[:50], every, every) is table
    assert worthwhile(net, rows[:50], every, every, share=1.0) is None  # who resumes must decide the same


def test_nothing_asked_and_nothing_known():
    assert exact_table(ASIA, [], []) is None
    found = um.infer(ASIA, [{}] * 400, [])
    assert len(found) == 400
    assert found[0].probabilities == ()
    assert um.infer(ASIA, [{"xray": {"yes": 0.9, "no": 0.2}}] * 400, [])[399].log_evidence == pytest.approx(np.log(0.2 + 0.7 * 0.11029004))


def test_findings_that_alternate_need_one_program():
    net = um.example("alarm")
    one, other, targets = net.index["EXPCO2"], net.index["BP"], [net.index["HR"]]
    exact_table(net, [one], targets)
    both = exact_table(net, [other], targets)
    assert exact_table(net, [one], targets) is both
    assert exact_table(net, [other], targets) is both


def test_an_interruption_waits_for_no_call(monkeypatch):
    """Nor for calls that have not begun."""
    table = exact_table(ASIA, range(8), [0])
    assert table is not None
    begun: list[int] = []

    def slow(states):
        begun.append(len(states))
        if len(begun) == 1:
            raise KeyboardInterrupt
        time.sleep(0.2)
        return np.zeros((len(states), 4))

    monkeypatch.setattr(table, "_call", slow)
    start = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        table.answers(np.full((50 * table.rows, 8), -1))
    assert time.perf_counter() - start < 2
    assert len(begun) < 10


@pytest.mark.parametrize("method", ["auto", "exact"])
def test_a_long_list_is_answered_together(monkeypatch, method):
    """What one program cannot answer, and uncertain findings, get the answers that they have alone."""
    sets = [{"dysp": "yes"}, NEVER, {"xray": {"yes": 0.9, "no": 0.2}}, {"smoke": "no", "dysp": "yes"}, {}]
    alone = um.infer(ASIA, sets, ["lung", "tub"], method)
    quick_to_compile(monkeypatch, many=4)
    calls: list[int] = []
    answers = exact_together.ExactTable.answers
    monkeypatch.setattr(exact_together.ExactTable, "answers", lambda self, states: calls.append(len(states)) or answers(self, states))
    found = um.infer(ASIA, sets, ["lung", "tub"], method)
    assert calls == [4]
    for one, other in zip(found, alone, strict=True):
        assert (one.status, one.message, list(one)) == (other.status, other.message, list(other))
        np.testing.assert_allclose(np.concatenate(one.probabilities), np.concatenate(other.probabilities), atol=1e-12)
        np.testing.assert_allclose(one.log_evidence, other.log_evidence, atol=1e-12)
    um.infer(ASIA, sets[:3], ["lung"], method)
    um.infer(ASIA, [sets[2]] * 5 + sets[:1], ["lung"], method)  # of uncertain findings there are none together
    if method == "exact":
        um.infer(ASIA, sets, ["lung"], method, memory=1e6)  # a budget is kept to, one by one
    assert calls == [4]


@pytest.mark.parametrize("method", ["auto", "exact"])
def test_a_table_is_scored_together(tmp_path, monkeypatch, method):
    """As row by row, with bad and impossible rows set aside."""
    rows = frame(300, seed=5)
    rows.loc[17, ["either", "lung"]] = ["no", "yes"]
    rows.loc[40, "smoke"] = "perhaps"
    rows.to_csv(tmp_path / "rows.csv", index=False)
    files = tmp_path / "rows.csv", tmp_path / "alone.csv", ["lung", "dysp"]
    one = um.score(ASIA, *files, method=method, errors=tmp_path / "alone_bad.csv")
    quick_to_compile(monkeypatch, many=20)
    for limit in ("FEWEST", "MOST"):
        monkeypatch.setattr(f"unimarg.bulk.scoring.{limit}", 128)  # rows of a batch: the last one is short
    monkeypatch.setattr("unimarg.bulk.scoring._Answers._one", _only_row_17(monkeypatch))
    two = um.score(ASIA, files[0], tmp_path / "together.csv", files[2], method=method, errors=tmp_path / "together_bad.csv")
    assert (one.rows, one.bad) == (two.rows, two.bad) == (300, 2)
    assert (tmp_path / "alone_bad.csv").read_text() == (tmp_path / "together_bad.csv").read_text()
    alone, together = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("alone", "together"))
    assert (together[["method", "status"]] == ["exact", "ok"]).all().all()
    assert (together["largest_error"] == 0).all()
    pd.testing.assert_frame_equal(alone, together, rtol=1e-5, check_exact=False)


def _only_row_17(monkeypatch):
    from unimarg.bulk import scoring

    one = scoring._Answers._one

    def checked(self, row):
        assert NEVER.items() <= given(self.net, row).items()
        return one(self, row)

    return checked


def test_networks_of_others_are_taken(tmp_path):
    assert exact_table(as_network(um.to_pyagrum(ASIA)), range(8), [0]) is not None
