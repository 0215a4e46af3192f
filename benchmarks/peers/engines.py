"""The contestants: one class for each library, each building the network in its own terms and answering about all variables.

A class has ``methods``, of each how it is to be asked: ``exact`` (one answer, no error), ``fixed`` (one answer at its own pace) or
``sampling`` (draws for as many seconds as it is given). ``answer`` returns the marginals of all variables side by side
``[states]`` and the samples drawn. ``rows`` (many evidence sets in one call), ``sample`` and ``load`` are None where a library
has no such thing. Libraries are imported in ``__init__`` alone: each runs in a process, perhaps an environment, of its own.
"""

from __future__ import annotations

import importlib
import logging
import time
import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from unimarg.errors import NetworkError
from unimarg.formats.interop import import_quietly, to_pgmpy, to_pyagrum
from unimarg.network import Network, NoisyMax

LOOPY = 1.0  # seconds for loopy belief propagation, which need not converge
Answer = tuple[np.ndarray, float]  # marginals [states], samples (0 where there are none)


def certain(net: Network, row: np.ndarray) -> list[np.ndarray | None]:
    """The marginals that evidence fixes."""
    return [np.eye(card)[k] if k >= 0 else None for card, k in zip(net.cards, row, strict=True)]


def labels(net: Network, row: np.ndarray) -> dict[str, str]:
    return {net.names[i]: net.variables[i].states[k] for i, k in enumerate(row) if k >= 0}


class Engine(ABC):
    """What all have in common. ``seconds`` of training are for methods that learn."""

    module: str  # what is imported before anything can be asked
    methods: ClassVar[dict[str, str]]
    rows: Any = None
    sample: Any = None
    load: Any = None

    @abstractmethod
    def __init__(self, method: str, net: Network, model: str, training: float): ...

    @abstractmethod
    def answer(self, row: np.ndarray, seconds: float) -> Answer: ...


class Unimarg(Engine):
    module = "unimarg.inference"
    methods: ClassVar = {"exact": "exact", "auto": "fixed", "um": "fixed", "lookahead": "sampling", "adaptive": "sampling"}

    def __init__(self, method: str, net: Network, model: str, training: float):
        import unimarg as um

        self.um, self.method, self.net = um, method, net
        self.model = um.load_model(model) if method == "um" else None
        if self.model is not None:
            self.rows = self.model.marginals_of_states

    def answer(self, row: np.ndarray, seconds: float) -> Answer:
        options: dict[str, Any] = {"method": self.method}
        if self.methods[self.method] == "sampling":
            options |= {"seconds": seconds, "samples": 1 << 34, "target_error": None}
        evidence = labels(self.net, row)
        post = self.model.query(evidence, **options) if self.model else self.um.infer(self.net, evidence, **options)
        return np.concatenate(post.probabilities), post.samples

    def sample(self, count: int) -> None:
        self.um.sample(self.net, count)

    @staticmethod
    def load(path: str) -> tuple[int, int]:
        import unimarg as um

        net = um.load(path)
        return len(net), net.arc_count


class PyAgrum(Engine):
    module = "pyagrum"
    methods: ClassVar = {
        "LazyPropagation": "exact",
        "LoopyBeliefPropagation": "fixed",
        "WeightedSampling": "sampling",
        "ImportanceSampling": "sampling",
        "GibbsSampling": "sampling",
    }

    def __init__(self, method: str, net: Network, model: str, training: float):
        self.gum = import_quietly("pyagrum", "pyagrum")
        self.net, self.method = net, method
        try:
            self.bn = to_pyagrum(net)
        except NetworkError:  # a noisy-OR too large for a table
            self.bn = self._with_gates(net)

    def _with_gates(self, net: Network) -> Any:
        """Binary noisy-ORs as pyAgrum's own, which has no table."""
        bn = self.gum.BayesNet()
        for variable, mechanism in zip(net.variables, net.mechanisms, strict=True):
            described = self.gum.LabelizedVariable(variable.name, variable.name, list(variable.states))
            if isinstance(mechanism, NoisyMax) and mechanism.contributions:
                bn.addNoisyORNet(described, float(mechanism.leak[1]))
            else:
                bn.add(described)
        for i, mechanism in enumerate(net.mechanisms):
            name = net.names[i]
            if isinstance(mechanism, NoisyMax) and mechanism.contributions:
                for p, effect in zip(net.parents[i], mechanism.contributions, strict=True):
                    bn.addWeightedArc(net.names[p], name, float(effect[1, 1]))
                continue
            for p in net.parents[i]:
                bn.addArc(net.names[p], name)
            tensor, axes = bn.cpt(name), [*(net.names[p] for p in net.parents[i]), name]
            tensor.fillWith(mechanism.expand().transpose([axes.index(a) for a in reversed(tensor.names)]).ravel().tolist())
        return bn

    def answer(self, row: np.ndarray, seconds: float) -> Answer:
        engine = getattr(self.gum, self.method)(self.bn)
        if self.method != "LazyPropagation":
            engine.setVerbosity(False)
            engine.setEpsilon(1e-12)
            engine.setMinEpsilonRate(1e-12)
            engine.setMaxIter(10**9)
            engine.setMaxTime(seconds if self.methods[self.method] == "sampling" else LOOPY)
        engine.setEvidence({self.net.names[i]: int(k) for i, k in enumerate(row) if k >= 0})
        engine.makeInference()
        found = np.concatenate([engine.posterior(name).toarray() for name in self.net.names])
        return found, engine.nbrIterations() if self.methods[self.method] == "sampling" else 0

    def sample(self, count: int) -> None:
        self.gum.BNDatabaseGenerator(self.bn).drawSamples(count)

    @staticmethod
    def load(path: str) -> tuple[int, int]:
        bn = import_quietly("pyagrum", "pyagrum").loadBN(path)
        return bn.size(), bn.sizeArcs()


