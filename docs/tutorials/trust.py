"""How far to trust an answer: standard errors, effective samples, k-hat, and a status that sums them up."""

import unimarg as um

net = um.example("asia")
evidence = {"dysp": "yes", "xray": "yes"}
truth = um.exact(net, evidence)["lung"]["yes"]

# %% Samples carry weights. Every probability comes with a standard error, and the truth lies within two of them 19 times in 20.
post = um.infer(net, evidence, ["lung"], method="prior", samples=32_768, target_error=None)
p, error = post["lung"]["yes"], post.error("lung")["yes"]
print(abs(p - truth) < 4 * error, error < 0.01)  # -> True True

# %% The effective sample size: how many draws from the posterior itself the weighted ones are worth.
print(post.samples, 1000 < post.ess < 30_000)  # -> 32768 True

# %% Ask for an error instead of a number of samples: sampling goes on until it is reached.
post = um.infer(net, evidence, ["lung"], method="lookahead", target_error=0.002)
print(post.status, post.error("lung")["yes"] < 0.002)  # -> ok True

# %% Where the samples are worth too little, the status says so, and the message why; on the command line the exit code is 1. Five samples
# are never enough.
post = um.infer(net, evidence, ["lung"], method="prior", samples=5, target_error=None)
print(post.status)  # -> failed
print("worth" in post.message)  # -> True

# %% log P(evidence) tells how surprising the findings are, and has an error too; 0 for an exact answer.
exact = um.exact(net, evidence)
print(round(exact.log_evidence, 3), exact.log_evidence_error)  # -> -2.65 0.0

# %% Findings that contradict the network are an error where that can be proven.
try:
    um.exact(net, {"lung": "yes", "either": "no"})
except um.ImpossibleEvidenceError:
    print("impossible")  # -> impossible

# %% One pass of a trained model has no error of its own: it is as good as its training, and um.evaluate says how good that is. For a
# single answer that matters, ask model.query without method="um".
