"""The posteriors of every row of a file, whatever is known of each."""

import tempfile
from pathlib import Path

import pandas as pd

import unimarg as um

folder = Path(tempfile.mkdtemp())
net = um.example("asia")
model = um.train(net, preset="small", budget="100 steps", seed=0)  # far too short for good answers

# %% A table: a column for each variable, a row for each case. Only an empty cell is unobserved, and every row may observe something else.
# The column id is no variable: it is passed on. The fourth row makes no sense.
(folder / "patients.csv").write_text("id,dysp,smoke,xray\np1,yes,no,\np2,,yes,yes\np3,,,\np4,perhaps,,\n")

# %% Rows that make no sense go to a file of their own, with their line. Without errors= the first one would end the run.
done = um.score(model, folder / "patients.csv", folder / "out.csv", ["lung", "bronc"], keep=["id"], errors=folder / "bad.csv")
print(done.rows, done.bad)  # -> 4 1
out = pd.read_csv(folder / "out.csv")
print(list(out.columns))  # -> ['row', 'id', 'lung=yes', 'lung=no', 'bronc=yes', 'bronc=no']
print(list(out["id"]))  # -> ['p1', 'p2', 'p3']
bad = pd.read_csv(folder / "bad.csv")
print(bad["line"][0], bad["reason"][0])  # -> 5 'dysp' has no state 'perhaps'; allowed: 'yes', 'no'

# %% The same by method="auto": exact or by sampling, with the largest standard error of each row, to be trusted. Thousands of rows are
# answered at once where exact inference is quick, as here; others row by row, slowly.
um.score(model, folder / "patients.csv", folder / "sure.csv", ["lung"], method="auto", keep=["id"], errors=folder / "bad.csv")
sure = pd.read_csv(folder / "sure.csv")
print(list(sure["method"]))  # -> ['exact', 'exact', 'exact']
print(round(float(sure["lung=yes"][0]), 4))  # -> 0.0238

# %% A network needs no model for that: auto is its method unless told, and "exact" another.
done = um.score(net, folder / "patients.csv", folder / "exact.csv", ["lung"], method="exact", keep=["id"], errors=folder / "bad.csv")
print(done.rows, done.bad)  # -> 4 1

# %% A file of any size takes the same memory, and a run that was killed goes on where it stopped when it is started again. On the
# command line:
#
#     unimarg score asia.um patients.csv -o out.parquet -t lung --keep id --errors bad.csv

# %% A table that is in memory already needs no file.
rows = pd.DataFrame({"dysp": ["yes", None], "smoke": ["no", "yes"]})
print(model.predict_proba(rows, ["lung"]).shape)  # -> (2, 2)
print(model.predict(rows, ["smoke"])["smoke"].tolist())  # -> ['no', 'yes']
print([round(post["lung"]["yes"], 4) for post in um.infer(net, rows, ["lung"])])  # -> [0.0238, 0.1]