class Pgmpy(Engine):
    module = "pgmpy.inference"
    methods: ClassVar = {"VariableElimination": "exact", "ApproxInference": "sampling"}

    def __init__(self, method: str, net: Network, model: str, training: float):
        logging.disable(logging.WARNING)
        self.net, self.method, self.model = net, method, to_pgmpy(net)
        self.engine = getattr(import_quietly("pgmpy.inference", "pgmpy"), method)(self.model)

    def answer(self, row: np.ndarray, seconds: float) -> Answer:
        evidence, parts = labels(self.net, row), certain(self.net, row)
        hidden = [i for i, part in enumerate(parts) if part is None]
        drawn, batch, begin = 0, 256, time.perf_counter()
        total = [np.zeros(card) for card in self.net.cards]
        while True:
            options = {"n_samples": batch, "state_names": self._states(hidden)} if self.method == "ApproxInference" else {}
            names = [self.net.names[i] for i in hidden]
            if self.method == "VariableElimination":  # of several at once it makes one table first, even with joint=False
                found = {n: self.engine.query([n], evidence=evidence, show_progress=False) for n in names}
            else:
                found = self.engine.query(names, evidence=evidence, joint=False, show_progress=False, **options)
            for i in hidden:
                factor = found[self.net.names[i]]
                order = [factor.state_names[self.net.names[i]].index(s) for s in self.net.variables[i].states]
                total[i] += batch * factor.values[order]
            drawn, spent = drawn + batch, time.perf_counter() - begin
            if self.method == "VariableElimination" or spent > 0.7 * seconds:
                break
            batch = int(min(drawn, 0.8 * (seconds - spent) * drawn / spent)) + 1  # it can only be told how many to draw
        answer = [p if p is not None else total[i] / drawn for i, p in enumerate(parts)]
        return np.concatenate(answer), drawn if self.method == "ApproxInference" else 0

    def _states(self, hidden: list[int]) -> dict[str, list[str]]:
        return {self.net.names[i]: list(self.net.variables[i].states) for i in hidden}

    def sample(self, count: int) -> None:
        self.model.simulate(count, show_progress=False)

    @staticmethod
    def load(path: str) -> tuple[int, int]:
        logging.disable(logging.WARNING)
        model = import_quietly("pgmpy.readwrite", "pgmpy").BIFReader(path).get_model()
        return len(model.nodes()), len(model.edges())


class Pomegranate(Engine):
    module = "pomegranate.bayesian_network"
    methods: ClassVar = {"loopy BP": "fixed"}

    def __init__(self, method: str, net: Network, model: str, training: float):
        warnings.simplefilter("ignore")
        torch = self.torch = importlib.import_module("torch")
        distributions = importlib.import_module("pomegranate.distributions")
        network = importlib.import_module("pomegranate.bayesian_network")
        tables = [torch.tensor(m.expand()) for m in net.mechanisms]
        made = [
            distributions.ConditionalCategorical([t]) if parents else distributions.Categorical(t[None])
            for t, parents in zip(tables, net.parents, strict=True)
        ]
        edges = [(made[p], made[i]) for i, parents in enumerate(net.parents) for p in parents]
        self.net, self.model = net, network.BayesianNetwork(made, edges)

    def rows(self, evidence: np.ndarray) -> np.ndarray:
        states = self.torch.tensor(np.maximum(evidence, 0), dtype=self.torch.long)
        found = self.model.predict_proba(self.torch.masked.MaskedTensor(states, mask=self.torch.tensor(evidence >= 0)))
        found = [p.get_data() if hasattr(p, "get_data") else p for p in found]
        parts = []
        for i, (p, card) in enumerate(zip(found, self.net.cards, strict=True)):
            p = p.detach().numpy()[:, :card].astype(float)
            parts.append(np.where(evidence[:, i : i + 1] >= 0, np.eye(card)[np.maximum(evidence[:, i], 0)], p))
        return np.concatenate(parts, axis=1)

    def answer(self, row: np.ndarray, seconds: float) -> Answer:
        return self.rows(row[None])[0], 0

    def sample(self, count: int) -> None:
        self.model.sample(count)


