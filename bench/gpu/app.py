"""The tasks of the models on a GPU; ``BENCH_GPU_CASE`` names the case whose models are loaded."""

from __future__ import annotations

import os

from celery import Celery

from bench.gpu.models import (
    BUDGETS,
    MODELS,
    ROWS,
    SIZES,
    CollatedImages,
    Convnet,
    CopiedImages,
    FixedConvnet,
    GraphConvnet,
    TextEncoder,
)

__all__ = ["app"]

app = Celery("gpu")

_CASES = os.environ.get("BENCH_GPU_CASE", "encoder convnet lengths graphs copies").split()

for _name in [each for each in MODELS if each in _CASES]:
    for _size in SIZES:
        MODELS[_name].as_task(app, name=f"gpu.{_name}.{_size}", max_batch_size=_size, max_wait=0.1)
if "lengths" in _CASES:
    for _size in ROWS:
        TextEncoder.as_task(app, name=f"gpu.rows{_size}", max_batch_size=_size)
    for _cost in BUDGETS:
        TextEncoder.as_task(
            app, name=f"gpu.cost{_cost}", cost=len, max_batch_cost=_cost, padded=True
        )
if "graphs" in _CASES:
    Convnet.as_task(app, name="gpu.any size", max_batch_size=64)
    FixedConvnet.as_task(app, name="gpu.fixed sizes")
    GraphConvnet.as_task(app, name="gpu.graphs")
if "copies" in _CASES:
    for _model in (CopiedImages, CollatedImages):
        _model.as_task(app, name=f"gpu.{_model.__name__}", max_batch_size=64, max_wait=0.1)
