"""The client app of Flower's worker, which Ray's processes import."""

from __future__ import annotations

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from tasks import TASKS
from torch_loop import Loop

app = ClientApp()


@cache
def loaded(name: str) -> Loop:
    """The task with the rows of all clients, once per process."""
    torch.set_num_threads(1)
    return Loop(TASKS[name])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Local training, by the same steps as the PyTorch loop."""
    loop, k = loaded(str(message.content["config"]["task"])), int(context.node_config["partition-id"])
    size = loop.task.sizes[k]
    loop.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loop.client(int(loop.starts[k]), loop.batches(size))
    arrays, metrics = ArrayRecord(loop.model.state_dict()), MetricRecord({"num-examples": size})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