class Nbn(Engine):
    module = "nbn"
    methods: ClassVar = {"TensorVariableElimination": "exact", "LikelihoodWeighting": "sampling", "AmortizedIS": "sampling"}
    places: ClassVar = {
        "TensorVariableElimination": "nbn.inference.tensor_ve",
        "LikelihoodWeightingEngine": "nbn.inference.likelihood_weighting",
        "AmortizedISEngine": "nbn.inference.amortized_is",
    }

    def __init__(self, method: str, net: Network, model: str, training: float):
        warnings.simplefilter("ignore")
        self.torch, nbn = importlib.import_module("torch"), importlib.import_module("nbn")
        self.net, self.method = net, method
        edges = [(net.names[p], net.names[i]) for i, parents in enumerate(net.parents) for p in parents]
        variables = {v.name: ("discrete", v.card) for v in net.variables}
        self.model = nbn.NeuralBayesianNetwork(edges, variables, device="cpu")
        for i, mechanism in enumerate(net.mechanisms):
            self.model.set_mechanism(net.names[i], self._table(nbn, i, mechanism.expand()))
        full = method if method in self.places else f"{method}Engine"
        self.engine = getattr(importlib.import_module(self.places[full]), full)()
        if method == "AmortizedIS":
            self.engine.train_proposal(self.model, time_budget_s=training)
        self.rate = 0.0

    def _table(self, nbn: Any, i: int, table: np.ndarray) -> Any:
        """As its own reader of BIF files does."""
        own, wanted = [self.net.names[p] for p in self.net.parents[i]], self.model.dag.parents(self.net.names[i])
        table = table.transpose([*(own.index(p) for p in wanted), len(own)])
        mechanism = nbn.CategoricalTableMechanism()
        logits = self.torch.log(self.torch.tensor(table.reshape(-1, table.shape[-1]), dtype=self.torch.float).clamp_min(1e-9))
        mechanism._logits, mechanism._n_classes = self.torch.nn.Parameter(logits), table.shape[-1]
        mechanism._set_parent_layout(list(table.shape[:-1]))
        mechanism._class_values = self.torch.arange(table.shape[-1], dtype=self.torch.float)
        mechanism.output_dim = 1
        return mechanism

    def answer(self, row: np.ndarray, seconds: float) -> Answer:
        parts = certain(self.net, row)
        hidden = [i for i, part in enumerate(parts) if part is None]
        evidence = {self.net.names[i]: int(k) for i, k in enumerate(row) if k >= 0}
        if self.methods[self.method] == "exact":
            for i in hidden:
                parts[i] = self.model.query([self.net.names[i]], evidence, self.engine).detach().numpy().astype(float)
            return np.concatenate([p for p in parts if p is not None]), 0
        begin, drawn = time.perf_counter(), 0
        for _ in range(2):  # it can only be told how many to draw: a pilot shows the rate
            left = seconds - (time.perf_counter() - begin)
            drawn = max(1024, int(0.8 * left * self.rate))
            start, self.engine.n_samples = time.perf_counter(), drawn
            weights, samples = self.model.query([self.net.names[i] for i in hidden], evidence, self.engine)
            self.rate = drawn / (time.perf_counter() - start)
            if time.perf_counter() - begin > 0.5 * seconds:
                break
        w, x = weights.detach().numpy()[0].astype(float), samples.detach().numpy()[0].astype(int)
        for column, i in enumerate(hidden):
            parts[i] = np.bincount(x[:, column], w, minlength=self.net.cards[i])[: self.net.cards[i]] / w.sum()
        return np.concatenate([p for p in parts if p is not None]), drawn

    def sample(self, count: int) -> None:
        self.model.sample(count)


ENGINES: dict[str, type[Engine]] = {
    "unimarg": Unimarg,
    "pyAgrum": PyAgrum,
    "pgmpy": Pgmpy,
    "pomegranate": Pomegranate,
    "nbn": Nbn,
}
