"""How the operator runs fast. Only `engine/operator.py` imports this folder; what a round *is* stands there.

    runner.py              local work of any rows, applied, pushed and pulled; splits it into phases and groups
    strategies.py          the three ways to train all participants: loop, vmap, compile; and how one is chosen
    rows.py                the same three ways for any other function of one participant; the same bits in every run
    eager.py               one training step by plain autograd, for loops
    pull.py                adjoints and sample scores backwards through local work
    tape.py, hooks.py      sample scores and Hessian-vector products from what each layer saw
    evaluation_passes.py   losses and gradients on evaluation data
    double_backward.py     what must be switched off, or replaced, in a pass that is differentiated twice
    captured_rounds.py     whole rounds as CUDA graphs, built on cuda_graphs.py
    buffers.py             memory that is reused from round to round

Every fast path computes the same numbers as the plain one up to rounding, and the same bits each time it is run.
"""
