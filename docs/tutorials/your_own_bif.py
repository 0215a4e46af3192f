"""Your own network: from a file, from another library, or built by hand."""

import tempfile
from pathlib import Path

import unimarg as um

folder = Path(tempfile.mkdtemp())

# %% By hand: variables, parents, and for each variable a table or a noisy-OR of its causes.
rain, sprinkler = um.Variable("rain"), um.Variable("sprinkler")  # states no and yes, unless others are given
grass = um.Variable("grass", ("dry", "wet"))
net = um.Network(
    [rain, sprinkler, grass],
    {"sprinkler": ["rain"], "grass": ["rain", "sprinkler"]},
    {
        "rain": [0.8, 0.2],
        "sprinkler": [[0.6, 0.4], [0.99, 0.01]],  # without rain, with rain
        "grass": um.NoisyOr(leak=0.01, contributions=[0.8, 0.9]),  # one number for each cause
    },
    name="lawn",
)
print(round(um.exact(net, {"grass": "wet"})["rain"]["yes"], 4))  # -> 0.3542

# %% To a file and back. The suffix says which format: .bif .xmlbif .net .uai .xdsl, each also with .gz. XDSL keeps the noisy-OR as it
# is; in BIF, which knows only tables, it becomes one.
um.save(net, folder / "lawn.xdsl")
print(um.load(folder / "lawn.xdsl") == net)  # -> True
um.save(net, folder / "lawn.bif")
print(um.load(folder / "lawn.bif").parameter_count, net.parameter_count)  # -> 7 6

# %% A file with a mistake is refused with a sentence that says where it is.
broken = (folder / "lawn.bif").read_text().replace("0.8, 0.2", "0.8, 0.3")
(folder / "broken.bif").write_text(broken)
try:
    um.load(folder / "broken.bif")
except um.FormatError as e:
    print("sum to 1.1, not 1" in str(e))  # -> True

# %% Models of pgmpy and pyAgrum can be used in place of a network.
theirs = um.to_pyagrum(net)
print(round(um.exact(theirs, {"grass": "wet"})["rain"]["yes"], 4))  # -> 0.3542

# %% A variable's group is a heading: `unimarg ask lawn.xdsl -t weather`, and the page of `unimarg serve`, know it.
print(um.Variable("rain", group="weather"))  # -> Variable(name='rain', states=('no', 'yes'), group='weather')
