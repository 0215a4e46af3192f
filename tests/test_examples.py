"""The examples: their sizes and numbers, the clinic's plausibility, and one network for one seed everywhere."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import product

import numpy as np
import pytest

from unimarg import Network, NoisyMax, Table
from unimarg.errors import FormatError, UsageError
from unimarg.examples import clinic_cases, example, example_names, medical
from unimarg.examples.clinic import read_clinic

# what should lead, and whatever else is rare and could explain the same findings: drawn often, so that it is judged fairly
CASES = {
    "Fever and a cough": ("pneumonia", "pulmonary_embolism"),
    "An elephant on the chest": ("myocardial_infarction", "unstable_angina", "aortic_dissection"),
    "It burns": ("cystitis", "pyelonephritis", "chlamydia_or_gonorrhoea"),
    "A swollen leg after the operation": ("deep_vein_thrombosis", "pulmonary_embolism", "cellulitis"),
    "Always thirsty": ("diabetes", "ketoacidosis"),
    "Pale and dizzy": ("upper_gi_bleed", "iron_deficiency"),
    "Zigzags, then a headache": ("migraine",),
    "Nothing is fun any more": ("depression", "hypothyroidism"),
    "Running hot": ("hyperthyroidism", "panic_disorder"),
    "Running cold": ("hypothyroidism",),
    "The worst headache of her life": ("subarachnoid_haemorrhage", "meningitis", "migraine"),
    "A sore belly": ("appendicitis",),
    "Back from the tropics": ("malaria", "influenza", "pneumonia"),
    "Breathless at night": ("heart_failure", "pneumonia", "pulmonary_embolism"),
}


@pytest.fixture(scope="module")
def clinic() -> Network:
    return example("clinic")


def posterior(net: Network, evidence, samples: int, seed: int, flattened=()) -> dict[str, tuple[float, float]]:
    """P(disease not in its first state | evidence) and its standard error, by likelihood weighting.

    A disease in ``flattened`` is drawn from half its own distribution and half the uniform one, and weighted for it.
    """
    rng = np.random.default_rng(seed)
    known = {net.find(k): net.variables[net.find(k)].states.index(s) for k, s in evidence.items()}
    diseases = [i for i, v in enumerate(net.variables) if v.group == "diseases"]
    needed = {*known, *diseases}
    for i in reversed(range(len(net))):
        needed |= set(net.parents[i]) if i in needed else set()
    x, each, log_weight = np.zeros((len(net), samples), dtype=np.int64), np.arange(samples), np.zeros(samples)
    for i in sorted(needed):
        mechanism, parents = net.mechanisms[i], list(net.parents[i])
        rows = mechanism.rows(x[parents].T) if parents else np.broadcast_to(mechanism.expand(), (samples, mechanism.card))
        drawn_from = 0.5 * rows + 0.5 / mechanism.card if net.names[i] in flattened else rows
        if i in known:
            x[i] = known[i]
            drawn_from = np.ones_like(rows)
        else:
            x[i] = (np.cumsum(drawn_from[:, :-1], axis=1) < rng.random(samples)[:, None]).sum(axis=1)
        if drawn_from is not rows:
            with np.errstate(divide="ignore"):
                log_weight += np.log(rows[each, x[i]]) - np.log(drawn_from[each, x[i]])
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    present = x[diseases] > 0
    mean = present @ weight
    error = np.sqrt((present - mean[:, None]) ** 2 @ weight**2)
    return {net.names[i]: (float(m), float(e)) for i, m, e in zip(diseases, mean, error, strict=True)}


def checksum(net: Network) -> str:
    """SHA-256 over names, groups, arcs and every parameter at full precision: they have ten digits and no noise."""
    digest = hashlib.sha256()
    for v, parents, mechanism in zip(net.variables, net.parents, net.mechanisms, strict=True):
        if isinstance(mechanism, NoisyMax):
            numbers = [mechanism.leak[1], *(c[1, 1] for c in mechanism.contributions)]
        else:
            numbers = [mechanism.probabilities[1]]
        names = [net.names[p] for p in parents]
        digest.update(f"{v.name} {v.group} {names} {[float(n) for n in numbers]}\n".encode())
    return digest.hexdigest()


def test_names_of_examples():
    assert example_names() == ("asia", "alarm", "clinic")
    with pytest.raises(UsageError, match="did you mean 'clinic'"):
        example("clinics")


# ------------------------------------------------------------------------------------------------------------- asia, alarm


def test_asia_by_hand():
    net = example("asia")
    assert Counter(v.group for v in net.variables) == {"exposures": 2, "diseases": 4, "findings": 2}
    assert all(v.states == ("yes", "no") for v in net.variables)
    states = np.array(list(product((0, 1), repeat=8)))
    logs = np.zeros(len(states))
    with np.errstate(divide="ignore"):
        for i, mechanism in enumerate(net.mechanisms):
            assert isinstance(mechanism, Table)
            logs += np.log(mechanism.probabilities[tuple(states[:, [*net.parents[i], i]].T)])
    joint = np.exp(logs)
    yes = {name: joint[states[:, i] == 0].sum() for i, name in enumerate(net.names)}
    tub = 0.01 * 0.05 + 0.99 * 0.01
    lung, bronc = 0.5 * 0.1 + 0.5 * 0.01, 0.5 * 0.6 + 0.5 * 0.3
    either = 1 - (1 - tub) * (1 - lung)
    assert yes["tub"] == pytest.approx(tub)
    assert (yes["lung"], yes["bronc"]) == pytest.approx((lung, bronc))
    assert yes["either"] == pytest.approx(either)
    assert yes["xray"] == pytest.approx(0.98 * either + 0.05 * (1 - either))
    # lung and bronchitis share their cause, so this one takes smokers and non-smokers apart
    dysp = 0.0
    for lung, bronc in ((0.1, 0.6), (0.01, 0.3)):
        sick = 1 - (1 - tub) * (1 - lung)
        dysp += 0.5 * (sick * (0.9 * bronc + 0.7 * (1 - bronc)) + (1 - sick) * (0.8 * bronc + 0.1 * (1 - bronc)))
    assert yes["dysp"] == pytest.approx(dysp)


def test_alarm():
    net = example("alarm")
    assert (len(net), net.arc_count, net.parameter_count) == (37, 46, 509)  # as published
    assert Counter(v.group for v in net.variables) == {"diagnoses": 8, "measurements": 16, "intermediate": 13}


# ------------------------------------------------------------------------------------------------------------------ clinic


def test_clinic_counts(clinic: Network):
    assert Counter(v.group for v in clinic.variables) == {"risk factors": 36, "diseases": 100, "symptoms": 65, "signs and tests": 47}
    assert {len(clinic.parents[clinic.find(name)]) >= many for name, many in (("fatigue", 20), ("fever", 15))} == {True}
    assert not [v.name for v, c in zip(clinic.variables, clinic.children, strict=True) if v.group == "diseases" and not c]
    # a cause can only lead down the page: nothing that is observed causes a disease
    order = ["risk factors", "diseases", "symptoms", "signs and tests"]
    for v, parents in zip(clinic.variables, clinic.parents, strict=True):
        assert all(order.index(clinic.variables[p].group) <= min(1, order.index(v.group)) for p in parents), v.name


def test_clinic_zeros_are_meant(clinic: Network):
    pregnant = clinic.mechanisms[clinic.find("pregnant")]
    assert isinstance(pregnant, Table)
    assert not pregnant.probabilities[0, :, 1].any()  # no man
    assert pregnant.probabilities[1, 1, 1] > pregnant.probabilities[1, 2, 1] > pregnant.probabilities[1, 3, 1] == 0


def test_clinic_priors(clinic: Network):
    """How often a visitor has what, within bounds a family doctor would find unremarkable."""
    prior = posterior(clinic, {}, samples=10_000, seed=0)
    bounds = {"common_cold": (0.05, 0.11), "influenza": (0.01, 0.03), "pneumonia": (0.003, 0.01), "asthma": (0.03, 0.08)}
    bounds |= {"diabetes": (0.04, 0.1), "migraine": (0.02, 0.06), "depression": (0.06, 0.13), "cystitis": (0.01, 0.04)}
    bounds |= {"myocardial_infarction": (0, 0.002), "pulmonary_embolism": (0, 0.0015), "meningitis": (0, 0.0003)}
    for disease, (low, high) in bounds.items():
        mean, error = prior[disease]
        assert low - 4 * error <= mean <= high + 4 * error, disease


def test_every_case_is_expected():
    assert [c.name for c in clinic_cases()] == list(CASES)
    assert all(c.story.endswith(".") and len(c.story) < 140 for c in clinic_cases())


@pytest.mark.parametrize("case", clinic_cases(), ids=lambda c: c.name)
def test_cases_lead_where_they_should(case, clinic: Network):
    expected = CASES[case.name]
    answer = posterior(clinic, case.evidence, samples=10_000, seed=1, flattened=expected)
    mean, error = answer[expected[0]]
    assert max(answer, key=lambda disease: answer[disease][0]) == expected[0]
    assert mean - 4 * error > 0.5


def test_one_cause_explains_the_other_away(clinic: Network):
    """A dry cough speaks for asthma less once a common cold is known to be there."""
    alone = posterior(clinic, {"cough": "dry"}, samples=10_000, seed=3)["asthma"]
    explained = posterior(clinic, {"cough": "dry", "common_cold": "yes"}, samples=10_000, seed=3)["asthma"]
    assert alone[0] - explained[0] > 4 * np.hypot(alone[1], explained[1])


GOOD = """
[risks.smoking]
states = ["never", "former", "current"]
probability = [0.2, 0.2]
[diseases.copd]
states = ["none", "mild", "severe"]
given = ["smoking"]
probability = [[0, 0], [0.1, 0.02], [0.2, 0.05]]
[symptoms.cough]
leak = 0.05
causes = [{ copd = [0.4, 0.8] }, { smoking = [0.01, 0.2] }]
"""


def test_clinic_source_means_what_it_says():
    net = read_clinic(GOOD.encode())
    cough = net.mechanisms[net.find("cough")]
    assert cough.expand()[2, 2, 0] == pytest.approx(0.95 * (1 - 0.8) * (1 - 0.2))
    assert cough.expand()[0, 0].tolist() == pytest.approx([0.95, 0.05])
    assert net.mechanisms[net.find("copd")].expand()[1].tolist() == pytest.approx([0.88, 0.1, 0.02])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{ copd =", "{ cpod =", "'cough' has an unknown cause 'cpod'; did you mean 'copd'"),
        ("copd = [0.4, 0.8]", "copd = 0.4", "'cough': the strength of 'copd' should be 2 numbers, not 0.4"),
        ("copd = [0.4, 0.8]", "copd = [0.4, 1.8]", "'cough': the strength of 'copd' should be probabilities"),
        ("{ smoking =", "{ copd =", "'cough' has the cause 'copd' twice"),
        ('given = ["smoking"]', 'given = ["drinking"]', "'copd' has an unknown cause 'drinking'"),
        ('given = ["smoking"]', "", "'copd': 'probability' should be 2 numbers"),
        ("[0.1, 0.02]", "[0.1]", "'copd': 'probability' should be 3 by 2 numbers"),
        ("leak = 0.05\n", "", "'cough' needs either 'probability'"),
        ("leak = 0.05", "leek = 0.05", "'cough': unknown entry 'leek'; did you mean 'leak'"),
        ("leak = 0.05", "leak = 'rare'", "'cough': 'leak' should be one number, not 'rare'"),
        ("leak = 0.05", "leak = nan", "'cough': 'leak' should be one number"),
        ("causes = [{", "causes = [3, {", "'cough': 'causes' should be a list of"),
        ("[symptoms.cough]", "[diseases.smoking]", "'smoking' is there twice"),
        ("\n[risks.smoking]", "risk = 3\n[risks.smoking]", "'risk' should be a group of nodes"),
        ("\n[risks.smoking]", "others.age = 3\n[risks.smoking]", "node 'age' should be a table"),
        ("[0.2, 0.2]\n", '[0.2, 0.2]\ngiven = ["copd"]\n', "'smoking': 'probability' should be 3 by 2 numbers"),
        ("[0.2, 0.2]", '[[0, 0], [0, 0], [0, 0]]\ngiven = ["copd"]', "the arcs form a cycle: "),
        ('given = ["smoking"]', "given = [[1]]", "'copd' has an unknown cause"),
        ('states = ["none", "mild", "severe"]', "states = 3", "'copd': 'states' should be a list"),
        ("leak = 0.05", "leak = ", r"toy\.toml: not a TOML file"),
    ],
)
def test_clinic_source_errors_name_the_node(old: str, new: str, message: str):
    assert old in GOOD
    with pytest.raises(FormatError, match=message):
        read_clinic(GOOD.replace(old, new).encode(), "toy.toml")


# ----------------------------------------------------------------------------------------------------------------- medical


def test_medical_is_the_same_everywhere():
    assert checksum(medical()) == "7a008c6101020bd360cefe8fceab1a3d0e8f4f37a77cd5a8254e2f9a110b8012"
    assert checksum(medical(3, 4, 5, seed=2**63)) == "455ee0f5a1b189ce125867767835669d58ecb30e921d92b2a31414934f2c047f"
    assert medical(3, 4, 5, seed=1) == medical(3, 4, 5, seed=1)
    assert medical(3, 4, 5, seed=1) != medical(3, 4, 5, seed=2)


def test_medical_follows_its_recipe():
    net = medical(50, 250, 700, seed=7)
    assert Counter(v.group for v in net.variables) == {"risks": 50, "diseases": 250, "symptoms": 700}
    counts = {
        g: np.array([len(p) for v, p in zip(net.variables, net.parents, strict=True) if v.group == g]) for g in ("diseases", "symptoms")
    }
    assert set(counts["diseases"]) == {1, 2, 3, 4, 5}
    assert counts["symptoms"].min() == 1
    assert counts["symptoms"].max() <= 40
    # 1 + Geometric(.15) cut at 40: mean 1 + (.85 - .85^40) / .15, standard deviation about 6.1
    assert abs(counts["symptoms"].mean() - (1 + (0.85 - 0.85**40) / 0.15)) < 4 * 6.1 / np.sqrt(700)
    bounds = {"diseases": ((2e-4, 2e-2), (0.002, 0.1)), "symptoms": ((1e-3, 5e-2), (0.05, 0.9))}
    for v, mechanism in zip(net.variables, net.mechanisms, strict=True):
        if isinstance(mechanism, NoisyMax):
            (least, most), (weakest, strongest) = bounds[v.group]
            assert least <= mechanism.leak[1] <= most
            assert all(weakest <= c[1, 1] <= strongest for c in mechanism.contributions)
        else:
            assert 0.03 <= mechanism.probabilities[1] <= 0.4
    # log-uniform: the mean logarithm of a disease's leak lies in the middle
    logs = np.log(
        [m.leak[1] for v, m in zip(net.variables, net.mechanisms, strict=True) if v.group == "diseases" and isinstance(m, NoisyMax)]
    )
    middle, spread = np.log(2e-3), np.log(100) / np.sqrt(12)
    assert abs(logs.mean() - middle) < 4 * spread / np.sqrt(250)


def test_medical_small_and_large():
    assert len(medical(1, 1, 1, seed=0)) == 3
    net = medical(2, 3, 40, seed=0)
    assert max(len(net.parents[i]) for i, v in enumerate(net.variables) if v.group == "symptoms") == 3
    assert max(len(net.parents[i]) for i, v in enumerate(net.variables) if v.group == "diseases") <= 2


@pytest.mark.parametrize("wrong", [{"risks": 0}, {"diseases": -1}, {"symptoms": 2.5}, {"seed": -1}, {"seed": "7"}, {"risks": True}])
def test_medical_refuses(wrong: dict):
    with pytest.raises(UsageError, match=f"{next(iter(wrong))} must be a whole number"):
        medical(**wrong)
