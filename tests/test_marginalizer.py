"""Questions to a marginalizer: one at a time, in tables, and what is refused."""

import warnings

import numpy as np
import pandas as pd
import pytest

import unimarg as um
from models import ASIA, random_model
from unimarg import EvidenceError, Network, UsageError, Variable
from unimarg.masking import observable

NET = Network(
    [Variable("a", ("no", "yes")), Variable("b", ("NA", "None", "x")), Variable("one", ("only",)), Variable("c", ("0", "1", "2", "3"))],
    {"b": ["a"], "c": ["b"]},
    {"a": [0.6, 0.4], "b": [[0.2, 0.3, 0.5], [0.6, 0.2, 0.2]], "one": [1.0], "c": np.full((3, 4), 0.25)},
)


@pytest.fixture(scope="module")
def model():
    return random_model(NET)


def test_observed_nodes_come_back_as_observed(model):
    post = model.query({"b": "None", "a": "yes", "c": 3}, None, "um")
    assert post["b"] == {"NA": 0, "None": 1, "x": 0}
    assert post["a"] == {"no": 0, "yes": 1}
    assert post["c"]["3"] == 1
    assert post["one"] == {"only": 1}
    free = model.query(None, None, "um")
    assert [v.name for v in free.variables] == list(NET.names)
    for p in free.probabilities:
        assert p.sum() == pytest.approx(1, abs=1e-6)
    assert all((p > 0).all() for p in free.probabilities)
    assert free.method == "um"
    assert np.isnan(free.log_evidence)


def test_evidence_matters_and_targets_choose(model):
    one, other = model.query({"a": "no"}, ["c", "b"], "um"), model.query({"a": "yes"}, ["c", "b"], "um")
    assert [v.name for v in one.variables] == ["c", "b"]
    assert one["c"] != other["c"]
    assert one["c"] == model.query({"a": 0}, None, "um")["c"]


def test_exact_is_exact(model):
    assert model.query({"b": "x"}, ["a"], method="exact")["a"] == pytest.approx(um.exact(NET, {"b": "x"}, ["a"])["a"])


def test_virtual_evidence(model):
    soft = model.query({"a": [0.2, 0.6]}, None, "um")
    assert soft["a"] not in ({"no": 0, "yes": 1}, {"no": 1, "yes": 0})  # a likelihood is not certain
    assert (
        soft["c"] == model.query({"a": {"no": 0.1, "yes": 0.3}}, None, "um")["c"] == model.query({"a": [1, 3]}, None, "um")["c"]
    )  # only ratios count
    assert soft["c"] != model.query({"a": [0.6, 0.2]}, None, "um")["c"]
    assert soft["c"] != model.query(None, None, "um")["c"]
    assert model.query({"a": [0, 0.5]}, None, "um")["a"] == {"no": 0, "yes": 1}  # one state left
    assert model.query({"b": [0, 1, 1]}, None, "um")["b"]["NA"] == 0  # what a likelihood rules out
    for flat in ({"b": [1, 1, 1]}, {"b": [0.3, 0.3, 0.3], "c": [1, 1, 1, 1]}):  # says nothing
        assert dict(model.query(flat, None, "um")) == dict(model.query(None, None, "um"))


