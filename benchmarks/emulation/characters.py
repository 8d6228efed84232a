"""A small language model of characters, in NumPy: it predicts the next character of Python's own source text.

Its weights and gradients are flat float32 vectors, so that a norm, a mean over peers or an update is one operation.
"""

from __future__ import annotations

import functools
import math
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
LETTERS = 96  # the printable ASCII characters, and one number for all others
HELD_OUT = 10  # one file of so many is held out
_HELD_OUT_SAMPLES = 4096


@dataclass(frozen=True)
class Samples:
    """Samples: for each the characters of its context, shape (samples, context), and the next one, shape (samples,)."""

    contexts: Array
    following: Array

    def __len__(self) -> int:
        return len(self.following)

    def __getitem__(self, share: slice) -> Samples:
        return Samples(self.contexts[share], self.following[share])


@dataclass(frozen=True)
class SourceText:
    """The text of the standard library, as numbers from 0 to 95: the files to train on, and the files held out."""

    training: Array
    held_out: Array

    def drawn(self, number: int, *, context: int, generator: np.random.Generator) -> Samples:
        """Samples at random places of the training text, with replacement."""
        return _samples_at(self.training, generator.integers(0, len(self.training) - context, number), context)

    def held_out_samples(self, *, context: int) -> Samples:
        """The samples of the held-out text by which every model is judged: always the same."""
        generator = np.random.default_rng(0)
        places = generator.integers(0, len(self.held_out) - context, _HELD_OUT_SAMPLES)
        return _samples_at(self.held_out, places, context)


def _samples_at(text: Array, places: Array, context: int) -> Samples:
    windows = text[places[:, None] + np.arange(context + 1)].astype(np.int64)
    return Samples(windows[:, :-1], windows[:, -1])


@functools.cache
def source_text() -> SourceText:
    """The text of the modules of the running Python's standard library and of its packages, without their tests."""
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted([*library.glob("*.py"), *library.glob("[a-z]*/*.py")])
    files = [one for one in files if one.parent.name not in ("site-packages", "test")]
    held_out = files[HELD_OUT - 1 :: HELD_OUT]
    return SourceText(_read(sorted({*files} - {*held_out})), _read(held_out))


def _read(files: Iterable[Path]) -> Array:
    numbers = np.zeros(256, np.uint8)
    numbers[32:127] = np.arange(1, LETTERS)
    return numbers[np.frombuffer(b"\n".join(one.read_bytes() for one in files), np.uint8)]


@dataclass(frozen=True)
class CharacterModel:
    """An embedding of each character of the context, a hidden layer with tanh, and a softmax over the next character.

    Args:
        context: The characters from which the next one is predicted.
        embedding: The width of the embedding.
        hidden: The width of the hidden layer.
    """

    context: int = 8
    embedding: int = 16
    hidden: int = 128

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the embedding, and of the weights and biases of both layers."""
        wide = self.context * self.embedding
        return (LETTERS, self.embedding), (wide, self.hidden), (self.hidden,), (self.hidden, LETTERS), (LETTERS,)

    def started(self, seed: int) -> Array:
        """Weights at random: activations have a variance of about 1, and the first predictions are almost uniform."""
        generator, weights = np.random.default_rng([seed, 0]), np.zeros(sum(map(math.prod, self.shapes)), np.float32)
        embedding, first, _, second, _ = self.layers(weights)
        for layer, scale in ((embedding, 1.0), (first, len(first) ** -0.5), (second, 0.1 * len(second) ** -0.5)):
            layer[:] = scale * generator.standard_normal(layer.shape)
        return weights

    def loss_and_accuracy(self, weights: Array, samples: Samples) -> tuple[float, float]:
        """The mean cross-entropy, in nats, and the share of samples whose next character is the most likely one."""
        *_, logits = self._activations(weights, samples.contexts)
        right = logits[np.arange(len(samples)), samples.following]
        loss = np.log(np.exp(logits).sum(axis=1)) - right
        return float(loss.mean()), float((logits.argmax(axis=1) == samples.following).mean())

    def gradient(self, weights: Array, samples: Samples, *, into: Array) -> None:
        """Writes the gradient of the mean loss of at least one sample into a vector like the weights."""
        _, first, _, second, _ = self.layers(weights)
        embedding_gradient, first_gradient, bias_gradient, second_gradient, output_gradient = self.layers(into)
        inputs, hidden, logits = self._activations(weights, samples.contexts)
        errors = np.exp(logits)
        errors /= errors.sum(axis=1, keepdims=True)
        errors[np.arange(len(samples)), samples.following] -= 1
        errors /= len(samples)
        np.matmul(hidden.T, errors, out=second_gradient)
        errors.sum(axis=0, out=output_gradient)
        behind = errors @ second.T * (1 - hidden * hidden)
        np.matmul(inputs.T, behind, out=first_gradient)
        behind.sum(axis=0, out=bias_gradient)
        # Each entry of the inputs comes from one entry of the embedding.
        entries = samples.contexts[:, :, None] * self.embedding + np.arange(self.embedding)
        sums = np.bincount(entries.ravel(), (behind @ first.T).ravel(), minlength=embedding_gradient.size)
        embedding_gradient[:] = sums.reshape(embedding_gradient.shape)

    def _activations(self, weights: Array, contexts: Array) -> tuple[Array, Array, Array]:
        """The embedded contexts, the hidden layer, and the logits, of which the largest is 0."""
        embedding, first, bias, second, output = self.layers(weights)
        inputs = embedding[contexts].reshape(len(contexts), -1)
        hidden = np.tanh(inputs @ first + bias)
        logits = hidden @ second + output
        return inputs, hidden, logits - logits.max(axis=1, keepdims=True)

    def layers(self, vector: Array) -> list[Array]:
        """The layers of `shapes` that a flat vector of weights or gradients holds, as views of it."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(vector, ends), self.shapes, strict=True)]
