# Apart from the data set itself, which knows no HTML.
"""What a notebook shows of a data set: how many examples each client has, and of what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from evenhand import notebook
from evenhand.memory import is_mapped
from evenhand.text import counted, listed, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    # Through the package: a data set lends this module nothing but its type.
    from evenhand.data import FederatedDataset, Split

_TITLES = {"train": "training", "valid": "validation", "test": "test"}
_MOST_LABELS = 5_000_000
"""Labels that are counted whenever a data set is shown, which takes some milliseconds."""
_CLASSES, _NOTES = 12, 5
"""How many classes, and how many notes, are listed."""


def as_html(data: FederatedDataset, splits: Mapping[str, Split]) -> str:
    """A data set at a glance: the sizes of its clients, its features and its labels."""
    rows = listed([f"{split.rows:,} {_TITLES[title]}" for title, split in splits.items()])
    kind = f", one per {notebook.name(data.client_column)}" if data.client_column else ""
    shape = " × ".join(map(str, data.feature_shape))
    features = f"features: {data.train.x.dtype}{f', {shape} each' if shape else ''}"
    facts = [f"{counted(data.num_clients, 'client')}{kind}", f"{rows} examples", features]
    head = ["examples", "all", "smallest", "median", "mean", "largest"]
    remarks = data.notes[:_NOTES]
    more = len(data.notes) - len(remarks)
    parts = [
        notebook.paragraph(notebook.name(data.name), "title"),
        notebook.paragraph(" · ".join(facts)),
        *_chart(data, splits),
        notebook.table(head, _rows(splits)),
        notebook.paragraph(f"Labels: {_of_labels(data)}"),
        *(
            []
            if data.features is None
            else [notebook.paragraph(notebook.escape(data.features.describe()), "note")]
        ),
        *(notebook.paragraph(notebook.escape(remark), "note") for remark in remarks),
        notebook.paragraph(
            f"{counted(more, 'further note')}: <code>data.notes</code>" if more else "", "note"
        ),
    ]
    return notebook.piece(*parts)


def _chart(data: FederatedDataset, splits: Mapping[str, Split]) -> list[str]:
    """The clients' sizes, and which are the largest and the smallest; a sentence where all are equal."""
    sizes = splits["train"].sizes
    largest, smallest = int(np.argmax(sizes)), int(np.argmin(sizes))
    if sizes[largest] == sizes[smallest]:
        every = f"Each of the {counted(len(sizes), 'client')} has" if len(sizes) > 1 else "The client has"
        return [notebook.paragraph(f"{every} {counted(int(sizes[0]), 'training example')}.", "note")]
    title = "Training examples of each client, largest first"
    width = len(sizes) / notebook.BARS
    grouped = f" (each bar: the mean of about {width:.0f} clients)" if width > 1.5 else ""
    extremes = listed([f"largest {_client(data, largest)}", f"smallest {_client(data, smallest)}"])
    chart = notebook.bars(sizes, list(_labels(data, splits)), title)
    return [chart, notebook.paragraph(f"{title}{grouped}: {extremes}.", "note")]


def _client(data: FederatedDataset, k: int) -> str:
    return f"{notebook.name(data.client_ids[k])} with {int(data.train.sizes[k]):,}"


def _labels(data: FederatedDataset, splits: Mapping[str, Split]) -> Iterator[str]:
    """What the bar of a client is labelled with."""
    columns = {_TITLES[title]: split.sizes for title, split in splits.items() if split.rows}
    for k, client in enumerate(data.client_ids):
        yield f"{client}: {listed([f'{int(sizes[k]):,} {title}' for title, sizes in columns.items()])}"


def _rows(splits: Mapping[str, Split]) -> Iterator[list[str]]:
    for title, split in splits.items():
        sizes = split.sizes
        middle = (f"{np.median(sizes):,.1f}".removesuffix(".0"), f"{sizes.mean():,.1f}")
        yield [_TITLES[title], f"{split.rows:,}", f"{sizes.min():,}", *middle, f"{sizes.max():,}"]


def _of_labels(data: FederatedDataset) -> str:
    """The classes with their shares of the training examples, or the range of real targets, as HTML."""
    y, classes = data.train.y, data.num_classes
    is_simple = y.ndim == 1 and y.size <= _MOST_LABELS and not is_mapped(y)
    if classes is None:
        if not is_simple:
            return f"real targets{f', {y[0].size:,} each' if y.ndim > 1 else ''}"
        low, middle, high = (f"{x:,.6g}".replace("-", "−") for x in np.quantile(y, [0, 0.5, 1]))
        return f"real targets from {low} to {high}, median {middle} of the training examples"
    names = data.classes or tuple(map(str, range(min(classes, _CLASSES))))
    if not is_simple or classes > _MOST_LABELS:
        return counted(classes, "class")
    shares = np.bincount(y, minlength=classes) / max(len(y), 1)
    texts = [
        f"{notebook.name(name)} ({100 * share:.1f}\u202f%)"
        for name, share in zip(names[:_CLASSES], shares, strict=False)
    ]
    more = f" and {classes - _CLASSES:,} more" if classes > _CLASSES else ""
    return (
        f"{counted(classes, 'class')} (with their shares of the training examples): {', '.join(texts)}{more}"
    )


# --- a figure of labels by client ---------------------------------------------------------------------------------

_MOST_BARS = 60
"""Clients that a figure shows; of more, as many from the largest to the smallest."""
_MOST_TICKS = 30
"""Clients whose names fit below their bars."""
_MOST_NAMES = 20
"""Classes that a legend names; of more, its first and its last."""


def label_figure(data: FederatedDataset, split: str, counts: npt.NDArray[np.int64]) -> Figure:
    """A bar for each client, with a part for each of its classes."""
    # matplotlib takes a second, and few processes draw data.
    from matplotlib import colormaps

    from evenhand._figure import ShownFigure

    shown, text = np.arange(len(counts)), counted(len(counts), "client")
    if len(counts) > _MOST_BARS:
        ranked = np.argsort(-counts.sum(axis=1), kind="stable")
        shown = ranked[np.linspace(0, len(counts) - 1, _MOST_BARS).round().astype(int)]
        text = f"{_MOST_BARS} of {len(counts):,} clients, from the largest to the smallest"
    figure = ShownFigure(figsize=(7.0, 3.2), layout="constrained")
    axes = figure.subplots()
    names = data.classes or tuple(map(str, range(counts.shape[1])))
    colours = colormaps["viridis"](np.linspace(0, 1, max(len(names), 2)))
    below = np.zeros(len(shown))
    for label, name in enumerate(names):
        heights = counts[shown, label]
        is_named = len(names) <= _MOST_NAMES or label in (0, len(names) - 1)
        # A name that begins with an underscore is not in the legend.
        title = visible(name) if is_named else "_"
        axes.bar(np.arange(len(shown)), heights, bottom=below, color=colours[label], label=title, width=0.85)
        below += heights
    few = len(shown) <= _MOST_TICKS
    ticks = [visible(data.client_ids[k])[:12] for k in shown] if few else []
    axes.set_xticks(np.arange(len(ticks)), ticks, rotation=90 if len(ticks) > 8 else 0)
    axes.set_xlabel(text)
    axes.set_ylabel(f"{_TITLES[split]} examples")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)
    figure.legend(loc="outside right upper", title="class", frameon=False, fontsize="small", reverse=True)
    return figure
