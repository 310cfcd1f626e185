"""
Text classification with a Hugging Face model, several texts in each call.

    HF_MODEL=/models/distilbert-sst2 celery -A workers worker --concurrency=1

``HF_MODEL`` names a folder, as ``save_pretrained`` writes it, with tokenizer and model.
Without it the worker neither imports this module nor needs transformers.
"""

from __future__ import annotations

import os
from typing import Any

from celery_batch import Model
from workers.celery import app

__all__ = ["TextClassifier", "classify"]


class TextClassifier(Model):
    def load(self, device: str) -> None:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        folder = os.environ["HF_MODEL"]
        dtype = torch.float16 if device.startswith("cuda") else torch.float32
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        self.model = model.to(device, dtype).eval()

    def examples(self) -> list[str]:
        return ["The film was good.", "It was bad."]

    def predict(self, batch: list[str]) -> list[dict[str, Any]]:
        import torch

        inputs = self.tokenizer(batch, padding=True, truncation=True, return_tensors="pt")
        with torch.inference_mode():
            logits = self.model(**inputs.to(self.model.device)).logits
        scores, labels = logits.float().softmax(-1).max(-1)
        names = self.model.config.id2label
        pairs = zip(labels.tolist(), scores.tolist(), strict=True)
        return [{"label": names[label], "score": score} for label, score in pairs]


classify = TextClassifier.as_task(app, name="workers.classify", max_batch_size=32)
