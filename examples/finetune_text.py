"""A small transformer, pretrained on prose and tuned by 50 clients on program code: all weights, LoRA and FFA-LoRA.

The text comes with Python: the topics of its help() are the prose, and 50 modules of its library are the clients.
"""

import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import evenhand as eh
from evenhand.algorithms import fedavg, fedex_lora
from evenhand.personalization import ditto

LENGTH, LETTERS, WIDTH = 32, 96, 64


class Transformer(nn.Module):
    """Predicts the next letter at each position."""

    @nn.compact
    def __call__(self, letters):
        x = nn.Embed(LETTERS, WIDTH, name="letters")(letters)
        x = x + nn.Embed(LENGTH, WIDTH, name="places")(jnp.arange(LENGTH))[None]
        h = nn.LayerNorm(name="norm_0")(x)
        x = x + nn.MultiHeadDotProductAttention(4, name="attention")(h, mask=nn.make_causal_mask(letters))
        h = nn.gelu(nn.Dense(4 * WIDTH, name="wide")(nn.LayerNorm(name="norm_1")(x)))
        x = nn.LayerNorm(name="norm_2")(x + nn.Dense(WIDTH, name="narrow")(h))
        return nn.Dense(LETTERS, name="output")(x)


def clients(texts, most, test):
    """Each text in windows of letters, for which the next letters are to be predicted."""
    codes = [np.array([ord(c) - 31 if " " <= c <= "~" else 0 for c in text], np.int32) for text in texts]
    counts = [min(most, (len(code) - 1) // LENGTH) for code in codes]
    cut = [(code[: n * LENGTH + 1], n) for code, n in zip(codes, counts, strict=True)]
    x, y = (np.concatenate([c[k : len(c) - 1 + k].reshape(n, -1) for c, n in cut]) for k in (0, 1))
    return eh.data.from_arrays(x, y, np.repeat(np.arange(len(counts)), counts), test_fraction=test)


def private(model, rate):
    return eh.privacy.dp_sgd(model, rate, clip=1.0, noise_multiplier=1.0, rate=0.25, steps=4)


prose = clients(["".join(topics.values())], 3000, 0.05)
library = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py"))
code = clients([path.read_text("utf-8") for path in library if path.stat().st_size > 4000][:50], 40, 0.3)
loss = optax.softmax_cross_entropy_with_integer_labels
model = eh.models.from_flax(Transformer(), loss=lambda z, y: loss(z, y).mean(1), sample=prose.train.x)
pretraining = eh.local.sgd(model, optax.rmsprop(2e-3), epochs=1, batch_size=32)
pretrained = eh.simulate(eh.algorithms.alone(pretraining), prose, rounds=6, eval_every=6).personal_params(0)
whole = model._replace(init=lambda key: jax.tree.map(jnp.array, pretrained))
on = ("attention", "wide", "narrow")
lora = eh.models.lora(model, pretrained, rank=4, on=on)
ffa = eh.models.lora(model, pretrained, rank=4, on=on, train="b")
full, small, smaller = (
    eh.local.sgd(net, rate, epochs=1, batch_size=10) for net, rate in ((whole, 0.3), (lora, 0.9), (ffa, 0.9))
)
methods = {
    "FedAvg, all weights": fedavg(full),
    "FedAvg, LoRA": fedavg(small),
    "FedAvg, FFA-LoRA": fedavg(smaller),
    "FedEx-LoRA": fedex_lora(small),
    "DP-SGD, all weights": fedavg(private(whole, 0.03)),
    "DP-SGD, FFA-LoRA": fedavg(private(ffa, 0.1)),
    "Ditto, all weights": ditto(fedavg(full), full, lam=0.3),
    "Ditto, LoRA": ditto(fedavg(small), small, lam=0.3),
}
print(f"{'numbers':20}{'received':>10}{'sent':>8}{'loss before':>13}{'after':>7}")
for name, method in methods.items():
    run = eh.simulate(method, code, rounds=10, cohort=10, eval_every=10)
    sent, losses = run.info["floats"], run.history["test_loss"]
    print(f"{name:20}{sent['down']:10,}{sent['up']:8,}{losses[0]:13.2f}{losses[-1]:7.2f}")
