"""Models of Hugging Face as they come: outputs, batches, adapters, checkpoints, half precision."""

import pytest
import torch

import cascadice as cd
from cascadice.data import from_torch
from cascadice.influence import by_participant, by_sample, evaluate_on, first_order, reverse_gossip

REASON = "`make language` installs transformers and peft"
transformers = pytest.importorskip("transformers", reason=REASON)
peft = pytest.importorskip("peft", reason=REASON)
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
VOCABULARY, TIME = 16, 6


def gpt2(dropout=0.0):
    """A GPT-2 with tied embeddings."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_positions": TIME, "n_embd": 8, "n_layer": 1, "n_head": 2}
    chance = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **chance, **ends))


def llama():
    """A Llama with adapters: dropout in front of them, nothing else trained."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=TIME, **sizes)
    lora = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.2)
    return peft.get_peft_model(transformers.LlamaForCausalLM(config), lora)


def checkpointed():
    model = gpt2(0.1)
    model.gradient_checkpointing_enable()
    return model


def texts(count=12):
    """As a tokenizer and its collator give them: padded, the padding masked and left out of the labels.

    On the left: a causal model never looks at padding on the right, masked or not.
    """
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(VOCABULARY, (count, TIME), generator=draw)
    mask = (torch.arange(TIME) >= torch.randint(TIME - 2, (count, 1), generator=draw)).long()
    rows = zip(ids, mask, ids.masked_fill(mask == 0, -100), strict=True)
    return [dict(zip(("input_ids", "attention_mask", "labels"), row, strict=True)) for row in rows]


def network(model, **options):
    data = from_torch(texts(), texts(4), classes=VOCABULARY)
    return cd.network(model, data, nodes=2, mixing="complete", batch_size=3, lr=0.1, seed=1, **options)


def test_the_loss_is_the_models_own():
    model, batch = gpt2().eval(), torch.utils.data.default_collate(texts(4))
    built = network(model)
    with torch.no_grad():
        torch.testing.assert_close(cd.evaluate(built, built.initial).loss, model(**batch).loss.expand(2))


MODELS = {"dropout": (gpt2, {"dropout": 0.1}), "adapters": (llama, {}), "checkpoints": (checkpointed, {})}


@pytest.mark.parametrize(("make", "options"), MODELS.values(), ids=MODELS)
def test_estimates_agree(make, options):
    built = network(make(**options), dtype="float64")
    rounds, judged = list(cd.simulate(built, 2)), evaluate_on(built)
    pushed, adjoint = first_order(built, rounds, judged).total, reverse_gossip(built, rounds, judged)
    assert pushed.abs().min() > 1e-6
    torch.testing.assert_close(by_participant(rounds[0], adjoint), pushed, rtol=1e-5, atol=1e-10)
    torch.testing.assert_close(by_sample(built, rounds[0], adjoint).sum(1), pushed, rtol=1e-5, atol=1e-10)


def test_only_adapters_are_trained():
    built = network(llama())
    assert built.learner.size == 2 * 2 * (8 + 8)
    last = next(cd.simulate(built, 1)).after
    module = cd.module_of(built, last, 0)
    frozen = {name: p for name, p in module.named_parameters() if "lora" not in name}
    for name, value in llama().named_parameters():
        if name in frozen:
            assert torch.equal(value, frozen[name])


def test_half_precision_follows_single():
    built, half = network(checkpointed()), network(checkpointed(), dtype="bfloat16")
    one, other = (next(cd.simulate(each, 1)).update for each in (built, half))
    assert torch.nn.functional.cosine_similarity(one, other, dim=1).min() > 0.98
    rounds = list(cd.simulate(half, 2))
    adjoint = reverse_gossip(half, rounds, evaluate_on(half))
    assert by_sample(half, rounds[0], adjoint).isfinite().all()
