"""The paper's experiments, one command each: ``unimarg reproduce table1|figure1|table2|appendix-b``.

The paper's network is private. Ours is ``medical(50, 250, 700, seed=7)``, of the same kind and size: the paper's figures stand beside
ours for comparison of the pattern, not of the values. ``--quick`` runs the same code on a smaller ``medical`` with smaller layers, fewer
steps and fewer samples.
"""