def frame(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(rows)
    states = um.sample(NET, max(rows, 1), seed=rows)[:rows]
    columns = {v.name: np.array(v.states, dtype=object)[states[:, i]] for i, v in enumerate(NET.variables)}
    return pd.DataFrame(columns, dtype=object).where(rng.random((rows, len(NET))) < 0.5, None)


@pytest.mark.parametrize("rows", [0, 1, 2, 63, 64, 65, 5000])
def test_a_table_is_its_rows(model, rows):
    table = frame(rows).rename(lambda i: f"row {i}")
    answer = model.predict_proba(table)
    assert answer.shape == (rows, 10)
    assert list(answer.index) == list(table.index)
    assert answer.columns.names == ["variable", "state"]
    assert list(answer.columns) == [(v.name, s) for v in NET.variables for s in v.states]
    for r in sorted({0, 1, rows // 2, rows - 1} & set(range(rows))):
        post = model.query({name: value for name, value in table.iloc[r].items() if value is not None}, method="um")
        np.testing.assert_allclose(answer.iloc[r], np.concatenate(post.probabilities), atol=2e-6)
        for name, value in table.iloc[r].items():
            if value is not None:
                assert answer.iloc[r][(name, value)] == 1
    if rows:
        assert (answer.T.groupby(level="variable").sum() - 1).abs().to_numpy().max() < 1e-5


def test_labels_that_look_like_nothing(model):
    answer = model.predict_proba(pd.DataFrame({"b": ["NA", "None", None, np.nan]}))
    assert answer["b"].iloc[:2].to_numpy().tolist() == [[1, 0, 0], [0, 1, 0]]
    assert (answer["b"].iloc[2] == answer["b"].iloc[3]).all()
    assert (answer["b"].iloc[2] < 1).all()


def test_the_order_of_columns_does_not_matter(model):
    table = frame(20)
    assert model.predict_proba(table).equals(model.predict_proba(table[["c", "one", "b", "a"]]))


def test_embeddings(model):
    assert model.embed({"a": "yes"}).shape == model.embed(None).shape == model.embed({}).shape == (16,)
    both = model.embed([{"a": "yes"}, {}])
    assert both.shape == (2, 16)
    np.testing.assert_allclose(both[0], model.embed({"a": "yes"}), atol=1e-6)
    assert (both[0] != both[1]).any()
    assert model.embed(iter([])).shape == (0, 16)
    assert random_model(NET, preset="small", hidden=(8, 8)).embed([{}] * 70).shape == (70, 8)


@pytest.mark.parametrize(
    ("question", "error"),
    [
        (lambda m: m.query(method="umm"), "did you mean 'um'"),
        (lambda m: m.query(targets=["bb"]), "no variable 'bb'"),
        (lambda m: m.query({"bb": 1}), "no variable 'bb'"),
        (lambda m: m.query({"a": "maybe"}), "no state 'maybe'"),
        (lambda m: m.query({"a": [0, 0]}), "zero for every state"),
        (lambda m: m.query([("a", 1)]), "must be a mapping"),
        (lambda m: m.embed([{"a": "maybe"}]), "no state 'maybe'"),
        (lambda m: m.predict_proba(pd.DataFrame({"bb": [1]})), "no variable"),
        (lambda m: m.predict_proba(pd.DataFrame({"a": [7]})), "no state '7'"),
        (lambda m: m.predict_proba(pd.DataFrame([["no"]], columns=pd.MultiIndex.from_tuples([("a", "no")]))), "no variable"),
        (lambda m: m.marginals_of_states(np.array([[2, 0, 0, 0]])), "state"),
        (lambda m: m.marginals_of_states(np.array([[0, 0, 0]])), "nodes"),
    ],
)
def test_mistakes(model, question, error):
    with pytest.raises((UsageError, EvidenceError), match=error):
        question(model)


def test_a_network_of_certainties():
    net = Network([Variable("a", ("x",)), Variable("b", ("y",))], {"b": ["a"]}, {"a": [1.0], "b": [[1.0]]})
    assert random_model(net).query({"a": "x"})["b"] == {"y": 1}


def test_it_says_what_it_is(model):
    assert "preset 'paper'" in repr(model)
    assert "5 steps" in repr(model)


def test_predict_is_the_most_probable_state_of_each(model):
    table = pd.DataFrame({"a": ["yes", None], "c": [None, "3"]}, index=["x", "y"])
    proba, labels = model.predict_proba(table), model.predict(table)
    assert list(labels.columns) == list(NET.names)
    assert list(labels.index) == ["x", "y"]
    for name in NET.names:
        assert list(labels[name]) == list(proba[name].idxmax(axis=1))
    assert (labels.loc["x", "a"], labels.loc["y", "c"]) == ("yes", "3")
    assert list(model.predict(table, ["c", "a"]).columns) == ["c", "a"]
    assert model.predict_proba(table, ["c", "a"]).equals(proba[["c", "a"]])
    for call in (model.predict, model.predict_proba):
        with pytest.raises(UsageError, match="list of names"):
            call(table, "c")
        with pytest.raises(UsageError, match="no variable 'z'"):
            call(table, ["z"])


@pytest.mark.parametrize("table", [{"a": ["yes"]}, [1, 2], None, np.zeros((2, 3))])
def test_what_is_no_table(model, table):
    with pytest.raises(UsageError, match="a table of evidence is a pandas DataFrame"):
        model.predict_proba(table)


def test_evidence_of_an_embedding_that_is_none(model):
    with pytest.raises(EvidenceError, match="must be a mapping from variable to state, not int"):
        model.embed(5)  # pyright: ignore[reportArgumentType]


def test_a_list_of_evidence_sets_is_one_pass(model):
    sets = [{"a": "yes"}, {}, {"a": [0.2, 0.6]}]
    for found, evidence in zip(model.query(sets, ["c", "b"], "um"), sets, strict=True):
        alone = model.query(evidence, ["c", "b"], "um")
        np.testing.assert_allclose(np.concatenate(found.probabilities), np.concatenate(alone.probabilities), atol=1e-6)
        assert (found.method, found.status, list(found)) == ("um", "ok", ["c", "b"])
    assert model.query([], method="um") == []


def test_a_finding_that_training_never_showed_is_said():
    model = random_model(ASIA, mask=observable(ASIA, ["dysp", "smoke"]))
    rows = pd.DataFrame({"dysp": ["yes", "no", None], "xray": ["yes", None, None], "lung": ["no", None, "no"]})
    for ask in (model.predict_proba, model.predict):
        with pytest.warns(UserWarning, match="2 rows are not to be trusted: training never showed a finding on 'lung', 'xray'") as told:
            ask(rows)
        assert [w.filename for w in told] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ask(rows[["dysp"]])
    hard, virtual, known = model.query([{"xray": "yes", "dysp": "yes"}, {"xray": [0.3, 0.9]}, {"dysp": "yes"}], method="um")
    for post in (hard, virtual, model.query({"xray": "yes"}, method="um")):
        assert "training never showed a finding on 'xray', use another method" in post.message
    assert "never showed" not in known.message
    assert "never showed" not in model.query({"xray": "yes"}).message  # exact
