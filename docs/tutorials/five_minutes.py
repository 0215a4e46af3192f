"""Five minutes with asia: a network of eight variables about shortness of breath (Lauritzen and Spiegelhalter 1988)."""

import unimarg as um

# %% A network, and what follows from some findings. On a network this small the answer is exact and takes milliseconds.
net = um.example("asia")
print(net)  # -> Network('asia', 8 variables, 8 arcs)

post = um.exact(net, {"dysp": "yes", "smoke": "no"})
print(round(post["lung"]["yes"], 4))  # -> 0.0238
print(round(post["bronc"]["yes"], 4))  # -> 0.7539

# %% A finding need not be certain. This X-ray is nine times as likely to look so where there is a shadow as where there is none:
post = um.exact(net, {"dysp": "yes", "xray": {"yes": 0.9, "no": 0.1}})
print(round(post["lung"]["yes"], 4))  # -> 0.3955

# %% Several variables together, and the most probable state of all of them
print(um.joint(net, {"dysp": "yes"}, ["lung", "bronc"]).round(3).to_string(index=False))
best = um.most_probable(net, {"dysp": "yes", "xray": "yes"})
print(best.assignment["lung"], best.assignment["smoke"])  # -> yes yes

# %% What should be asked next, to know more about the lungs? The gain is the information, in nats, that the answer is expected to give.
ranking = um.next_questions(net, {"dysp": "yes"}, ["lung", "tub"])
print(list(ranking["variable"][:2]))  # -> ['either', 'xray']

# %% And which finding moved the answer? Each is left out in turn.
moved = um.explain(net, {"dysp": "yes", "xray": "yes", "smoke": "no"}, "lung", "yes")
print(list(moved["variable"]))  # -> ['xray', 'smoke', 'dysp']

# %% A network of a thousand variables is another matter: its exact answers may not fit into any computer. So one neural network learns
# all posteriors, under any evidence. Here it is only shown how; a hundred steps make no expert.
model = um.train(net, preset="small", budget="100 steps", seed=0)
quick = model.query({"dysp": "yes"}, method="um")  # one pass, without an error of its own
print(quick.method, abs(quick["bronc"]["yes"] - um.exact(net, {"dysp": "yes"})["bronc"]["yes"]) < 0.15)  # -> um True
sure = model.query({"dysp": "yes"})  # exact where that is quick, else by sampling, with an error
print(sure.method, round(sure["bronc"]["yes"], 4))  # -> exact 0.834
