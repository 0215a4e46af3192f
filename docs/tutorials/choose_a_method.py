"""The same question by several methods: what each costs, and how far off it is. The advice is in docs/choose.md."""

import unimarg as um

net = um.example("alarm")  # 37 variables: small enough to know the truth
evidence = {"HRBP": "HIGH", "CVP": "LOW", "EXPCO2": "LOW", "PRESS": "HIGH"}
truth = um.exact(net, evidence)


def worst(post: um.Posterior) -> float:
    return max(abs(p - truth[name][state]) for name, state, p, _ in post.rows())


# %% auto: exact where that is quick. On most networks of some hundred variables it is, and nothing else is needed.
post = um.infer(net, evidence)
print(post.method, worst(post) < 1e-12)  # -> exact True

# %% prior, likelihood weighting. The more findings lie far down, the fewer of its samples are worth anything.
prior = um.infer(net, evidence, method="prior", samples=16_384, target_error=None)

# %% lookahead: each node is drawn with regard to the findings that are still to be explained.
ahead = um.infer(net, evidence, method="lookahead", samples=16_384, target_error=None)
print(ahead.ess > 5 * prior.ess)  # -> True
print(worst(ahead) < 0.02)  # -> True

# %% adaptive: lookahead, then refitted to its own weighted samples; for questions on which lookahead is poor.
refitted = um.infer(net, evidence, method="adaptive", samples=16_384, target_error=None)
print(refitted.status)  # -> ok

# %% Where exact inference would need more memory than it is allowed, it says so before it begins, with the figure.
try:
    um.exact(net, evidence, memory=1000)
except um.TooExpensiveError as e:
    print(e.predicted_bytes > 1000)  # -> True

# %% On such networks auto samples. clinic has 248 variables; all its marginals at once need more memory than it may take.
post = um.infer(um.example("clinic"), {"fever": "high", "cough": "productive"}, ["pneumonia", "influenza"], target_error=0.01)
print(post.method, post.status)  # -> lookahead ok

# %% With a trained model there is also `um`, one pass of the network for as many rows as you like, and proposals that use what it has
# learned: independent, hybrid, message, sequential. um.evaluate(model) judges them all on evidence sets of your own network.
