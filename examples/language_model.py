"""Four participants train a small transformer on the documentation of Python, character by character.

The text comes with Python, so there is nothing to download. Prints the loss on held-out text before and after training,
in nats per character, and what one participant expects after "the met".
"""

import math

import torch
from torch import nn

import cascadice as cd
from cascadice import learning_rates, optimizers

ROUNDS = 100
text = cd.data.pydoc(context=32)
symbols = text.classes
model = cd.models.build("transformer", text.train.shape, len(symbols), width=48, depth=1, heads=4)
network = cd.network(
    model, text, nodes=4, mixing="ring", batch_size=16, optimizer=optimizers.clip(optimizers.adamw(), 1.0),
    lr=learning_rates.warmup(learning_rates.cosine(1e-2, ROUNDS), 10),
)  # fmt: skip
held_out = text.test.subset(torch.arange(256))


def expected(reader: nn.Module, text: str) -> str:
    """The three characters that the model thinks likeliest after `text`."""
    with torch.no_grad():
        p = reader(torch.tensor([[symbols.index(c) for c in text]]))[0, -1].softmax(-1)
    return ", ".join(f"{symbols[i]!r} {p[i]:.0%}" for i in p.topk(3).indices.tolist())


before = cd.evaluate(network, network.initial, held_out).loss.mean()
*_, last = cd.simulate(network, ROUNDS, window=0)
after = cd.evaluate(network, last.after, held_out)
print(f"loss of guessing: {math.log(len(symbols)):.2f} nats per character")
print(f"held-out loss: {before:.2f} before, {after.loss.mean():.2f} after {ROUNDS} rounds")
print(f"next character right: {after.accuracy.mean():.1%}")
print('after "the met", participant 0 expects', expected(cd.module_of(network, last.after, 0), "the met"))
print("Nothing in the engine knows what a language model is: tokens are data, next-token loss is a loss.")
