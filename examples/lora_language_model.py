"""Eight participants fine-tune a Hugging Face model with LoRA on their own texts; whose text helped whom?

Four hold English prose, four Python code; both come with Python, and the model has random weights, so there is nothing
to download. Only the adapters and the output layer are trained, gossiped and measured. Prints how updates on each kind
of text changed the loss on either, and the text with the largest help for participant 7. `make language` installs peft.
"""

import inspect
import random
import textwrap
from pydoc_data.topics import topics

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import cascadice as cd
from cascadice import influence

NODES, CONTEXT, TEXTS, HELD_OUT, ROUNDS = 8, 32, 32, 8, 25
PROSE = " ".join(topics[name] for name in sorted(topics))
CODE = "\n".join(inspect.getsource(module) for module in (random, textwrap))
symbols = [*map(chr, range(32, 127)), "\n"]


def texts(node: int) -> list[dict[str, list[int]]]:
    """A participant's texts as a tokenizer gives them: tokens, a mask, and labels that repeat the tokens."""
    each = CONTEXT * (TEXTS + HELD_OUT)
    written = (PROSE if node < 4 else CODE)[node % 4 * each :][:each]
    tokens = torch.tensor([symbols.index(c) if c in symbols else 0 for c in written]).view(-1, CONTEXT).tolist()
    return [{"input_ids": text, "attention_mask": [1] * CONTEXT, "labels": text} for text in tokens]


torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
base = LlamaForCausalLM(LlamaConfig(vocab_size=len(symbols), max_position_embeddings=CONTEXT, **sizes))
model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"]))
train = [text for k in range(NODES) for text in texts(k)[:TEXTS]]
test = [text for k in range(NODES) for text in texts(k)[TEXTS:]]
data = cd.data.from_torch(train, test, classes=symbols)
held = list(torch.split(torch.arange(len(train)), TEXTS))
network = cd.network(model, data, mixing="complete", nodes=8, partition=held, batch_size=8, optimizer="adamw", lr=0.02)
rounds = list(cd.simulate(network, ROUNDS))[-2:]
print(network)

held_out = [data.test.subset(own) for own in torch.split(torch.arange(len(test)), HELD_OUT)]
evaluation = influence.evaluate_on(network, held_out)  # everybody on held-out texts of its own
before, after = (cd.evaluate(network, who).loss.mean() for who in (network.initial, rounds[-1].after))
print(f"held-out loss: {before:.2f} before, {after:.2f} after {ROUNDS} rounds, in nats per character")
change = NODES * influence.first_order(network, rounds, evaluation).value.sum(0)  # [source, receiver]
for sources, kind in ((slice(4), "prose"), (slice(4, 8), "code ")):
    on_prose, on_code = change[sources, :4].mean(), change[sources, 4:].mean()
    print(f"an update on {kind} changed the loss on prose by {on_prose:+.4f}, on code by {on_code:+.4f}")
scores = influence.samples_by_receiver(network, rounds, evaluation, receivers=[7])[0]
scores[7] = 0  # of others
source, place = divmod(int(scores.argmin()), scores.shape[1])
text = "".join(symbols[i] for i in train[int(rounds[0].draw.batch[source, 0, place])]["input_ids"])
print(f"largest help for 7 (by a text used once, so without an interval): participant {source}'s text {text!r}.")
